// bench/workers with 100 workers: none is lost when the coordinator is killed, and the limits hold here too.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

namespace {

// The store is in memory, so that this machine's disk is not measured. A test shares its cores: times only bound hangs,
// a median shows a coordinator that is held up all the time, and the detection outlasts a pause of the herd. Memory:
// one plan takes up to 252 MiB (strategies/budget.h), 64 MiB of answers are kept (PlanPool), and each thread that made
// a plan keeps some of what it freed, which depends on the cores.
TEST(Workers, AHundredRegisterAndComeBackWithoutAFalseDeath) {
  const int status = system(
      "bench/workers/workers --workers 100 --jobs 50 --readers 100 --submissions 100 --medians --submit-ms 500 "
      "--get-ms 500 --crowd-submit-ms 1000 --plan-seconds 300 --plan-mib 384 --register-seconds 60 --serve-seconds 60 "
      "--reconnect-seconds 60 --detection 10s --idle 200 --hostile 50 --folder /dev/shm");
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0) << "over a limit: see above";
}

}  // namespace
