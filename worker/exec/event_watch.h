// Reads an EventFolder on a thread of its own: a folder on the network may take long to answer, and a rank that waits
// for it would seem frozen.
//
//   EventWatch watch(std::move(folder));
//   std::vector<MetricPoint> points = watch.Take();  // often; does not wait
//   points = watch.Finish(absl::Seconds(10));        // the script has ended
//
// Thread-safe. The thread is left behind where its folder does not answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "worker/exec/event_folder.h"

namespace muster::exec {

class EventWatch {
 public:
  struct Intervals {
    absl::Duration read = absl::Seconds(1);
    // At least, and 50 times as long as the last scan took. Until the first file is there: each second for a minute,
    // then ever less often, down to every five minutes.
    absl::Duration scan = absl::Seconds(10);
  };

  // Begins with SkipExisting, and waits for that, but not for a folder that does not answer.
  explicit EventWatch(EventFolder folder) : EventWatch(std::move(folder), Intervals()) {}
  EventWatch(EventFolder folder, Intervals intervals);
  ~EventWatch();
  EventWatch(const EventWatch&) = delete;

  // What was read since the last call.
  std::vector<MetricPoint> Take();
  // Once, after the script has ended: the rest, as far as it can be read in time.
  std::vector<MetricPoint> Finish(absl::Duration at_most);
  std::string TakeWarning();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace muster::exec
