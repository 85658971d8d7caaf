#include "bench/workers/herd.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "testing/fake_worker.h"

namespace muster::bench {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(20);
constexpr absl::Duration kHeartbeat = absl::Seconds(1);
constexpr absl::Duration kCallAgain = absl::Milliseconds(500);

}  // namespace

// Used by the timer's thread alone.
struct Herd::Member {
  Member(Herd* herd, const std::string& address, int number)
      : share(number % 1000 / 4000.0), worker(address, Options(herd, number)) {}

  static FakeWorker::Options Options(Herd* herd, int number) {
    const std::string name = absl::StrCat("node-", number);
    return {.node = name, .incarnation = "bench", .boot = name, .obedient = true, .on_contact = [herd](bool contact) {
              herd->Contact(contact ? 1 : -1);
            }};
  }

  // Sends a heartbeat or calls again when it is due.
  void Tick(absl::Time now) {
    if (worker.ended()) {
      if (connected) due = now + kCallAgain * (1 + share);
      connected = false;
      if (now < due) return;
      worker.Connect();
      connected = true;
      due = now;
    } else if (worker.welcome() && due == absl::InfinitePast()) {
      due = now + kHeartbeat * (4 * share);  // workers that were started one by one do not beat together
    } else if (worker.welcome() && now >= due) {
      due = now + kHeartbeat;
      worker.SendHeartbeat(++heartbeats);
      worker.SendStep(heartbeats);
    }
  }

  const double share;  // of the delay that each adds for itself
  FakeWorker worker;
  bool connected = true;
  absl::Time due = absl::InfinitePast();
  uint64_t heartbeats = 0;
};

Herd::Herd(const std::string& address, int count) {
  members_.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) members_.push_back(std::make_unique<Member>(this, address, i));
  timer_ = std::thread([this] { KeepTime(); });
}

Herd::~Herd() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  timer_.join();
  for (const auto& member : members_) member->worker.Break();
}

void Herd::Contact(int change) {
  absl::MutexLock lock(&mutex_);
  in_contact_ += change;
}

bool Herd::WaitForContact(int count, absl::Duration patience) {
  absl::MutexLock lock(&mutex_);
  const auto enough = [this, count] { return in_contact_ >= count; };
  return mutex_.AwaitWithTimeout(absl::Condition(&enough), patience);
}

void Herd::KeepTime() {
  while (true) {
    for (const auto& member : members_) member->Tick(absl::Now());
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&ending_), kTick)) return;
  }
}

}  // namespace muster::bench
