// std::mutex with the annotations that clang's -Wthread-safety checks. For code that the thread sanitizer runs: it sees
// through std types, but not through absl::Mutex, which lies in a library that is not instrumented.
//
//   Mutex mutex_;
//   std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
//   ...
//   const MutexLock lock(mutex_);
//   queue_.push_back(work);
#pragma once

#include <mutex>

#include "absl/base/thread_annotations.h"

namespace muster {

// A BasicLockable, so std::condition_variable_any can wait with it.
class ABSL_LOCKABLE Mutex {
 public:
  void lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace muster
