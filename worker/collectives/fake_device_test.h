// A device and its communicator that do what the test says.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "worker/collectives/device_transport.h"

namespace muster::collectives {

// A value that the test sets while other threads read it.
template <typename T>
class Setting {
 public:
  explicit Setting(T value) : value_(std::move(value)) {}
  void Set(T value) {
    const MutexLock lock(mutex_);
    value_ = std::move(value);
  }
  T Get() const {
    const MutexLock lock(mutex_);
    return value_;
  }

 private:
  mutable Mutex mutex_;
  T value_ ABSL_GUARDED_BY(mutex_);
};

// Outlives its transports and their events.
class FakeDevice {
 public:
  // What the transport's calls return. `reached`: of every event.
  Setting<absl::StatusOr<bool>> begin{true}, ready{true}, finalize{true}, reached{false};
  Setting<absl::Status> check{absl::OkStatus()}, record{absl::OkStatus()}, block{absl::OkStatus()};
  Setting<absl::StatusOr<bool>> split{true};
  // Called inside the calls of these names.
  Setting<std::function<void()>> on_abort{[] {}}, on_block{[] {}}, on_query{[] {}};

  // "begin", "record", "split 1 0" (color, key), "finalize", "destroy" and "abort", in order; "late" for any call after
  // the last two. The transport of a part is this device's, too.
  std::vector<std::string> calls() const {
    const MutexLock lock(mutex_);
    return calls_;
  }
  bool aborted() const { return std::ranges::count(calls(), "abort") > 0; }

  std::unique_ptr<DeviceTransport> Transport() { return std::make_unique<FakeTransport>(*this); }

 private:
  class FakeEvent final : public DeviceEvent {
   public:
    explicit FakeEvent(FakeDevice& device) : device_(device) {}
    absl::StatusOr<bool> Reached() const override {
      device_.on_query.Get()();
      return device_.reached.Get();
    }
    absl::Status Block() const override {
      device_.on_block.Get()();
      return device_.block.Get();
    }

   private:
    FakeDevice& device_;
  };

  class FakeTransport final : public DeviceTransport {
   public:
    explicit FakeTransport(FakeDevice& device) : device_(device) {}
    absl::Status Check(const DeviceCollective&) const override { return device_.check.Get(); }
    absl::StatusOr<bool> Begin(const DeviceCollective&) override {
      device_.Add("begin");
      return device_.begin.Get();
    }
    absl::StatusOr<bool> Ready() override {
      device_.Add("");
      return device_.ready.Get();
    }
    absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() override {
      device_.Add("record");
      if (absl::Status status = device_.record.Get(); !status.ok()) return status;
      return std::make_unique<FakeEvent>(device_);
    }
    absl::StatusOr<Part> Split(int color, int key) override {
      device_.Add(absl::StrCat("split ", color, " ", key));
      const absl::StatusOr<bool> made = device_.split.Get();
      if (!made.ok()) return made.status();
      if (!*made) return std::nullopt;
      return color == kNoColor ? nullptr : std::make_unique<FakeTransport>(device_);
    }
    absl::StatusOr<bool> Finalize() override {
      device_.Add("finalize");
      return device_.finalize.Get();
    }
    absl::Status Destroy() override {
      device_.Add("destroy");
      return absl::OkStatus();
    }
    void Abort() override {
      device_.Add("abort");
      device_.on_abort.Get()();
    }

   private:
    FakeDevice& device_;
  };

  // An empty call is not listed.
  void Add(std::string call) {
    const MutexLock lock(mutex_);
    if (std::exchange(over_, over_ || call == "abort" || call == "destroy")) call = "late";
    if (!call.empty()) calls_.push_back(std::move(call));
  }

  mutable Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace muster::collectives
