#include "worker/agent/local_address.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace muster::agent
