// The installed program, as whoever installs it asks it.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/temporary_folder.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SelfCheck, NamesTheBackendsOfThisBuild) {
  const TemporaryFolder folder;
  Process trainer = StartTrainer({"--self-check"}, folder.path() + "/log");
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const std::string lines = "\n" + trainer.Output();
  EXPECT_THAT(lines, ContainsRegex("\ncpu LibTorch [0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(lines, HasSubstr("\ngloo\n"));
  EXPECT_THAT(lines, HasSubstr("\ndirect\n"));
#ifdef MUSTER_CUDA
  EXPECT_THAT(lines, ContainsRegex("\ncuda [0-9]+\\.[0-9]+\nnccl [0-9]+\\.[0-9]+\\.[0-9]+\n"));
#else
  EXPECT_THAT(lines, Not(HasSubstr("\ncuda")));
  EXPECT_THAT(lines, Not(HasSubstr("\nnccl")));
#endif
}

TEST(SelfCheck, ACommandIsStillNeededWithoutIt) {
  const TemporaryFolder folder;
  Process trainer = StartTrainer({}, folder.path() + "/log");
  EXPECT_EQ(trainer.Wait(), 2);
}

}  // namespace
}  // namespace muster::trainer
