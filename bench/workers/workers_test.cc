// bench/workers with 100 workers: none is lost when the coordinator is killed, and the limits hold here too.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

namespace {

// The store is in memory, so that this machine's disk is not measured. Calls may take longer than promised,
// since a test shares its cores.
TEST(Workers, AHundredRegisterAndComeBackWithoutAFalseDeath) {
  const int status = system(
      "bench/workers/workers --workers 100 --jobs 50 --readers 100 --submissions 100 --submit-ms 500 --get-ms 2000 "
      "--plan-seconds 60 --detection 2s --idle 200 --hostile 50 --crowd-submit-ms 1000 "
      "--folder /dev/shm");
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0) << "over a limit: see above";
}

}  // namespace
