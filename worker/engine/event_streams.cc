#include <array>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "worker/engine/stream_queue.h"

namespace muster::engine {
namespace {

// Marks are events. Events are used again: a step makes as many marks as the one before.
class EventStreams final : public Streams {
 public:
  explicit EventStreams(std::unique_ptr<StreamDriver> driver) : driver_(std::move(driver)) {}
  ~EventStreams() override {
    for (const StreamDriver::Event event : events_) driver_->DestroyEvent(event);
    for (const StreamDriver::Event event : free_) driver_->DestroyEvent(event);
    for (const auto& event : {computed_, copied_}) {
      if (event.has_value()) driver_->DestroyEvent(*event);
    }
  }

  // Each stream waits for the ends of all: two marks a stream would do, but this is once a step.
  absl::Status Begin() override {
    std::array<Mark, kStreams> ends{};
    for (size_t s = 0; s < kStreams; ++s) {
      const absl::StatusOr<Mark> mark = Record(static_cast<Stream>(s));
      if (!mark.ok()) return mark.status();
      ends[s] = *mark;
    }
    for (size_t s = 0; s < kStreams; ++s) {
      if (absl::Status status = Wait(static_cast<Stream>(s), ends); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Mark> Run(Stream stream, absl::Span<const Mark> after, absl::FunctionRef<void()> work) override {
    if (absl::Status status = Wait(stream, after); !status.ok()) return status;
    driver_->With(stream, work);
    return Record(stream);
  }

  absl::StatusOr<bool> Reached(Mark mark) override { return driver_->Query(EventOf(mark)); }

  void Forget(Mark mark) override {
    for (; first_ <= mark && !events_.empty(); ++first_) {
      free_.push_back(events_.front());
      events_.pop_front();
    }
  }

  absl::Status Copy(absl::FunctionRef<void()> first, absl::FunctionRef<void()> rest) override {
    for (auto* event : {&computed_, &copied_}) {
      if (event->has_value()) continue;
      const absl::StatusOr<StreamDriver::Event> made = driver_->MakeEvent();
      if (!made.ok()) return made.status();
      *event = *made;
    }
    driver_->With(Stream::kCompute, first);
    absl::Status status = driver_->Record(*computed_, Stream::kCompute);
    if (status.ok()) status = driver_->Wait(kCopyStream, *computed_);
    if (!status.ok()) return status;
    driver_->With(kCopyStream, rest);
    return driver_->Record(*copied_, kCopyStream);
  }
  absl::Status AfterCopy() override { return driver_->Wait(Stream::kCompute, *copied_); }
  absl::StatusOr<bool> Copied() override { return copied_.has_value() ? driver_->Query(*copied_) : true; }

  bool captures() const override { return true; }

  absl::Status BeginCapture() override {
    if (absl::Status status = driver_->BeginCapture(); !status.ok()) return status;
    before_capture_ = events_.size();
    const absl::Status forked = Fork();
    if (!forked.ok()) EndCapture().status().IgnoreError();  // `forked` says why
    return forked;
  }

  absl::StatusOr<std::unique_ptr<Graph>> EndCapture() override {
    const absl::Status joined = Join();
    absl::StatusOr<std::unique_ptr<Graph>> graph = driver_->EndCapture();
    for (; events_.size() > before_capture_; events_.pop_back()) free_.push_back(events_.back());
    if (!joined.ok()) return joined;
    return graph;
  }

 private:
  static constexpr std::array<Stream, kStreams - 1> Others() {
    std::array<Stream, kStreams - 1> others{};
    size_t n = 0;
    for (size_t s = 0; s < kStreams; ++s) {
      if (static_cast<Stream>(s) != Stream::kCompute) others[n++] = static_cast<Stream>(s);
    }
    return others;
  }

  // The capture begins on kCompute, and takes in a stream that waits for it.
  absl::Status Fork() {
    const absl::StatusOr<Mark> begin = Record(Stream::kCompute);
    if (!begin.ok()) return begin.status();
    for (const Stream stream : Others()) {
      if (absl::Status status = Wait(stream, {*begin}); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Status Join() {
    for (const Stream stream : Others()) {
      const absl::StatusOr<Mark> end = Record(stream);
      if (!end.ok()) return end.status();
      if (absl::Status status = Wait(Stream::kCompute, {*end}); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  StreamDriver::Event EventOf(Mark mark) const { return events_[mark - first_]; }

  absl::StatusOr<Mark> Record(Stream stream) {
    if (free_.empty()) {
      const absl::StatusOr<StreamDriver::Event> event = driver_->MakeEvent();
      if (!event.ok()) return event.status();
      free_.push_back(*event);
    }
    if (absl::Status status = driver_->Record(free_.back(), stream); !status.ok()) return status;
    events_.push_back(free_.back());
    free_.pop_back();
    return first_ + events_.size() - 1;
  }

  absl::Status Wait(Stream stream, absl::Span<const Mark> marks) {
    for (const Mark mark : marks) {
      if (absl::Status status = driver_->Wait(stream, EventOf(mark)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<StreamDriver> driver_;
  std::deque<StreamDriver::Event> events_;  // by mark, from first_ on
  Mark first_ = 0;
  std::vector<StreamDriver::Event> free_;
  // Of the last Copy: what it waits for, and its end. No marks, because no step's Forget ends it.
  std::optional<StreamDriver::Event> computed_, copied_;
  size_t before_capture_ = 0;  // how many events_ there were when the last capture began
};

}  // namespace

std::unique_ptr<Streams> MakeEventStreams(std::unique_ptr<StreamDriver> driver) {
  return std::make_unique<EventStreams>(std::move(driver));
}

}  // namespace muster::engine
