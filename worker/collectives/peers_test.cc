#include "worker/collectives/peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "worker/collectives/memory_key_value.h"

namespace muster::collectives {
namespace {

using ::testing::HasSubstr;

TEST(Peers, NamesTheOneThatIsGoneAndTheOneThatIsBehind) {
  MemoryKeyValue rendezvous;
  std::vector<std::unique_ptr<Peers>> peers;
  for (int rank = 0; rank < 4; ++rank) {
    peers.push_back(Peers::Join(rank, 5, "world", "127.0.0.1", rendezvous).value());
  }
  for (int rank : {0, 1, 3}) peers[static_cast<size_t>(rank)]->Issue();
  peers[0]->Issue();
  peers[3]->Issue();
  peers[2].reset();
  const std::string found = peers[0]->Diagnose();
  EXPECT_THAT(found, HasSubstr("rank 1 lags (it has issued 1 collectives, this rank 2)"));
  EXPECT_THAT(found, HasSubstr("rank 2 is gone"));
  EXPECT_THAT(found, HasSubstr("rank 4 never came"));
  EXPECT_THAT(found, ::testing::Not(HasSubstr("rank 3")));
}

TEST(Peers, AForeignAnswerIsNotTheRank) {
  MemoryKeyValue rendezvous;
  const auto one = Peers::Join(0, 2, "a", "127.0.0.1", rendezvous).value();
  const auto other = Peers::Join(0, 2, "b", "127.0.0.1", rendezvous).value();
  ASSERT_TRUE(rendezvous.Set("peers/a/1", rendezvous.Wait("peers/b/0", absl::ZeroDuration()).value()).ok());
  EXPECT_THAT(one->Diagnose(), HasSubstr("rank 1 is gone (another process has its port)"));
}

TEST(Peers, AnAddressThatIsNotOursIsRefused) {
  MemoryKeyValue rendezvous;
  const auto joined = Peers::Join(0, 2, "a", "192.0.2.1", rendezvous);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(joined.status().message()), HasSubstr("is that an address of this machine?"));
}

}  // namespace
}  // namespace muster::collectives
