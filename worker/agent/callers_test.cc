#include "worker/agent/callers.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

namespace muster::agent {
namespace {

// One rank must not use up the daemon's descriptors.
TEST(Callers, AUserHasSoManyOpenConnections) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  Callers callers("/nowhere");
  std::vector<std::array<int, 2>> open(1025);
  for (std::array<int, 2>& pair : open) ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  for (size_t i = 0; i < 1024; ++i) ASSERT_TRUE(callers.Connected(open[i][0]).ok()) << i;
  EXPECT_EQ(callers.Connected(open[1024][0]).code(), absl::StatusCode::kResourceExhausted);
  close(open[3][0]);
  EXPECT_TRUE(callers.Connected(open[1024][0]).ok()) << "one was closed";
  int again[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, again), 0);
  ASSERT_EQ(again[0], open[3][0]) << "the least number that is free";
  EXPECT_EQ(callers.Connected(again[0]).code(), absl::StatusCode::kResourceExhausted);
  close(open[5][0]);
  EXPECT_TRUE(callers.Connected(again[0]).ok()) << "its number was that of another connection";
  for (const std::array<int, 2>& pair : open) close(pair[1]);
}

}  // namespace
}  // namespace muster::agent
