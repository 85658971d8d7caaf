#include "testing/slow_wire.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr int kPacketBytes = 9000;
constexpr std::chrono::duration<double> kLongestQueue(0.25);
using Steady = std::chrono::steady_clock;

// A device in the namespace; from a thread, because only it changes over.
absl::StatusOr<int> MakeDevice(const std::string& network) {
  absl::StatusOr<int> made = absl::UnknownError("");
  std::thread([&] {
    const int space = open(network.c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0) {
      made = absl::ErrnoToStatus(errno, absl::StrCat("cannot enter ", network));
      if (space >= 0) close(space);
      return;
    }
    close(space);
    const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ifreq request = {};
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    std::strncpy(request.ifr_name, "slow0", IFNAMSIZ - 1);
    if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) {
      made = absl::FailedPreconditionError(
          absl::StrCat("no TUN device: ", std::strerror(errno), "; the kernel's module `tun` is needed"));
      if (device >= 0) close(device);
      return;
    }
    made = device;
  }).join();
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlowWire>> SlowWire::Make(const std::array<std::string, 2>& namespaces) {
  std::unique_ptr<SlowWire> wire(new SlowWire());
  for (const int end : {0, 1}) {
    const std::string& network = namespaces[static_cast<size_t>(end)];
    const absl::StatusOr<int> device = MakeDevice(network);
    if (!device.ok()) return device.status();
    wire->devices_[end] = *device;
    const std::string ip = absl::StrCat("nsenter --net=", network, " -- ip ");
    const std::string line = absl::StrCat(ip, "addr add ", Address(end), " peer ", Address(1 - end), " dev slow0 && ",
                                          ip, "link set slow0 mtu ", kPacketBytes, " up");
    if (std::system(line.c_str()) != 0) return absl::FailedPreconditionError(absl::StrCat("failed: ", line));
  }
  wire->threads_.emplace_back([w = wire.get()] { w->Carry(0, 1); });
  wire->threads_.emplace_back([w = wire.get()] { w->Carry(1, 0); });
  return wire;
}

SlowWire::~SlowWire() {
  ending_ = true;
  for (std::thread& thread : threads_) thread.join();
  for (const int device : devices_) {
    if (device >= 0) close(device);
  }
}

void SlowWire::Set(Figures figures) {
  bytes_per_second_ = figures.bits_per_second / 8;
  one_way_seconds_ = absl::ToDoubleSeconds(figures.one_way);
}

// A packet leaves when those before it have been sent, and arrives the latency later. What would wait too long is
// dropped.
void SlowWire::Carry(int from, int to) {
  prctl(PR_SET_TIMERSLACK, 1);
  // Before what else the machine computes. Not everyone may.
  const sched_param first = {.sched_priority = 1};
  (void)sched_setscheduler(0, SCHED_FIFO, &first);
  struct Packet {
    std::vector<char> bytes;
    Steady::time_point arrives;
  };
  std::deque<Packet> under_way;
  Steady::time_point free_at = Steady::now();
  const auto in = [](std::chrono::duration<double> time) { return std::chrono::duration_cast<Steady::duration>(time); };
  while (!ending_) {
    Steady::time_point wake = Steady::now() + std::chrono::milliseconds(50);
    if (!under_way.empty()) wake = std::min(wake, under_way.front().arrives);
    const auto wait = std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(wake - Steady::now()));
    const timespec timeout = {wait.count() / 1'000'000'000, wait.count() % 1'000'000'000};
    pollfd ready = {devices_[from], POLLIN, 0};
    ppoll(&ready, 1, &timeout, nullptr);
    std::vector<char> packet(kPacketBytes);
    for (ssize_t bytes = 0; (bytes = read(devices_[from], packet.data(), packet.size())) > 0;) {
      const Steady::time_point now = Steady::now();
      free_at = std::max(free_at, now);
      if (free_at - now > in(kLongestQueue)) continue;
      free_at += in(std::chrono::duration<double>(static_cast<double>(bytes) / bytes_per_second_));
      under_way.push_back({{packet.begin(), packet.begin() + bytes},
                           free_at + in(std::chrono::duration<double>(one_way_seconds_.load()))});
    }
    for (; !under_way.empty() && under_way.front().arrives <= Steady::now(); under_way.pop_front()) {
      const std::vector<char>& bytes = under_way.front().bytes;
      if (write(devices_[to], bytes.data(), bytes.size()) < 0) continue;  // a full queue drops, as a switch does
    }
  }
}

}  // namespace muster
