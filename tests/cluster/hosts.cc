#include "tests/cluster/hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace muster::cluster {
namespace {

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file.fail() ? absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path)) : absl::OkStatus();
}

// Creates a private network and the right to change it.
absl::Status LeaveTheNetwork() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (user == 0 && unshare(CLONE_NEWNET) == 0) return absl::OkStatus();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no network namespace for this process (", strerror(errno),
                     "): run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1)"));
  }
  if (absl::Status status = Write("/proc/self/setgroups", "deny"); !status.ok()) return status;
  if (absl::Status status = Write("/proc/self/uid_map", absl::StrCat("0 ", user, " 1")); !status.ok()) return status;
  return Write("/proc/self/gid_map", absl::StrCat("0 ", group, " 1"));
}

// Runs a shell command made of our own constants; returns its output or its error.
absl::StatusOr<std::string> Shell(const std::string& line) {
  FILE* pipe = popen(absl::StrCat("(", line, ") 2>&1").c_str(), "re");
  if (pipe == nullptr) return absl::ErrnoToStatus(errno, "no shell");
  std::string out;
  for (int c = fgetc(pipe); c != EOF; c = fgetc(pipe)) out.push_back(static_cast<char>(c));
  if (pclose(pipe) == 0) return out;
  return absl::FailedPreconditionError(absl::StrCat(line, ": ", absl::StripAsciiWhitespace(out),
                                                    " (needs Debian's iproute2, and a kernel with veth and bridges)"));
}

// A process that only holds a new network namespace, and ends with this one.
absl::StatusOr<pid_t> StartHolder() {
  int ready[2];
  if (pipe2(ready, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "no pipe");
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char good = unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
    if (write(ready[1], &good, 1) != 1 || good != 'y') _exit(1);
    while (true) pause();
  }
  close(ready[1]);
  char good = 'n';
  const bool reported = pid > 0 && read(ready[0], &good, 1) == 1;
  close(ready[0]);
  if (!reported || good != 'y') return absl::FailedPreconditionError("no second network namespace");
  return pid;
}

}  // namespace

absl::StatusOr<Hosts> Hosts::Make(int count) {
  if (absl::Status status = LeaveTheNetwork(); !status.ok()) return status;
  if (auto made = Shell("ip link set lo up && ip link add wire type bridge && ip link set wire up"); !made.ok()) {
    return made.status();
  }
  Hosts hosts;
  for (int host = 0; host < count; ++host) {
    if (absl::Status status = hosts.Add(host); !status.ok()) return status;
  }
  return hosts;
}

Hosts::Hosts(Hosts&& other) noexcept : holders_(std::exchange(other.holders_, {})) {}

Hosts::~Hosts() {
  for (const pid_t holder : holders_) {
    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);
  }
}

absl::Status Hosts::Add(int host) {
  const absl::StatusOr<pid_t> holder = StartHolder();
  if (!holder.ok()) return holder.status();
  holders_.push_back(*holder);
  const std::string inside = absl::StrCat("nsenter --net=/proc/", *holder, "/ns/net -- ip ");
  return Shell(absl::StrCat("ip link add cable", host, " type veth peer name eth0 netns ", *holder,  //
                            " && ip link set cable", host, " master wire up",                        //
                            " && ", inside, "link set lo up",                                        //
                            " && ", inside, "addr add ", Address(host), "/24 dev eth0",              //
                            " && ", inside, "link set eth0 up"))
      .status();
}

std::string Hosts::Address(int host) const { return absl::StrCat("10.77.0.", host + 1); }

std::vector<std::string> Hosts::Enter(int host) const {
  return {"/usr/bin/nsenter", absl::StrCat("--net=", Namespace(host)), "--"};
}

std::string Hosts::Namespace(int host) const {
  return absl::StrCat("/proc/", holders_.at(static_cast<size_t>(host)), "/ns/net");
}

absl::StatusOr<uint64_t> Hosts::BytesSent(int host) const {
  // What the host sends, the other end of its cable receives. Two lines: the field names, then the values, bytes first.
  const absl::StatusOr<std::string> shown =
      Shell(absl::StrCat("ip -s link show cable", host, " | grep -A1 RX: | tail -n1 | awk '{print $1}'"));
  if (!shown.ok()) return shown.status();
  uint64_t bytes = 0;
  if (!absl::SimpleAtoi(*shown, &bytes)) return absl::InternalError(absl::StrCat("no number of bytes: ", *shown));
  return bytes;
}

// Directs the traffic to an Ethernet address that no interface has.
absl::Status Hosts::Lose(int from, int to, bool lost) const {
  const std::string inside =
      absl::StrCat("nsenter --net=/proc/", holders_.at(static_cast<size_t>(from)), "/ns/net -- ");
  const std::string neighbour = absl::StrCat(Address(to), " dev eth0");
  return Shell(lost ? absl::StrCat(inside, "ip neigh replace ", neighbour, " lladdr 02:00:00:00:77:99 nud permanent")
                    : absl::StrCat(inside, "ip neigh del ", neighbour))
      .status();
}

absl::Status Hosts::Connect(int host, bool connected) const {
  return Shell(absl::StrCat("ip link set cable", host, connected ? " up" : " down")).status();
}

}  // namespace muster::cluster
