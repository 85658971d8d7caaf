// Worker daemons that are only streams, thousands of them in one process: each with a connection and one CPU slot of
// its own. They do what worker/agent does with the coordinator: Hello, a full report, a heartbeat and a step of each
// rank a second, what is to run runs, what is to stop has stopped, and when the stream breaks they call again, half a
// second later or a little more.
//
//   Herd herd("unix:/tmp/c.sock", 5000);
//   herd.WaitForContact(5000, absl::Seconds(15));
//
// Thread-safe. The coordinator must be another process: what both need would count twice.
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

  // That are welcome at this moment.
  int in_contact() const { return in_contact_; }
  // False: not so many at once within `patience`.
  bool WaitForContact(int count, absl::Duration patience);

 private:
  class Member;
  class Session;

  void Contact(int change);
  void KeepTime();  // heartbeats and calls that are due

  std::vector<std::shared_ptr<Member>> members_;
  mutable absl::Mutex mutex_;
  std::atomic<int> in_contact_{0};  // changed under the mutex
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread timer_;
};

}  // namespace muster::bench
