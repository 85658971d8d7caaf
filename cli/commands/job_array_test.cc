#include "cli/commands/job_array.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace muster::cli {
namespace {

using Jobs = std::vector<std::vector<std::string>>;

TEST(JobArray, IsEveryCombination) {
  EXPECT_EQ(Combinations({}).value(), (Jobs{{}}));
  EXPECT_EQ(Combinations({"seed=1,2,3"}).value(), (Jobs{{"seed=1"}, {"seed=2"}, {"seed=3"}}));
  EXPECT_EQ(Combinations({"optimizer.lr=1e-3,3e-3", "seed=1,2"}).value(), (Jobs{{"optimizer.lr=1e-3", "seed=1"},
                                                                                {"optimizer.lr=1e-3", "seed=2"},
                                                                                {"optimizer.lr=3e-3", "seed=1"},
                                                                                {"optimizer.lr=3e-3", "seed=2"}}));
  EXPECT_EQ(Combinations({"freeze=[h.0,h.1],[]", "name=\"a,b\",c"}).value(), (Jobs{{"freeze=[h.0,h.1]", "name=\"a,b\""},
                                                                                   {"freeze=[h.0,h.1]", "name=c"},
                                                                                   {"freeze=[]", "name=\"a,b\""},
                                                                                   {"freeze=[]", "name=c"}}));
}

TEST(JobArray, RefusesWhatIsNone) {
  for (const char* bad : {"seed", "=1,2", "seed=", "seed=1,,2", "seed=1,"}) {
    EXPECT_EQ(Combinations({bad}).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  std::string many = "seed=0";
  for (int i = 1; i < 40; ++i) many += "," + std::to_string(i);
  EXPECT_TRUE(Combinations({many, "priority=0,1"}).ok());
  EXPECT_FALSE(Combinations({many, many}).ok()) << "1600 jobs";
}

}  // namespace
}  // namespace muster::cli
