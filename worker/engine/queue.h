// Runs the ops of a schedule, each on its stream and after the ops that it waits for. Two implementations: one for
// CPUs, where an op computes when it is posted and only collectives go on by themselves, and one for devices with
// streams (stream_queue.h).
//
//   queue->Begin(schedule);
//   for (int32_t i = 0; i < ops; ++i) RETURN_IF_BAD(queue->Post(i, task));   // in the schedule's order
//   queue->Finish();
//
// A queue that runs ahead takes the next schedule before Finish; its ops begin after all earlier ones have ended.
// Finish then waits for the earlier schedule.
//
// An op begins after every op in its `waits` has ended. Ops of one stream end in their order, and those of kCompute
// also begin in it. Ops of one process group begin in their order, so all ranks issue the same collectives. Not
// thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"
#include "worker/engine/access_order.h"
#include "worker/engine/op_listener.h"
#include "worker/engine/recorder.h"
#include "worker/engine/stream_driver.h"

namespace muster::engine {

using Works = std::vector<std::unique_ptr<collectives::Work>>;

// What an op does.
struct Task {
  std::function<Works()> begin;                   // issues its collectives, if it has any
  std::function<void()> end;                      // after them; may be null
  std::function<std::vector<Access>()> accesses;  // what it touches; called only if the order of accesses is checked
  bool on_host =
      false;  // it reads host memory that the device wrote: begins only when the device has reached its waits
  bool changes_state = false;  // of a checkpoint: on kCompute, and begins after the last Copy has ended
};

class Queue {
 public:
  virtual ~Queue() = default;

  // Whether a schedule may begin before Finish of the one before.
  virtual bool runs_ahead() const = 0;
  // Before the ops of `schedule`, which outlives them.
  virtual void Begin(const Schedule& schedule, OpListener* listener) = 0;
  // Runs op `index` of the newest schedule, now or later. What `task` refers to must stay until Finish. Unavailable: a
  // collective failed; the message names its op. FailedPrecondition: the order of accesses is checked, and the op does
  // not wait for another one with which it conflicts.
  virtual absl::Status Post(int32_t index, Task task) = 0;
  // Issues to kCompute what is no op of the newest schedule, after its ops so far; `what` names it and outlives the
  // schedule. Finish waits for it, too.
  virtual absl::Status Append(const char* what, absl::FunctionRef<absl::Status()> work) = 0;
  // Waits until all ops of the earliest unfinished schedule have ended. Errors as Post.
  virtual absl::Status Finish() = 0;
  // Copies state for a checkpoint, beside the ops of later schedules. REQUIRES: no schedule is in flight. `first` is
  // issued to kCompute: what a pass changes. `rest` is what only tasks that change the state do: it begins after all
  // that kCompute holds, and those tasks wait for its end. Both run before Copy returns; `accesses` are those of
  // `rest`.
  virtual absl::Status Copy(absl::FunctionRef<void()> first, absl::FunctionRef<void()> rest,
                            absl::FunctionRef<std::vector<Access>()> accesses) = 0;
  // What is posted or appended from now on begins after the last Copy has ended.
  virtual absl::Status AfterCopy() = 0;
  // Whether the last Copy has ended. On any thread, while no Copy is being issued.
  virtual absl::StatusOr<bool> Copied() = 0;
  // After an error: forgets what is in flight.
  virtual void Abandon() = 0;

  // Whether ops can be captured as a graph: those of `schedule` that are posted between BeginCapture and EndCapture,
  // which do not run. The schedule is not to be finished. After BeginCapture's success EndCapture must be called, also
  // after a Post that failed. A graph is launched by Append; on a queue that runs ahead it does not hold up the host.
  virtual bool captures() const { return false; }
  virtual absl::Status BeginCapture(const Schedule&) { return absl::UnimplementedError("this queue has no graphs"); }
  virtual absl::StatusOr<std::unique_ptr<Graph>> EndCapture() {
    return absl::UnimplementedError("this queue has no graphs");
  }

  // On a CPU: time blocked in collectives since Begin of a step.
  virtual double waited_seconds() const = 0;
};

struct QueueOptions {
  const Inventory* inventory = nullptr;  // for names; outlives the queue
  Recorder* recorder = nullptr;          // outlives the queue
  bool check_accesses = false;           // by AccessOrder
};

// For CPUs, without graphs. An op that waits for a collective in flight is put off; later posts start it as soon as it
// may begin, so that a chain of collectives runs beside the computing. Deferring never changes a result: ends keep
// their order.
std::unique_ptr<Queue> MakeHostQueue(const QueueOptions& options);

}  // namespace muster::engine
