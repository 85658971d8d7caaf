#include "worker/engine/stream_queue.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string>
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

  bool runs_ahead() const override { return true; }

  void Begin(const Schedule& schedule, OpListener* listener) override {
    in_flight_.push_back({.schedule = &schedule, .listener = listener});
    clocks_.clear();
    order_.Fence();
    begun_ = EndAll();
    if (begun_.ok()) begun_ = streams_->Begin();
  }

  absl::Status Post(int32_t index, Task task) override {
    InFlight& newest = in_flight_.back();
    const Op& op = newest.schedule->ops[index];
    if (!begun_.ok()) return begun_;
    if (task.changes_state) {
      if (absl::Status s = AfterCopy(); !s.ok()) return Named(op, s);
    }
    if (capturing_ && task.on_host) return Named(op, absl::FailedPreconditionError("a graph cannot wait for the host"));
    if (newest.listener != nullptr) newest.listener->Begin(index, op.kind);
    std::vector<Streams::Mark> marks;
    std::vector<AccessOrder::Clock> clocks;
    for (const int32_t w : op.waits) {
      if (newest.schedule->ops[w].stream == op.stream) continue;
      marks.push_back(newest.marks[static_cast<size_t>(w)]);
      if (options_.check_accesses) clocks.push_back(clocks_[static_cast<size_t>(w)]);
    }
    if (options_.check_accesses) {
      if (absl::Status s = CheckAccesses(op, clocks, task); !s.ok()) return s;
    }
    if (absl::Status s = EndWaits(newest, op); !s.ok()) return s;
    if (task.on_host) {
      if (absl::Status s = ReachWaits(newest, index); !s.ok()) return s;
    }
    absl::Status done;
    const absl::StatusOr<Streams::Mark> mark = streams_->Run(op.stream, marks, [&] { done = Issue(op, task); });
    if (!done.ok()) return Named(op, done);
    if (!mark.ok()) return mark.status();
    newest.marks.push_back(*mark);
    return absl::OkStatus();
  }

  // The listener receives the op after the last one, which has no name.
  absl::Status Append(const char* what, absl::FunctionRef<absl::Status()> work) override {
    InFlight& newest = in_flight_.back();
    if (!begun_.ok()) return begun_;
    if (newest.listener != nullptr) {
      newest.listener->Begin(static_cast<int32_t>(newest.schedule->ops.size()), OpKind::kEnd);
    }
    absl::Status done;
    Recorder& recorder = *options_.recorder;
    const absl::StatusOr<Streams::Mark> mark = streams_->Run(Stream::kCompute, {}, [&] {
      recorder.Begin();
      done = work();
      if (recorder.on()) recorder.End(what, Stream::kCompute);
    });
    if (!done.ok()) return Named(what, done);
    if (!mark.ok()) return mark.status();
    newest.appended.push_back({what, *mark});
    return absl::OkStatus();
  }

  // Names the earliest op that is not done: every other one that waits, waits for it in the end.
  absl::Status Finish() override {
    if (!begun_.ok()) return begun_;
    if (absl::Status s = EndAll(); !s.ok()) return s;
    const InFlight& earliest = in_flight_.front();
    for (size_t i = 0; i < earliest.marks.size(); ++i) {
      bool waited = false;
      if (absl::Status s = Reach(earliest, i, waited); !s.ok()) return s;
    }
    const auto ops = static_cast<int32_t>(earliest.schedule->ops.size());
    for (const Appended& appended : earliest.appended) {
      bool waited = false;
      const absl::Status s = Reach(
          appended.mark, [&] { Show(earliest, ops, OpKind::kEnd); }, waited);
      if (!s.ok()) return Named(appended.what, s);
    }
    if (!earliest.marks.empty()) streams_->Forget(earliest.marks.back());
    if (!earliest.appended.empty()) streams_->Forget(earliest.appended.back().mark);
    in_flight_.pop_front();
    return absl::OkStatus();
  }

  absl::Status Copy(absl::FunctionRef<void()> first, absl::FunctionRef<void()> rest,
                    absl::FunctionRef<std::vector<Access>()> accesses) override {
    if (options_.check_accesses) {
      const auto computed = order_.Run("what was computed", Stream::kCompute, {}, {});
      const auto copied = order_.Run("the state's copy", kCopyStream, {*computed}, accesses());
      if (!copied.ok()) return copied.status();
      copied_ = *copied;
    }
    copies_ = true;
    return streams_->Copy(first, rest);
  }

  absl::Status AfterCopy() override {
    if (!std::exchange(copies_, false)) return absl::OkStatus();
    if (options_.check_accesses) order_.Run("after the state's copy", Stream::kCompute, {copied_}, {}).IgnoreError();
    return streams_->AfterCopy();
  }

  absl::StatusOr<bool> Copied() override { return streams_->Copied(); }

  void Abandon() override {
    in_flight_.clear();
    for (auto& stream : held_) stream.clear();
    capturing_ = false;
    pause_.reset();
  }
  double waited_seconds() const override { return 0; }

  bool captures() const override { return streams_->captures(); }

  absl::Status BeginCapture(const Schedule& schedule) override {
    if (absl::Status s = EndAll(); !s.ok()) return s;
    if (absl::Status s = AfterCopy(); !s.ok()) return s;  // a graph waits for nothing from before it
    if (absl::Status s = streams_->BeginCapture(); !s.ok()) return s;
    in_flight_.push_back({.schedule = &schedule, .listener = nullptr});
    clocks_.clear();
    order_.Fence();
    begun_ = absl::OkStatus();
    capturing_ = true;
    pause_.emplace(options_.recorder);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    const absl::Status ended = EndAll();
    capturing_ = false;
    pause_.reset();
    in_flight_.pop_back();
    absl::StatusOr<std::unique_ptr<Graph>> graph = streams_->EndCapture();
    if (!ended.ok()) return ended;
    return graph;
  }

 private:
  struct Appended {
    const char* what;
    Streams::Mark mark;
  };
  struct InFlight {
    const Schedule* schedule;
    OpListener* listener;
    std::vector<Streams::Mark> marks = {};  // by op
    std::vector<Appended> appended = {};
  };
  struct Held {
    const Op* op;
    Works works;
    Task task;
  };

  // `waited` becomes true if the device was not there; then `show` was called.
  absl::Status Reach(Streams::Mark mark, absl::FunctionRef<void()> show, bool& waited) {
    for (; true; absl::SleepFor(kPoll)) {
      const absl::StatusOr<bool> reached = streams_->Reached(mark);
      if (!reached.ok()) return reached.status();
      if (*reached) return absl::OkStatus();
      if (!std::exchange(waited, true)) show();
    }
  }
  absl::Status Reach(const InFlight& steps, size_t index, bool& waited) {
    const Op& op = steps.schedule->ops[index];
    const absl::Status reached = Reach(
        steps.marks[index], [&] { Show(steps, static_cast<int32_t>(index), op.kind); }, waited);
    return reached.ok() ? reached : Named(op, reached);
  }
  static void Show(const InFlight& steps, int32_t index, OpKind kind) {
    if (steps.listener != nullptr) steps.listener->WaitFor(index, kind);
  }

  // The ops that op `index` waits for, and those that compute before it, whose waits are also its own.
  absl::Status ReachWaits(const InFlight& steps, int32_t index) {
    std::vector<int32_t> ends(steps.schedule->ops[index].waits.begin(), steps.schedule->ops[index].waits.end());
    for (int32_t before = index; before-- > 0;) {
      if (steps.schedule->ops[before].stream != steps.schedule->ops[index].stream) continue;
      ends.push_back(before);
      break;
    }
    bool waited = false;
    for (const int32_t end : ends) {
      bool this_one = false;
      if (absl::Status s = Reach(steps, static_cast<size_t>(end), this_one); !s.ok()) return s;
      waited |= this_one;
    }
    if (waited && steps.listener != nullptr) steps.listener->EndWait(index, steps.schedule->ops[index].kind);
    return absl::OkStatus();
  }

  // On the op's stream: what comes after the collectives waits for them there, not on the host.
  absl::Status Issue(const Op& op, Task& task) {
    Recorder& recorder = *options_.recorder;
    recorder.Begin();
    Works works = task.begin();
    if (streams_->hold_up_host() && op.stream != Stream::kCompute) {
      // A device would go on to what another rank needs before it sends.
      held_[static_cast<size_t>(op.stream)].push_back({&op, std::move(works), std::move(task)});
    } else if (absl::Status s = End(works, task); !s.ok()) {
      return s;
    }
    if (recorder.on()) recorder.End(Print(op, *options_.inventory), op.stream);
    return absl::OkStatus();
  }

  static absl::Status End(const Works& works, Task& task) {
    for (const auto& work : works) {
      if (absl::Status s = work->Wait(); !s.ok()) return s;
    }
    if (task.end) task.end();
    return absl::OkStatus();
  }

  // Those of a stream up to `last`, of the newest schedule.
  absl::Status EndUpTo(std::deque<Held>& stream, const Op* last) {
    while (!stream.empty() && stream.front().op <= last) {
      Held& held = stream.front();
      if (absl::Status s = End(held.works, held.task); !s.ok()) return Named(*held.op, s);
      stream.pop_front();
    }
    return absl::OkStatus();
  }

  absl::Status EndAll() {
    for (auto& stream : held_) {
      if (stream.empty()) continue;
      if (absl::Status s = EndUpTo(stream, stream.back().op); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status EndWaits(const InFlight& steps, const Op& op) {
    for (const int32_t w : op.waits) {
      const Op& other = steps.schedule->ops[w];
      if (absl::Status s = EndUpTo(held_[static_cast<size_t>(other.stream)], &other); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  // `after`: the ends of what the device is made to wait for.
  absl::Status CheckAccesses(const Op& op, const std::vector<AccessOrder::Clock>& after, const Task& task) {
    const std::vector<Access> accesses = task.accesses ? task.accesses() : std::vector<Access>();
    const auto clock = order_.Run(Print(op, *options_.inventory), op.stream, after, accesses);
    if (!clock.ok()) return clock.status();
    clocks_.push_back(*clock);
    return absl::OkStatus();
  }

  absl::Status Named(const Op& op, const absl::Status& status) const {
    return Named(Print(op, *options_.inventory), status);
  }
  static absl::Status Named(const std::string& what, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("waiting for ", what, ": ", status.message()));
  }

  const QueueOptions options_;
  const std::unique_ptr<Streams> streams_;
  std::array<std::deque<Held>, kStreams> held_;  // where a wait holds up the host: issued and not waited for
  std::deque<InFlight> in_flight_;               // begun and not finished
  absl::Status begun_;
  bool capturing_ = false;
  std::optional<Recorder::Pause> pause_;  // of the capture
  bool copies_ = false;                   // and kCompute does not wait for that yet
  AccessOrder::Clock copied_{};
  AccessOrder order_{/*begins_in_order=*/true};
  std::vector<AccessOrder::Clock> clocks_;  // of the newest schedule, by op, if the order of accesses is checked
};

class InlineStreams final : public Streams {
 public:
  absl::Status Begin() override { return absl::OkStatus(); }
  absl::StatusOr<Mark> Run(Stream, absl::Span<const Mark>, absl::FunctionRef<void()> work) override {
    work();
    return next_++;
  }
  absl::StatusOr<bool> Reached(Mark) override { return true; }
  void Forget(Mark) override {}
  bool hold_up_host() const override { return true; }
  absl::Status Copy(absl::FunctionRef<void()> first, absl::FunctionRef<void()> rest) override {
    first(), rest();
    return absl::OkStatus();
  }
  absl::Status AfterCopy() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Copied() override { return true; }

 private:
  Mark next_ = 0;
};

}  // namespace

std::unique_ptr<Queue> MakeStreamQueue(const QueueOptions& options, std::unique_ptr<Streams> streams) {
  return std::make_unique<StreamQueue>(options, std::move(streams));
}

std::unique_ptr<Streams> MakeInlineStreams() { return std::make_unique<InlineStreams>(); }

}  // namespace muster::engine
