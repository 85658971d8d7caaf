#include "common/rpc/self_owned.h"

#include <gtest/gtest.h>

namespace muster::rpc {
namespace {

class Fake : public SelfOwned<Fake> {
 public:
  explicit Fake(bool* lives) : lives_(lives) { *lives_ = true; }
  ~Fake() { *lives_ = false; }
  void OnDone() { Release(); }

 private:
  bool* const lives_;
};

TEST(SelfOwned, LivesUntilItIsDone) {
  bool lives = false;
  Fake* fake = Fake::Make(&lives).get();
  EXPECT_TRUE(lives) << "gRPC has only this pointer";
  fake->OnDone();
  EXPECT_FALSE(lives);
}

TEST(SelfOwned, WhoeverHoldsAShareKeepsIt) {
  bool lives = false;
  Fake* fake = Fake::Make(&lives).get();
  std::shared_ptr<Fake> posted = fake->shared_from_this();
  fake->OnDone();
  EXPECT_TRUE(lives);
  posted.reset();
  EXPECT_FALSE(lives);
}

}  // namespace
}  // namespace muster::rpc
