// A device on a CPU that runs what is issued at once, enforces CUDA's rules for captures, and has graphs: during a
// capture LibTorch's operators and the collectives of TapedGroup are put on a tape, and at its end the memory is as
// before; a launch plays the tape. So whatever else the host does in a step, such as passing a number that changes, is
// done once at the capture and not at launches, as on a GPU. Copies of the state run as late as a device may run them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "worker/collectives/group.h"
#include "worker/engine/failed.h"
#include "worker/engine/stream_driver.h"

namespace muster::engine {

// What one thread's operators did between Begin and End.
class Tape {
 public:
  static Tape*& Current() {
    thread_local Tape* current = nullptr;
    return current;
  }

  void Begin() {
    Current() = this;
    c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, true);
  }
  void End() {
    c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Fake, false);
    Current() = nullptr;
    for (const auto& [storage, saved] : before_) {
      std::memcpy(saved.first.mutable_data(), saved.second.data(), saved.second.size());
    }
    before_.clear();
  }
  void Play() const {
    const c10::AutoGradMode off(false);
    for (const auto& entry : entries_) entry();
  }

  void Add(std::function<void()> entry) { entries_.push_back(std::move(entry)); }
  // Before the capture writes it.
  void Save(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const c10::Storage& storage = tensor.storage();
    const auto [at, added] = before_.try_emplace(storage.unsafeGetStorageImpl(), storage, std::vector<char>());
    if (added && storage.nbytes() > 0) {
      const char* const data = static_cast<const char*>(storage.data());
      at->second.second.assign(data, data + storage.nbytes());
    }
  }

 private:
  std::vector<std::function<void()>> entries_;
  std::map<const void*, std::pair<c10::Storage, std::vector<char>>> before_;
};

inline void EachTensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) visit(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
}

// Every operator below autograd, which has then divided composite ones and kept what their backward reads. The key is
// one below autograd's for which LibTorch has no fallback of its own.
inline void PutOnTape(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inner(c10::DispatchKey::Fake);
  Tape& tape = *Tape::Current();
  const c10::FunctionSchema& schema = op.schema();
  static const std::set<std::string> kReads = {"aten::item", "aten::_local_scalar_dense", "aten::equal"};
  TORCH_CHECK(!kReads.contains(schema.name()),
              "operation not permitted when stream is capturing: the host reads the device");
  // They change running statistics, which their schemas do not say.
  static const std::set<std::string> kWrites = {"aten::native_batch_norm", "aten::batch_norm_update_stats"};
  const size_t given = schema.arguments().size();
  const torch::jit::Stack arguments(stack->end() - static_cast<ptrdiff_t>(given), stack->end());
  for (size_t i = 0; i < given; ++i) {
    const c10::AliasInfo* const alias = schema.arguments()[i].alias_info();
    const bool writes = (alias != nullptr && alias->isWrite()) || kWrites.contains(schema.name());
    if (writes) EachTensor(arguments[i], [&](const at::Tensor& t) { tape.Save(t); });
  }
  op.callBoxed(stack);
  std::vector<at::Tensor> results;
  const auto returned = stack->end() - static_cast<ptrdiff_t>(schema.returns().size());
  for (auto value = returned; value != stack->end(); ++value) {
    EachTensor(*value, [&](const at::Tensor& t) { results.push_back(t); });
  }
  tape.Add([op, arguments, results] {
    torch::jit::Stack again = arguments;
    op.callBoxed(&again);
    size_t next = 0;
    for (const c10::IValue& value : again) {
      EachTensor(value, [&](const at::Tensor& t) {
        const at::Tensor& there = results[next++];
        if (there.defined() && there.data_ptr() != t.data_ptr()) there.detach().copy_(t);
      });
    }
  });
}

// Collectives of `group`; during a capture, of which the group must know, they are put on the tape.
class TapedGroup final : public collectives::Group {
 public:
  explicit TapedGroup(collectives::Group* group) : group_(*group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::unique_ptr<collectives::Work> AllReduce(at::Tensor values) override {
    return Do([values](auto& g) { return g.AllReduce(values); });
  }
  std::unique_ptr<collectives::Work> AllGather(std::vector<at::Tensor> wholes) override {
    return Do([wholes](auto& g) { return g.AllGather(wholes); });
  }
  std::unique_ptr<collectives::Work> ReduceScatter(std::vector<at::Tensor> wholes) override {
    return Do([wholes](auto& g) { return g.ReduceScatter(wholes); });
  }
  std::unique_ptr<collectives::Work> Broadcast(at::Tensor values, int root) override {
    return Do([=](auto& g) { return g.Broadcast(values, root); });
  }
  std::unique_ptr<collectives::Work> BroadcastShares(std::vector<collectives::RankShare> shares) override {
    return Do([shares](auto& g) { return g.BroadcastShares(shares); });
  }
  std::unique_ptr<collectives::Work> ReduceShares(std::vector<collectives::RankShare> shares) override {
    return Do([shares](auto& g) { return g.ReduceShares(shares); });
  }
  std::unique_ptr<collectives::Work> Send(at::Tensor values, int to) override {
    return Do([=](auto& g) { return g.Send(values, to); });
  }
  std::unique_ptr<collectives::Work> Recv(at::Tensor values, int from) override {
    return Do([=](auto& g) { return g.Recv(values, from); });
  }
  absl::Status Barrier() override { return group_.Barrier(); }
  absl::Status Health() override { return group_.Health(); }
  absl::Status BeginCapture() override {
    capturing_ = true;
    return group_.BeginCapture();
  }
  void EndCapture() override {
    capturing_ = false;
    group_.EndCapture();
  }
  absl::Status Launched() override {
    ++launched;
    return group_.Launched();
  }
  int launched = 0;

 private:
  class Taped final : public collectives::Work {
   public:
    absl::Status Wait() override { return absl::OkStatus(); }
    bool done() const override { return false; }
  };
  template <typename F>
  std::unique_ptr<collectives::Work> Do(F issue) {
    Tape* const tape = Tape::Current();
    if ((tape != nullptr) != capturing_) {
      throw Failed(
          absl::InternalError("a collective is captured and its group does not know, or the other way around"));
    }
    if (tape == nullptr) return issue(group_);
    tape->Add([this, issue] { ThrowIfBad(issue(group_)->Wait()); });
    return std::make_unique<Taped>();
  }

  collectives::Group& group_;
  bool capturing_ = false;
};

// What the test shares with drivers, which outlive neither it nor each other's order of calls.
struct FakeDriverLog {
  // "begin capture", "end capture", "graph", "launch", "destroy graph"; with `all` also each call for events and
  // streams.
  void Add(const std::string& call) {
    const MutexLock lock(mutex);
    calls.push_back(call);
  }
  int Count(const std::string& call) {
    const MutexLock lock(mutex);
    return static_cast<int>(std::count(calls.begin(), calls.end(), call));
  }
  Mutex mutex;
  std::vector<std::string> calls;
  bool all = false;
  // What CUDA says, at a capture's begin, at its end, and when work is issued during one.
  absl::Status begin, end, work;
};

class FakeStreamDriver final : public StreamDriver {
 public:
  explicit FakeStreamDriver(FakeDriverLog& log) : log_(log) {}

  absl::StatusOr<Event> MakeEvent() override {
    events_.push_back(std::make_unique<FakeEvent>());
    return events_.back().get();
  }
  void DestroyEvent(Event) override {}

  absl::Status Record(Event event, Stream stream) override {
    Note(absl::StrCat("record ", Name(event), " on ", Index(stream)));
    *static_cast<FakeEvent*>(event) = {TakesPart(stream) ? capture_ : 0, reached_[Index(stream)]};
    return absl::OkStatus();
  }

  absl::Status Wait(Stream stream, Event event) override {
    Note(absl::StrCat(Index(stream), " waits for ", Name(event)));
    const FakeEvent& seen = *static_cast<FakeEvent*>(event);
    if (IsOfCopies(seen)) EndCopies();
    if (seen.capture != capture_ && seen.capture != 0) return Invalid("an event of another capture is waited for");
    if (seen.capture == 0 && TakesPart(stream)) return Invalid("a captured stream waits for an event from before");
    if (seen.capture != 0) part_.insert(stream);
    Reached& reached = reached_[Index(stream)];
    for (size_t s = 0; s < kDeviceStreams; ++s) reached[s] = std::max(reached[s], seen.reached[s]);
    ++reached[Index(stream)];
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Query(Event event) override {
    if (capturing_) return Invalid("an event is queried during a capture");
    const FakeEvent& seen = *static_cast<FakeEvent*>(event);
    if (seen.capture != 0) return absl::InternalError("an event of a capture is queried");
    if (IsOfCopies(seen) && !std::exchange(asked_, true)) return false;
    if (IsOfCopies(seen)) EndCopies();
    return true;
  }

  void With(Stream stream, absl::FunctionRef<void()> work) override {
    Note(absl::StrCat("work on ", Index(stream)));
    if (stream == kCopyStream) return CopyLater(work);
    if (capturing_ && !TakesPart(stream)) Invalid("work on a stream that is not captured").IgnoreError();
    if (capturing_) ThrowIfBad(log_.work);
    ++reached_[Index(stream)][Index(stream)];
    work();
  }

  absl::Status BeginCapture() override {
    log_.Add("begin capture");
    if (!log_.begin.ok()) return log_.begin;
    ++capture_;
    capturing_ = true, part_ = {Stream::kCompute}, invalid_ = absl::OkStatus();
    tape_ = std::make_shared<Tape>();
    tape_->Begin();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    log_.Add("end capture");
    for (const Stream stream : part_) {
      const size_t s = Index(stream);
      if (reached_[Index(Stream::kCompute)][s] < reached_[s][s]) Invalid("a stream was not joined").IgnoreError();
    }
    tape_->End();
    capturing_ = false, part_.clear();
    if (!invalid_.ok()) return invalid_;
    if (!log_.end.ok()) return log_.end;
    return std::make_unique<FakeGraph>(log_, std::move(tape_));
  }

 private:
  using Reached = std::array<int64_t, kDeviceStreams>;  // how many entries of each stream come before
  struct FakeEvent {
    int capture = 0;  // 0: not of one
    Reached reached{};
  };

  class FakeGraph final : public Graph {
   public:
    FakeGraph(FakeDriverLog& log, std::shared_ptr<Tape> tape) : log_(log), tape_(std::move(tape)) { log_.Add("graph"); }
    ~FakeGraph() override { log_.Add("destroy graph"); }
    absl::Status Launch() override {
      log_.Add("launch");
      tape_->Play();
      return absl::OkStatus();
    }

   private:
    FakeDriverLog& log_;
    const std::shared_ptr<Tape> tape_;
  };

  // When a stream waits for it, or the host has asked for it twice. What kCompute holds is done at once here, so a copy
  // that does not wait for it is refused.
  void CopyLater(absl::FunctionRef<void()> work) {
    Reached& own = reached_[Index(kCopyStream)];
    if (own[Index(Stream::kCompute)] < reached_[Index(Stream::kCompute)][Index(Stream::kCompute)]) {
      throw Failed(absl::InternalError("the state is copied while it is computed"));
    }
    ++own[Index(kCopyStream)];
    copies_ = std::make_shared<Tape>();
    asked_ = false;
    copies_->Begin();
    work();
    copies_->End();
  }
  bool IsOfCopies(const FakeEvent& event) const {
    const size_t copies = Index(kCopyStream);
    return copies_ != nullptr && event.reached[copies] == reached_[copies][copies];
  }
  void EndCopies() { std::exchange(copies_, nullptr)->Play(); }

  static size_t Index(Stream stream) { return static_cast<size_t>(stream); }
  std::string Name(Event event) const {
    const auto at = std::find_if(events_.begin(), events_.end(), [&](const auto& e) { return e.get() == event; });
    return absl::StrCat("event ", at - events_.begin());
  }
  void Note(const std::string& call) {
    if (log_.all) log_.Add(call);
  }
  bool TakesPart(Stream stream) const { return capturing_ && part_.contains(stream); }
  absl::Status Invalid(const std::string& why) {
    if (invalid_.ok()) invalid_ = absl::InternalError(why);
    return invalid_;
  }

  FakeDriverLog& log_;
  std::vector<std::unique_ptr<FakeEvent>> events_;
  std::array<Reached, kDeviceStreams> reached_{};
  std::shared_ptr<Tape> copies_;  // issued and not run yet
  bool asked_ = false;            // for their end
  bool capturing_ = false;
  int capture_ = 0;        // number of the last one
  std::set<Stream> part_;  // streams that the capture has taken in
  absl::Status invalid_;   // why the capture cannot become a graph
  std::shared_ptr<Tape> tape_;
};

}  // namespace muster::engine
