// Following a job to its end: what `watch`, `submit -f` and `train` do.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/exit_code.h"
#include "cli/output/live.h"
#include "cli/output_format.h"

namespace muster::cli {

struct FollowOptions {
  bool logs = false;
  Format format = Format::kTable;                 // kJson: a line for each item
  absl::Duration timeout = absl::ZeroDuration();  // zero: none
};

// Prints until the job ends, the time is over (kTimeout) or Ctrl-C detaches (kInterrupted; the job continues). The exit
// code is the job's.
absl::StatusOr<ExitCode> FollowJob(Client& client, const std::string& job, const FollowOptions& options,
                                   const Screen& out);

// One item as JSON: {"job": ..., "event" | "metrics" | "log" | "gap" | "snapshot": {...}, "cursor": ...}.
nlohmann::ordered_json ItemTree(const v1::WatchItem& item);

// Prints the stored items without following.
absl::Status ReadItems(Client& client, const v1::WatchRequest& request,
                       const std::function<void(const v1::WatchItem&)>& take);

// The loop of every streaming command: reports on stderr when the coordinator is lost and when it is back, and that
// Ctrl-C detached. `take` returns false to stop. `after_timeout`: what the time-out leaves, for its message. kOk at the
// end of the stream.
absl::StatusOr<ExitCode> FollowItems(Client& client, const v1::WatchRequest& request, absl::Duration timeout,
                                     const std::function<bool(const v1::WatchItem&)>& take,
                                     const std::function<void()>& idle, const std::string& detached,
                                     const std::string& after_timeout);

}  // namespace muster::cli
