// A Watch call inside the process that reads at the pace of its consumer.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/jobs_service.grpc.pb.h"

namespace muster::web {

class WatchCall {
 public:
  virtual ~WatchCall() = default;
  virtual void Cancel() = 0;
};

// `item` takes one item at a time and calls `next(true)` for another one, `next(false)` to end; now or later, from any
// thread. `done` is called last, once. `limit` infinite: no deadline.
using NextItem = std::function<void(bool more)>;
std::shared_ptr<WatchCall> StartWatch(Jobs::Stub& stub, const std::string& token, const WatchRequest& request,
                                      absl::Duration limit, std::function<void(const WatchItem&, NextItem next)> item,
                                      std::function<void(const absl::Status&)> done);

}  // namespace muster::web
