#include "worker/agent/local_address.h"

#include <gtest/gtest.h>
#include <net/if.h>

#include "absl/strings/match.h"

namespace muster::agent {
namespace {

TEST(LocalAddress, IsThatOfTheWayToTheCoordinator) {
  EXPECT_EQ(*LocalAddressTowards("unix:/run/c.sock"), "127.0.0.1");
  EXPECT_EQ(*LocalAddressTowards("127.0.0.1:9460"), "127.0.0.1");
  EXPECT_EQ(*LocalAddressTowards("localhost:9460"), "127.0.0.1");
  EXPECT_EQ(*LocalAddressTowards("127.0.0.7:9460"), "127.0.0.1") << "all of 127/8 is reached from there";
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
