#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/queue.h"

namespace muster::engine {
namespace {

using Steady = std::chrono::steady_clock;

class HostQueue final : public Queue {
 public:
  explicit HostQueue(const QueueOptions& options) : options_(options) {}

  bool runs_ahead() const override { return false; }
  void Begin(const Schedule& schedule, OpListener* listener) override;
  absl::Status Post(int32_t index, Task task) override;
  absl::Status Append(const char* what, absl::FunctionRef<absl::Status()> work) override;
  absl::Status Finish() override;
  absl::Status Copy(absl::FunctionRef<void()> first, absl::FunctionRef<void()> rest,
                    absl::FunctionRef<std::vector<Access>()>) override {
    first(), rest();
    return absl::OkStatus();
  }
  absl::Status AfterCopy() override { return absl::OkStatus(); }
  absl::StatusOr<bool> Copied() override { return true; }
  void Abandon() override {
    for (auto& stream : pending_) stream.clear();
  }
  double waited_seconds() const override { return waited_.count(); }

 private:
  // An op that has not ended.
  struct Pending {
    int32_t index;
    Task task;
    bool begun = false;
    Works works;
    Steady::time_point issued;
  };

  const Op& OpAt(int32_t index) const { return schedule_->ops[index]; }
  std::deque<Pending>& StreamOf(int32_t index) { return pending_[static_cast<size_t>(OpAt(index).stream)]; }
  bool Ended(int32_t index) {
    const std::deque<Pending>& stream = StreamOf(index);
    return stream.empty() || stream.front().index > index;
  }
  absl::Status CheckAccesses(int32_t index, const Task& task);
  absl::Status Compute(int32_t index, Task& task);
  bool MayBegin(const Pending& op);
  void Start(Pending& op);
  absl::Status EndFirst(std::deque<Pending>& stream);
  absl::Status Advance();
  // The op, if it is pending and has not begun; else null.
  Pending* NotBegun(int32_t index);
  absl::Status BeginNow(int32_t index);
  absl::Status Settle(int32_t index);
  absl::Status SettleAll(absl::Span<const int32_t> indices, int32_t reached);
  absl::Status Waiting(int32_t index, const absl::Status& status) const {
    return absl::Status(status.code(),
                        absl::StrCat("waiting for ", Print(OpAt(index), *options_.inventory), ": ", status.message()));
  }

  const QueueOptions options_;
  const Schedule* schedule_ = nullptr;
  OpListener* listener_ = nullptr;
  std::array<std::deque<Pending>, kStreams> pending_;  // ascending by op
  std::chrono::duration<double> waited_{};
  AccessOrder order_{/*begins_in_order=*/false};
  std::vector<AccessOrder::Clock> ended_;  // by op, if the order of accesses is checked
};

void HostQueue::Begin(const Schedule& schedule, OpListener* listener) {
  schedule_ = &schedule;
  listener_ = listener;
  waited_ = {};
  ended_.clear();
  order_.Fence();
}

absl::Status HostQueue::CheckAccesses(int32_t index, const Task& task) {
  const Op& op = OpAt(index);
  std::vector<AccessOrder::Clock> after;
  for (const int32_t w : op.waits) after.push_back(ended_[static_cast<size_t>(w)]);
  const std::vector<Access> accesses = task.accesses ? task.accesses() : std::vector<Access>();
  const auto ended = order_.Run(Print(op, *options_.inventory), op.stream, after, accesses);
  if (!ended.ok()) return ended.status();
  ended_.push_back(*ended);
  return absl::OkStatus();
}

absl::Status HostQueue::Post(int32_t index, Task task) {
  const Op& op = OpAt(index);
  if (listener_ != nullptr) listener_->Begin(index, op.kind);
  if (options_.check_accesses) {
    if (absl::Status s = CheckAccesses(index, task); !s.ok()) return s;
  }
  if (absl::Status s = Advance(); !s.ok()) return s;
  if (op.stream == Stream::kCompute) return Compute(index, task);
  Recorder& recorder = *options_.recorder;
  recorder.Begin();
  std::deque<Pending>& stream = StreamOf(index);
  stream.push_back({.index = index, .task = std::move(task)});
  if (MayBegin(stream.back())) Start(stream.back());
  if (recorder.on()) recorder.End("Issue");
  return absl::OkStatus();
}

// What computes has ended when it is posted.
absl::Status HostQueue::Append(const char* what, absl::FunctionRef<absl::Status()> work) {
  Recorder& recorder = *options_.recorder;
  recorder.Begin();
  absl::Status done = work();
  if (recorder.on()) recorder.End(what);
  return done;
}

absl::Status HostQueue::Compute(int32_t index, Task& task) {
  const Op& op = OpAt(index);
  if (absl::Status s = SettleAll(op.waits, index); !s.ok()) return s;
  Recorder& recorder = *options_.recorder;
  recorder.Begin();
  const Works works = task.begin();
  const auto begin = Steady::now();
  for (const auto& work : works) {
    if (absl::Status s = work->Wait(); !s.ok()) return s;
  }
  if (!works.empty()) waited_ += Steady::now() - begin;
  if (task.end) task.end();
  if (recorder.on()) recorder.End(Print(op, *options_.inventory));
  return absl::OkStatus();
}

// Not while one of its group that comes before it has not begun.
bool HostQueue::MayBegin(const Pending& op) {
  const Op& its = OpAt(op.index);
  for (const auto& stream : pending_) {
    for (const Pending& other : stream) {
      if (other.index >= op.index) break;
      if (!other.begun && OpAt(other.index).group == its.group) return false;
    }
  }
  return std::all_of(its.waits.begin(), its.waits.end(), [this](int32_t w) { return Ended(w); });
}

void HostQueue::Start(Pending& op) {
  op.begun = true;
  op.issued = Steady::now();
  op.works = op.task.begin();
}

// Waits for the first op of a stream, which has begun.
absl::Status HostQueue::EndFirst(std::deque<Pending>& stream) {
  Pending& op = stream.front();
  for (const auto& work : op.works) {
    if (absl::Status s = work->Wait(); !s.ok()) return Waiting(op.index, s);
  }
  if (options_.recorder->on()) {
    Steady::time_point done = op.works.empty() ? Steady::now() : op.issued;
    for (const auto& work : op.works) done = std::max(done, work->done_at().value_or(Steady::now()));
    const Op& its = OpAt(op.index);
    options_.recorder->Add({Print(its, *options_.inventory), its.stream, op.issued, done});
  }
  if (op.task.end) op.task.end();
  stream.pop_front();
  return absl::OkStatus();
}

// Ends and begins what can be without waiting.
absl::Status HostQueue::Advance() {
  for (bool changed = true; changed;) {
    changed = false;
    for (auto& stream : pending_) {
      const auto done = [](const Pending& op) {
        return op.begun && std::all_of(op.works.begin(), op.works.end(), [](const auto& w) { return w->done(); });
      };
      while (!stream.empty() && done(stream.front())) {
        if (absl::Status s = EndFirst(stream); !s.ok()) return s;
        changed = true;
      }
      for (Pending& op : stream) {
        if (op.begun || !MayBegin(op)) continue;
        Start(op);
        changed = true;
      }
    }
  }
  return absl::OkStatus();
}

HostQueue::Pending* HostQueue::NotBegun(int32_t index) {
  for (Pending& op : StreamOf(index)) {
    if (op.index == index) return op.begun ? nullptr : &op;
  }
  return nullptr;
}

// After what it waits for has ended and those of its group before it have begun: earlier ops all.
absl::Status HostQueue::BeginNow(int32_t index) {
  if (NotBegun(index) == nullptr) return absl::OkStatus();
  for (const int32_t w : OpAt(index).waits) {
    if (absl::Status s = Settle(w); !s.ok()) return s;
  }
  std::vector<int32_t> before;
  for (const auto& stream : pending_) {
    for (const Pending& op : stream) {
      if (op.index < index && !op.begun && OpAt(op.index).group == OpAt(index).group) before.push_back(op.index);
    }
  }
  std::sort(before.begin(), before.end());
  for (const int32_t other : before) {
    if (absl::Status s = BeginNow(other); !s.ok()) return s;
  }
  if (Pending* const op = NotBegun(index); op != nullptr) Start(*op);
  return absl::OkStatus();
}

// Waits for the op and for those of its stream before it.
absl::Status HostQueue::Settle(int32_t index) {
  std::deque<Pending>& stream = StreamOf(index);
  while (!stream.empty() && stream.front().index <= index) {
    const int32_t first = stream.front().index;
    if (!stream.front().begun) {
      if (absl::Status s = BeginNow(first); !s.ok()) return s;
      if (stream.empty() || stream.front().index != first) continue;  // it has ended with what it waited for
    }
    // One by one, so that the hang detector knows which op does not end.
    if (listener_ != nullptr) listener_->WaitFor(first, OpAt(first).kind);
    if (absl::Status s = EndFirst(stream); !s.ok()) return s;
    if (absl::Status s = Advance(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// `reached`: the op that waits; negative: none.
absl::Status HostQueue::SettleAll(absl::Span<const int32_t> indices, int32_t reached) {
  if (std::all_of(indices.begin(), indices.end(), [this](int32_t i) { return Ended(i); })) return absl::OkStatus();
  const auto begin = Steady::now();
  for (const int32_t index : indices) {
    if (absl::Status s = Settle(index); !s.ok()) return s;
  }
  if (listener_ != nullptr && reached >= 0) listener_->EndWait(reached, OpAt(reached).kind);
  const auto end = Steady::now();
  waited_ += end - begin;
  options_.recorder->Add({"Wait", Stream::kCompute, begin, end});
  return absl::OkStatus();
}

absl::Status HostQueue::Finish() {
  std::vector<int32_t> last;
  for (const auto& stream : pending_) {
    if (!stream.empty()) last.push_back(stream.back().index);
  }
  return SettleAll(last, -1);
}

}  // namespace

std::unique_ptr<Queue> MakeHostQueue(const QueueOptions& options) { return std::make_unique<HostQueue>(options); }

}  // namespace muster::engine
