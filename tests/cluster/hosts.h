// Several hosts on one wire, inside this machine: network namespaces, each with an interface of its own on one bridge,
// in a network that has no way out. Everything is gone when the process is.
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
  // Takes this process out of the machine's network for good: once a process, before it has other threads.
  // FailedPrecondition: the kernel does not let us (neither root nor user namespaces), or a program is missing.
  static absl::StatusOr<Hosts> Make(int count);
  ~Hosts();
  Hosts(Hosts&& other) noexcept;
  Hosts(const Hosts&) = delete;

  std::string Address(int host) const;
  std::vector<std::string> Enter(int host) const;
  // Of what the host has sent over the wire.
  absl::StatusOr<uint64_t> BytesSent(int host) const;
  // Its cable is pulled, or put in again.
  absl::Status Connect(int host, bool connected) const;
  // What one host sends to another is lost on the wire, and nobody is told; the other way goes on. Or no longer.
  absl::Status Lose(int from, int to, bool lost) const;

 private:
  Hosts() = default;
  absl::Status Add(int host);

  std::vector<pid_t> holders_;  // a process in each namespace, which keeps it
};

}  // namespace muster::cluster
