#include "worker/agent/local_address.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "absl/strings/match.h"

namespace muster::agent {
namespace {

TEST(LocalAddress, IsThatOfTheWayToTheCoordinator) {
  EXPECT_EQ(*LocalAddressTowards("unix:/run/c.sock"), "127.0.0.1");
  EXPECT_EQ(*LocalAddressTowards("127.0.0.1:9460"), "127.0.0.1");
  EXPECT_EQ(*LocalAddressTowards("localhost:9460"), "127.0.0.1");
  EXPECT_EQ(*LocalAddressTowards("127.0.0.7:9460"), "127.0.0.1") << "all of 127/8 is reached from there";
}

TEST(LocalAddress, OfTheCoordinatorsMachineIsNotLoopbackForItsPeers) {
  const std::string network = AddressForPeers("gpu-head", "127.0.0.1");  // 127.0.1.1 gpu-head
  const absl::StatusOr<Interface> interface = InterfaceOf(network);
  ASSERT_TRUE(interface.ok()) << network << ": " << interface.status();
  ifaddrs* all = nullptr;
  ASSERT_EQ(getifaddrs(&all), 0);
  bool others = false;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    char address[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, address, sizeof address);
    others = others || ((one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_RUNNING) != 0 &&
                        (one->ifa_flags & IFF_LOOPBACK) == 0 && !absl::StartsWith(address, "169.254."));
  }
  freeifaddrs(all);
  EXPECT_EQ(interface->loopback, !others) << network;
}

TEST(LocalAddress, StaysWhereItIsMeant) {
  EXPECT_EQ(AddressForPeers("localhost", "127.0.0.1"), "127.0.0.1") << "a service on one machine";
  EXPECT_EQ(AddressForPeers("127.0.1.1", "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(AddressForPeers("::1", "::1"), "::1");
  EXPECT_EQ(AddressForPeers("gpu-head", "192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(AddressForPeers("gpu-head", "fd00::7"), "fd00::7");
}

TEST(LocalAddress, WithoutAWaySaysWhatToDo) {
  const absl::Status status = LocalAddressTowards("no-such-host.invalid:9460").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "--host")) << status;
}

TEST(InterfaceOf, LoopbackHasItsAddressAndName) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const absl::StatusOr<Interface> interface = InterfaceOf(host);
    ASSERT_TRUE(interface.ok()) << interface.status();
    EXPECT_EQ(if_nametoindex(interface->name.c_str()), 1u) << "Linux creates loopback first in every network namespace";
    EXPECT_TRUE(interface->loopback);
  }
}

TEST(InterfaceOf, WhatThisMachineDoesNotHave) {
  // RFC 5737, section 3: for documentation, on no machine.
  const absl::Status other = InterfaceOf("192.0.2.1").status();
  EXPECT_EQ(other.code(), absl::StatusCode::kNotFound) << other;
  EXPECT_TRUE(absl::StrContains(other.message(), "192.0.2.1")) << other;
  EXPECT_EQ(InterfaceOf("no-such-host.invalid").status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace muster::agent
