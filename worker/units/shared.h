// Things that are made once for all who ask for the same, and live as long as one of them has it.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace muster::units {

// Thread-safe.
template <typename T>
class Shared {
 public:
  // `make` returns the T of `key`.
  template <typename F>
  std::shared_ptr<const T> Get(const std::string& key, const F& make) {
    const MutexLock lock(mutex_);
    std::weak_ptr<const T>& known = all_[key];
    std::shared_ptr<const T> one = known.lock();
    if (one == nullptr) known = one = std::make_shared<const T>(make());
    return one;
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<const T>> all_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::units
