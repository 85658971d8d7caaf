#include "worker/engine/stream_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace muster::engine {
namespace {

constexpr absl::Duration kPoll = absl::Microseconds(20);

class StreamQueue final : public Queue {
 public:
  StreamQueue(const QueueOptions& options, std::unique_ptr<Streams> streams)
      : options_(options), streams_(std::move(streams)) {}

  void Begin(const Schedule& schedule, OpListener* listener) override {
    schedule_ = &schedule;
    listener_ = listener;
    marks_.clear();
    clocks_.clear();
    order_.Fence();
    begun_ = streams_->Begin();
  }

  absl::Status Post(int32_t index, Task task) override {
    const Op& op = schedule_->ops[index];
    if (!begun_.ok()) return begun_;
    if (listener_ != nullptr) listener_->Begin(index, op.kind);
    std::vector<Streams::Mark> after;
    for (const int32_t w : op.waits) {
      if (schedule_->ops[w].stream != op.stream) after.push_back(marks_[static_cast<size_t>(w)]);
    }
    if (options_.check_accesses) {
      if (absl::Status s = CheckAccesses(op, after, task); !s.ok()) return s;
    }
    absl::Status done;
    const absl::StatusOr<Streams::Mark> mark = streams_->Run(op.stream, after, [&] { done = Issue(op, task); });
    if (!done.ok()) return Named(index, done);
    if (!mark.ok()) return mark.status();
    marks_.push_back(*mark);
    return absl::OkStatus();
  }

  // Names the earliest op that is not done: every other one that waits, waits for it in the end.
  absl::Status Finish() override {
    if (!begun_.ok()) return begun_;
    for (size_t i = 0; i < marks_.size(); ++i) {
      const int32_t index = static_cast<int32_t>(i);
      bool reported = false;
      while (true) {
        const absl::StatusOr<bool> reached = streams_->Reached(marks_[i]);
        if (!reached.ok()) return Named(index, reached.status());
        if (*reached) break;
        if (!std::exchange(reported, true) && listener_ != nullptr) {
          listener_->WaitFor(index, schedule_->ops[index].kind);
        }
        absl::SleepFor(kPoll);
      }
    }
    return absl::OkStatus();
  }

  void Abandon() override {}
  double waited_seconds() const override { return 0; }

 private:
  // On the op's stream: what comes after the collectives waits for them there, not on the host.
  absl::Status Issue(const Op& op, Task& task) {
    Recorder& recorder = *options_.recorder;
    recorder.Begin();
    for (const auto& work : task.begin()) {
      if (absl::Status s = work->Wait(); !s.ok()) return s;
    }
    if (task.end) task.end();
    if (recorder.on()) recorder.End(Print(op, *options_.inventory), op.stream);
    return absl::OkStatus();
  }

  // By the marks that the device is given, not by the schedule's waits.
  absl::Status CheckAccesses(const Op& op, const std::vector<Streams::Mark>& after, const Task& task) {
    std::vector<AccessOrder::Clock> clocks;
    for (const Streams::Mark mark : after) clocks.push_back(clocks_[mark]);
    const std::vector<Access> accesses = task.accesses ? task.accesses() : std::vector<Access>();
    const auto clock = order_.Run(Print(op, *options_.inventory), op.stream, clocks, accesses);
    if (!clock.ok()) return clock.status();
    clocks_.push_back(*clock);
    return absl::OkStatus();
  }

  absl::Status Named(int32_t index, const absl::Status& status) const {
    return absl::Status(status.code(), absl::StrCat("waiting for ", Print(schedule_->ops[index], *options_.inventory),
                                                    ": ", status.message()));
  }

  const QueueOptions options_;
  const std::unique_ptr<Streams> streams_;
  const Schedule* schedule_ = nullptr;
  OpListener* listener_ = nullptr;
  absl::Status begun_;
  std::vector<Streams::Mark> marks_;  // by op
  AccessOrder order_{/*begins_in_order=*/true};
  std::vector<AccessOrder::Clock> clocks_;  // by mark, if the order of accesses is checked
};

class InlineStreams final : public Streams {
 public:
  absl::Status Begin() override {
    next_ = 0;
    return absl::OkStatus();
  }
  absl::StatusOr<Mark> Run(Stream, absl::Span<const Mark>, absl::FunctionRef<void()> work) override {
    work();
    return next_++;
  }
  absl::StatusOr<bool> Reached(Mark) override { return true; }

 private:
  Mark next_ = 0;
};

}  // namespace

std::unique_ptr<Queue> MakeStreamQueue(const QueueOptions& options, std::unique_ptr<Streams> streams) {
  return std::make_unique<StreamQueue>(options, std::move(streams));
}

std::unique_ptr<Streams> MakeInlineStreams() { return std::make_unique<InlineStreams>(); }

}  // namespace muster::engine
