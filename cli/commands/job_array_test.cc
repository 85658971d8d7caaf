#include "cli/commands/job_array.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::cli {
namespace {

using Jobs = std::vector<std::vector<std::string>>;

Jobs JobsOf(const std::vector<std::string>& arrays) {
  Jobs jobs;
  const auto combinations = Combinations(arrays);
  for (const std::vector<Assignment>& combination : combinations.value()) {
    std::vector<std::string>& job = jobs.emplace_back();
    for (const Assignment& value : combination) {
      EXPECT_EQ(value.flag, "--array " + value.path);
      job.push_back(value.path + "=" + value.value);
    }
  }
  return jobs;
}

TEST(JobArray, IsEveryCombination) {
  EXPECT_EQ(JobsOf({}), (Jobs{{}}));
  EXPECT_EQ(JobsOf({"seed=1,2,3"}), (Jobs{{"seed=1"}, {"seed=2"}, {"seed=3"}}));
  EXPECT_EQ(JobsOf({"optimizer.lr=1e-3,3e-3", "seed=1,2"}), (Jobs{{"optimizer.lr=1e-3", "seed=1"},
                                                                  {"optimizer.lr=1e-3", "seed=2"},
                                                                  {"optimizer.lr=3e-3", "seed=1"},
                                                                  {"optimizer.lr=3e-3", "seed=2"}}));
  EXPECT_EQ(JobsOf({"freeze=[h.0,h.1],[]", "name=\"a,b\",c"}), (Jobs{{"freeze=[h.0,h.1]", "name=\"a,b\""},
                                                                     {"freeze=[h.0,h.1]", "name=c"},
                                                                     {"freeze=[]", "name=\"a,b\""},
                                                                     {"freeze=[]", "name=c"}}));
}

TEST(JobArray, RefusesWhatIsNone) {
  for (const char* bad : {"seed", "=1,2", "seed=", "seed=1,,2", "seed=1,", "a..b=1", "seed=1,1", "seed=1,2,1"}) {
    EXPECT_EQ(Combinations({bad}).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  std::string many = "seed=0";
  for (int i = 1; i < 40; ++i) many += "," + std::to_string(i);
  EXPECT_TRUE(Combinations({many, "priority=0,1"}).ok());
  EXPECT_FALSE(Combinations({many, "priority" + many.substr(4)}).ok()) << "1600 jobs";
  EXPECT_FALSE(Combinations({"seed=1", "seed=2"}).ok()) << "the last one would hold for both";
  EXPECT_TRUE(Combinations({"seed=1,2", "priority=1,2"}).ok());
}

}  // namespace
}  // namespace muster::cli
