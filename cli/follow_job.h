// Following a job to its end: what `watch`, `submit -f` and `train` do.
#pragma once

#include <functional>
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

struct Following {
  std::function<bool(const v1::WatchItem&)> take;     // false: stop
  std::function<void()> idle = [] {};                 // several times a second
  std::function<void(const std::string&)> say = Say;  // prints a line on stderr, above what `idle` draws
  absl::Duration timeout = absl::ZeroDuration();      // zero: none
  std::string detached;                               // said after Ctrl-C
  // What the time-out leaves; empty: the job, and its state. Without a value g++ warns where others are set by name.
  std::string after_timeout = "";  // NOLINT(readability-redundant-string-init)
};

// The loop of every streaming command: says when the coordinator is lost and when it is back, and that Ctrl-C detached.
// kOk at the end of the stream.
absl::StatusOr<ExitCode> FollowItems(Client& client, const v1::WatchRequest& request, const Following& following);

}  // namespace muster::cli
