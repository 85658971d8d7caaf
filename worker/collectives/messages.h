// Messages between two ranks on one machine. The sender posts where its tensor is; a thread of the receiver's copies it
// from there, in the order of the receives, while both compute. No message waits for those of the other direction.
//
// A sender's tensors may be read until its Wait has returned. If the sender fails earlier, it sets the flag in its
// control page before they are reused, and the receiver checks that flag before it accepts a message.
//
// Send and Recv are called by one thread, everything else by any.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/collectives/neighbours.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {

struct Message;  // one in flight

class Messages {
 public:
  // `neighbours`: two ranks, which use its control pages for nothing else. `timeout`: of a message, from its issue.
  Messages(std::unique_ptr<Neighbours> neighbours, absl::Duration timeout);
  // Stops.
  ~Messages();
  Messages(const Messages&) = delete;

  // `values` have elements. The k-th message that one rank sends is the k-th that the other one receives.
  std::shared_ptr<Message> Send(at::Tensor values);
  std::shared_ptr<Message> Recv(at::Tensor values);
  // Returns when the receiver has the message. Unavailable: the deadline passed, the other rank has ended or aborted,
  // or the message is of another size or dtype; this rank's tensors are then no longer written.
  absl::Status Wait(const Message& message);
  // Whether Wait would return at once.
  bool Done(const Message& message) const;
  // For a message that will not be waited for: stops, unless the receiver has it.
  void Abandon(const Message& message);
  // Fails the messages in flight and all later ones. This rank's tensors are no longer written.
  void Stop(const absl::Status& why);

  // The first failure, or OK.
  absl::Status Failure() const;

  // After Wait, of a receiver: when it had the message.
  static std::chrono::steady_clock::time_point DoneAt(const Message& message);

 private:
  // What the receiver reads in the sender's memory. A chain, so that a sender never waits for a free place.
  struct Posted {
    uint64_t address = 0, bytes = 0, dtype = 0;
  };
  static constexpr uint64_t kPosts = 64;
  struct Posts {
    std::array<Posted, kPosts> messages;
    uint64_t next = 0;  // the address of the next Posts; set before the first of its messages is posted
  };

  int Other() const { return 1 - neighbours_->rank(); }
  // The rank that receives the message: its page counts those that it has.
  int ReceiverOf(const Message& message) const;
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();
  absl::Status Receive(Message& message);
  absl::StatusOr<Posted> Next(uint64_t number);
  absl::Status Await(int rank, ControlPage::Counter counter, const Message& message) const;
  void Fail(const absl::Status& why);

  const std::unique_ptr<Neighbours> neighbours_;
  const absl::Duration timeout_;

  // Of the thread that sends: `sent_` messages, in `posts_` from Posts number `first_posts_`.
  uint64_t sent_ = 0, first_posts_ = 0;
  std::deque<std::unique_ptr<Posts>> posts_;
  // Of the thread that receives: the address of the sender's Posts of the next message.
  uint64_t theirs_ = 0;

  mutable absl::Mutex mutex_;
  std::deque<std::shared_ptr<Message>> wanted_ ABSL_GUARDED_BY(mutex_);  // to be received, in order
  uint64_t receives_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first

  absl::Mutex ending_;
  std::thread thread_ ABSL_GUARDED_BY(ending_);  // from the first receive
};

}  // namespace muster::collectives
