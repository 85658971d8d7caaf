#include "worker/collectives/messages.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::collectives {

struct Message {
  uint64_t number = 0;  // of its direction, from 1
  bool sent = false;    // by this rank
  at::Tensor values;
  SteadyPoint deadline;
  std::atomic<int64_t> done_nanoseconds = 0;
};

namespace {

// Bounded, so that a failure is noticed in the middle of a long message.
constexpr size_t kMessageReadAtOnce = size_t{1} << 20;

std::shared_ptr<Message> MakeMessage(bool sent, uint64_t number, at::Tensor values, absl::Duration timeout) {
  auto message = std::make_shared<Message>();
  message->number = number;
  message->sent = sent;
  message->values = std::move(values);
  message->deadline = After(timeout);
  return message;
}

}  // namespace

Messages::Messages(std::unique_ptr<Neighbours> neighbours, absl::Duration timeout)
    : neighbours_(std::move(neighbours)), timeout_(timeout) {}

Messages::~Messages() { Stop(absl::CancelledError("the group has ended")); }

std::shared_ptr<Message> Messages::Send(at::Tensor values) {
  auto message = MakeMessage(/*sent=*/true, ++sent_, std::move(values), timeout_);
  const uint64_t at = (sent_ - 1) % kPosts;
  if (at == 0) {
    posts_.push_back(std::make_unique<Posts>());
    const auto address = reinterpret_cast<uint64_t>(posts_.back().get());
    if (sent_ == 1) {
      neighbours_->own().slot(0).addresses.store(address, std::memory_order_relaxed);
    } else {
      posts_[posts_.size() - 2]->next = address;
    }
  }
  posts_.back()->messages[at] = {reinterpret_cast<uint64_t>(message->values.data_ptr()), message->values.nbytes(),
                                 static_cast<uint64_t>(message->values.scalar_type())};
  neighbours_->own().Raise(&ControlPage::posted, sent_);
  // A receiver that has a message of later Posts has left the first ones.
  const uint64_t received = neighbours_->page(Other()).finished.load(std::memory_order_acquire);
  for (; received > (first_posts_ + 1) * kPosts; ++first_posts_) posts_.pop_front();
  return message;
}

std::shared_ptr<Message> Messages::Recv(at::Tensor values) {
  std::shared_ptr<Message> message;
  bool first = false;
  {
    absl::MutexLock lock(&mutex_);
    message = MakeMessage(/*sent=*/false, ++receives_, std::move(values), timeout_);
    wanted_.push_back(message);
    first = receives_ == 1 && failure_.ok();
  }
  if (first) {
    absl::MutexLock lock(&ending_);
    thread_ = std::thread([this] { Run(); });
  }
  return message;
}

int Messages::ReceiverOf(const Message& message) const { return message.sent ? Other() : neighbours_->rank(); }

bool Messages::Wanted() const { return !wanted_.empty() || !failure_.ok(); }

void Messages::Run() {
  while (true) {
    std::shared_ptr<Message> next;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Messages::Wanted));
      if (!failure_.ok()) return;
      next = std::move(wanted_.front());
      wanted_.pop_front();
    }
    if (absl::Status status = Receive(*next); !status.ok()) return Fail(status);
  }
}

absl::Status Messages::Receive(Message& message) {
  if (absl::Status s = Await(Other(), &ControlPage::posted, message); !s.ok()) return s;
  const absl::StatusOr<Posted> posted = Next(message.number);
  if (!posted.ok()) return posted.status();
  if (posted->bytes != message.values.nbytes() ||
      posted->dtype != static_cast<uint64_t>(message.values.scalar_type())) {
    return absl::UnavailableError(absl::StrCat("ranks disagree: message ", message.number, " of rank ", Other(),
                                               " has ", posted->bytes, " bytes, and ", message.values.nbytes(),
                                               " bytes are expected here, or it has another dtype"));
  }
  std::byte* const to = static_cast<std::byte*>(message.values.data_ptr());
  for (size_t begin = 0; begin < posted->bytes; begin += kMessageReadAtOnce) {
    if (neighbours_->own().failed.load(std::memory_order_acquire) != 0) return Failure();
    const size_t length = std::min(kMessageReadAtOnce, posted->bytes - begin);
    if (absl::Status s = neighbours_->Read(Other(), posted->address + begin, to + begin, length); !s.ok()) return s;
  }
  if (absl::Status s = neighbours_->Believe(Other()); !s.ok()) return s;
  message.done_nanoseconds = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  neighbours_->own().Raise(&ControlPage::finished, message.number);
  return absl::OkStatus();
}

absl::StatusOr<Messages::Posted> Messages::Next(uint64_t number) {
  const uint64_t at = (number - 1) % kPosts;
  if (number == 1) {
    theirs_ = neighbours_->page(Other()).slot(0).addresses.load(std::memory_order_relaxed);
  } else if (at == 0) {
    const absl::Status s = neighbours_->Read(Other(), theirs_ + offsetof(Posts, next), &theirs_, sizeof theirs_);
    if (!s.ok()) return s;
  }
  Posted posted;
  absl::Status status = neighbours_->Read(Other(), theirs_ + at * sizeof(Posted), &posted, sizeof posted);
  if (status.ok()) status = neighbours_->Believe(Other());
  if (!status.ok()) return status;
  return posted;
}

absl::Status Messages::Await(int rank, ControlPage::Counter counter, const Message& message) const {
  absl::Status status = neighbours_->Await(rank, counter, message.number, message.deadline);
  if (absl::IsCancelled(status)) return Failure();
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::UnavailableError(absl::StrCat("rank ", Other(), " did not ", message.sent ? "receive" : "send",
                                             " it within ", absl::FormatDuration(timeout_)));
}

absl::Status Messages::Wait(const Message& message) {
  absl::Status status = Await(ReceiverOf(message), &ControlPage::finished, message);
  if (status.ok()) return status;
  Stop(status);
  return Failure();
}

bool Messages::Done(const Message& message) const {
  return neighbours_->page(ReceiverOf(message)).finished.load(std::memory_order_acquire) >= message.number ||
         neighbours_->own().failed.load(std::memory_order_acquire) != 0 ||
         Left(message.deadline) <= absl::ZeroDuration();
}

void Messages::Abandon(const Message& message) {
  if (neighbours_->page(ReceiverOf(message)).finished.load(std::memory_order_acquire) >= message.number) return;
  Stop(absl::CancelledError("a message was dropped before it was done"));
}

void Messages::Stop(const absl::Status& why) {
  Fail(why);
  absl::MutexLock lock(&ending_);
  if (thread_.joinable()) thread_.join();
}

std::chrono::steady_clock::time_point Messages::DoneAt(const Message& message) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(message.done_nanoseconds));
}

void Messages::Fail(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = why;
  }
  neighbours_->own().Fail();
}

absl::Status Messages::Failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

}  // namespace muster::collectives
