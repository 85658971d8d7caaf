#include "coordinator/rpc/sign_ins.h"

#include <gtest/gtest.h>

namespace muster::rpc {
namespace {

TEST(SignIns, ACodeWorksOnceAndForAMinute) {
  FakeClock clock;
  SignIns codes("http://127.0.0.1:7080", &clock);
  const std::string first = codes.Offer({false, "a-token", "ann", "viewer"}).value();
  const std::string second = codes.Offer({true, "", "root", "local"}).value();
  EXPECT_NE(first, second);
  EXPECT_EQ(first.size(), 32u);

  EXPECT_FALSE(codes.Redeem("").has_value());
  EXPECT_FALSE(codes.Redeem(first.substr(1)).has_value());
  const std::optional<Credential> ann = codes.Redeem(first);
  ASSERT_TRUE(ann.has_value());
  EXPECT_EQ(ann->token, "a-token");
  EXPECT_EQ(ann->user, "ann");
  EXPECT_FALSE(ann->local);
  EXPECT_FALSE(codes.Redeem(first).has_value()) << "used";

  clock.Advance(SignIns::kLife);
  EXPECT_FALSE(codes.Redeem(second).has_value()) << "too old";
}

TEST(SignIns, TheNumberOfWaitingCodesIsBounded) {
  FakeClock clock;
  SignIns codes("http://127.0.0.1:7080", &clock);
  for (size_t i = 0; i < SignIns::kMostCodes; ++i) ASSERT_TRUE(codes.Offer({}).ok());
  EXPECT_EQ(codes.Offer({}).status().code(), absl::StatusCode::kResourceExhausted);
  clock.Advance(SignIns::kLife);
  EXPECT_TRUE(codes.Offer({}).ok()) << "old codes make room";
}

}  // namespace
}  // namespace muster::rpc
