#include "worker/collectives/links.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>

namespace muster::collectives {
namespace {

constexpr int64_t kFirstBytes = 4 << 10, kMostBytes = 32 << 20;
constexpr int64_t kGrowth = 4;
constexpr size_t kMostPings = 25;
// Long enough that neither latency nor a shaper's burst counts.
constexpr double kLongEnoughSeconds = 0.06;

// Less of a message is what any message takes.
constexpr int64_t kCountedBytes = 32 << 10;

// Of the processor.
struct Used {
  double bytes = 0, seconds = 0;
  void Add(int64_t more, absl::Duration took) {
    if (more >= kCountedBytes) bytes += static_cast<double>(more), seconds += absl::ToDoubleSeconds(took);
  }
};
struct UsedBoth {
  Used sending, receiving;
  double bytes_per_second() const {
    if (sending.seconds <= 0 || receiving.seconds <= 0) return 0;
    return 1 / (sending.seconds / sending.bytes + receiving.seconds / receiving.bytes);
  }
};

// Between two ranks. One asks for messages and times them, the other one takes them until the next is announced with no
// bytes.
class Prober {
 public:
  Prober(Group& group, int peer, c10::Device device, const std::function<absl::Duration()>& now,
         const std::function<absl::Duration()>& used, UsedBoth& total)
      : group_(group), peer_(peer), device_(device), now_(now), used_(used), total_(total) {}

  absl::StatusOr<MeasuredLink> Measure(absl::Duration budget);
  absl::Status Serve();

 private:
  at::Tensor Token(double value) const { return at::full({1}, value, at::device(device_).dtype(at::kDouble)); }
  at::Tensor Payload(int64_t bytes) const { return at::zeros({bytes / 4}, at::device(device_).dtype(at::kFloat)); }
  // On a GPU a receive that is posted ahead would hold up the sends behind it.
  bool ahead() const { return device_.is_cpu(); }
  absl::StatusOr<double> Time(int64_t bytes);
  absl::Status Finish(std::unique_ptr<Work> work, const at::Tensor& values) const {
    if (absl::Status s = work->Wait(); !s.ok()) return s;
    if (!device_.is_cpu()) (void)values.flatten().slice(0, 0, 1).cpu();  // waits for the device
    return group_.Health();
  }

  Group& group_;
  const int peer_;
  const c10::Device device_;
  const std::function<absl::Duration()>& now_;
  const std::function<absl::Duration()>& used_;
  UsedBoth& total_;
};

// Seconds from the sending of a message of so many bytes until the other rank's answer to it is here.
absl::StatusOr<double> Prober::Time(int64_t bytes) {
  const at::Tensor size = Token(static_cast<double>(bytes)), ready = Token(0), answer = Token(0);
  const at::Tensor payload = Payload(bytes);
  std::unique_ptr<Work> ready_work, answer_work;
  if (ahead()) ready_work = group_.Recv(ready, peer_), answer_work = group_.Recv(answer, peer_);
  if (absl::Status s = Finish(group_.Send(size, peer_), size); !s.ok()) return s;
  if (ahead()) {
    if (absl::Status s = Finish(std::move(ready_work), ready); !s.ok()) return s;
  }
  const absl::Duration begin = now_(), used = used_();
  const std::unique_ptr<Work> sent = group_.Send(payload, peer_);
  if (!ahead()) answer_work = group_.Recv(answer, peer_);
  if (absl::Status s = Finish(std::move(answer_work), answer); !s.ok()) return s;
  const double seconds = absl::ToDoubleSeconds(now_() - begin);
  if (absl::Status s = sent->Wait(); !s.ok()) return s;
  total_.sending.Add(bytes, used_() - used);
  return std::max(seconds, 1e-9);
}

absl::Status Prober::Serve() {
  at::Tensor size = Token(0);
  std::unique_ptr<Work> next = group_.Recv(size, peer_);
  while (true) {
    if (absl::Status s = Finish(std::move(next), size); !s.ok()) return s;
    const auto bytes = static_cast<int64_t>(size.item<double>());
    if (bytes <= 0) return absl::OkStatus();
    const at::Tensor payload = Payload(bytes), token = Token(1);
    const absl::Duration used = used_();
    std::unique_ptr<Work> taken = group_.Recv(payload, peer_);
    if (ahead()) {
      size = Token(0);
      next = group_.Recv(size, peer_);
      if (absl::Status s = group_.Send(token, peer_)->Wait(); !s.ok()) return s;
    }
    if (absl::Status s = Finish(std::move(taken), payload); !s.ok()) return s;
    total_.receiving.Add(bytes, used_() - used);
    if (absl::Status s = Finish(group_.Send(token, peer_), token); !s.ok()) return s;
    if (!ahead()) size = Token(0), next = group_.Recv(size, peer_);
  }
}

absl::StatusOr<MeasuredLink> Prober::Measure(absl::Duration budget) {
  const double all = absl::ToDoubleSeconds(budget);
  // The first message waits for the other rank, which may still measure another link, opens buffers and wakes threads.
  // Its time counts only if another one would take too long.
  absl::StatusOr<double> taken = Time(4);
  if (!taken.ok()) return taken.status();
  const absl::Duration deadline = now_() + budget - absl::Seconds(2 * *taken);
  const auto left = [&] { return absl::ToDoubleSeconds(deadline - now_()); };
  std::vector<double> trips;
  if (*taken > all / 16) trips.push_back(*taken);
  while (trips.empty() || (trips.size() < kMostPings && left() > 0.75 * all)) {
    taken = Time(4);
    if (!taken.ok()) return taken.status();
    trips.push_back(*taken);
  }
  // On a quiet machine it is close to the median. A pause of a process makes a link look slow, nothing makes it look
  // fast.
  const auto quarter = trips.begin() + static_cast<ptrdiff_t>(trips.size() / 4);
  std::nth_element(trips.begin(), quarter, trips.end());
  const double trip = *quarter;
  MeasuredLink link{.to = peer_, .latency_seconds = trip / 2};

  int64_t bytes = kFirstBytes;
  const auto take = [&]() -> absl::StatusOr<double> {
    const absl::StatusOr<double> seconds = Time(bytes);
    if (!seconds.ok()) return seconds.status();
    // However the round trips varied, a message is not faster than ten times what its whole time says.
    return std::max(*seconds - trip, *seconds / 10);
  };
  while (true) {
    taken = take();
    if (!taken.ok()) return taken.status();
    link.bytes_per_second = static_cast<double>(bytes) / *taken;
    if (*taken >= kLongEnoughSeconds || bytes >= kMostBytes) break;
    // Twice a round trip: the size goes ahead of the message.
    const double most = std::min(1.2 * kLongEnoughSeconds, left() - 2 * trip);
    const auto fits = static_cast<int64_t>(std::max(0.0, most) * link.bytes_per_second * 0.8) / 4 * 4;
    if (fits < bytes + bytes / 2) break;
    bytes = std::min({bytes * kGrowth, fits, kMostBytes});
  }
  // Once more if there is time, for the same reason.
  if (left() > 1.5 * *taken + 2 * trip) {
    taken = take();
    if (!taken.ok()) return taken.status();
    link.bytes_per_second = std::max(link.bytes_per_second, static_cast<double>(bytes) / *taken);
  }
  const at::Tensor end = Token(0);
  if (absl::Status s = Finish(group_.Send(end, peer_), end); !s.ok()) return s;
  return link;
}

}  // namespace

absl::Duration SteadyNow() { return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch()); }

absl::Duration ProcessorTime() {
  timespec used = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return absl::DurationFromTimespec(used);
}

absl::StatusOr<std::vector<MeasuredLink>> MeasureLinks(Group& group, const std::vector<std::pair<int, int>>& pairs,
                                                       absl::Duration budget, c10::Device device,
                                                       const std::function<absl::Duration()>& now,
                                                       const std::function<absl::Duration()>& used) {
  std::vector<MeasuredLink> links;
  std::map<int, int> pairs_of;  // by rank
  int most = 1;
  for (const auto& [first, second] : pairs) most = std::max({most, ++pairs_of[first], ++pairs_of[second]});
  const absl::Duration each = budget / (2 * most);
  for (const auto& [first, second] : pairs) {
    if (group.rank() != first && group.rank() != second) continue;
    const int peer = group.rank() == first ? second : first;
    UsedBoth total;
    for (const int measuring : {first, second}) {
      Prober prober(group, peer, device, now, used, total);
      if (measuring != group.rank()) {
        if (absl::Status s = prober.Serve(); !s.ok()) return s;
        continue;
      }
      absl::StatusOr<MeasuredLink> link = prober.Measure(each);
      if (!link.ok()) return link.status();
      links.push_back(*link);
    }
    links.back().socket_bytes_per_second = total.bytes_per_second();
  }
  return links;
}

}  // namespace muster::collectives
