// Several hosts on one wire, inside this machine: network namespaces, each with its own interface on one bridge, in a
// network without a way out. They disappear with the process.
//
//   auto hosts = Hosts::Make(3);
//   // {"/usr/bin/nsenter", "--net=...", "--"}: put before a command, it runs on host 1, whose address is 10.77.0.2
//   hosts->Enter(1);
//
// Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::cluster {

class Hosts {
 public:
  // Moves this process out of the machine's network for good: once for each process, before it has other threads.
  // FailedPrecondition: the kernel forbids it (neither root nor user namespaces), or a program is missing.
  static absl::StatusOr<Hosts> Make(int count);
  ~Hosts();
  Hosts(Hosts&& other) noexcept;
  Hosts(const Hosts&) = delete;

  std::string Address(int host) const;
  std::vector<std::string> Enter(int host) const;
  // Its network namespace, as a path.
  std::string Namespace(int host) const;
  // Bytes that the host has sent over the wire.
  absl::StatusOr<uint64_t> BytesSent(int host) const;
  // Unplugs its cable, or plugs it in again.
  absl::Status Connect(int host, bool connected) const;
  // Silently drops what one host sends to another; the other direction works. `lost` false: ends that.
  absl::Status Lose(int from, int to, bool lost) const;

 private:
  Hosts() = default;
  absl::Status Add(int host);

  std::vector<pid_t> holders_;  // a process in each namespace, which keeps it
};

}  // namespace muster::cluster
