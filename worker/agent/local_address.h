// Finds the address at which other machines reach this one, and the network interface that has it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace muster::agent {

// The address from which this machine reaches `coordinator` ("unix:/path" or "HOST:PORT"), by the kernel's routes, made
// one for peers; nothing is sent. A Unix socket's is 127.0.0.1. Unavailable: HOST has no address, or no route leads to
// it.
absl::StatusOr<std::string> LocalAddressTowards(const std::string& coordinator);

// `own`, but for a loopback address that this machine has towards a coordinator whose name is no loopback's: on the
// coordinator's machine, Debian's installer makes its name 127.0.1.1 (/etc/hosts), where no other machine reaches it.
// Then the address of the default route, without one that of the first interface that runs (IFF_RUNNING), link-local
// ones left out; `own` if there is none.
std::string AddressForPeers(const std::string& coordinator_host, const std::string& own);

struct Interface {
  std::string name;  // "eth0"
  bool loopback = false;
};

// The network interface that has `host`, a name or an address of this machine. NotFound: no interface has it, for
// example behind NAT. Unavailable: the name has no address.
absl::StatusOr<Interface> InterfaceOf(const std::string& host);

}  // namespace muster::agent
