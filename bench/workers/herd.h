// Thousands of worker daemons reduced to their streams, in one process: each with its own connection and one CPU slot.
// They treat the coordinator as worker/agent does: Hello, a full report, a heartbeat and a step of each rank every
// second; desired ranks run, and the others have stopped; when the stream breaks they call again after half a second or
// a little more.
//
//   Herd herd("unix:/tmp/c.sock", 5000);
//   herd.WaitForContact(5000, absl::Seconds(15));
//
// Thread-safe. The coordinator must be another process, so that its cost is counted apart.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace muster::bench {

class Herd {
 public:
  Herd(const std::string& address, int count);
  ~Herd();  // breaks all streams
  Herd(const Herd&) = delete;

  // Those that the coordinator currently welcomes.
  int in_contact() const { return in_contact_; }
  // False: fewer at the same time within `patience`.
  bool WaitForContact(int count, absl::Duration patience);

 private:
  struct Member;

  void Contact(int change);
  void KeepTime();  // sends heartbeats and makes calls that are due

  absl::Mutex mutex_;
  std::atomic<int> in_contact_{0};  // changed under the mutex
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Member>> members_;  // they call Contact until they are gone
  std::thread timer_;
};

}  // namespace muster::bench
