#include "common/checkpoint_names.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster::checkpoint {
namespace {

TEST(StepName, RoundTrips) {
  for (const StepName& name : {StepName{0, 0}, StepName{100, 3}, StepName{12345678901, 7}}) {
    EXPECT_EQ(ParseDirectory(name.Directory()), name);
    EXPECT_EQ(ParseStaging(name.Staging()), name);
    EXPECT_EQ(ParseRemoving(name.Removing()), name);
    EXPECT_EQ(ParseDirectory(name.Staging()), std::nullopt);
  }
  EXPECT_EQ((StepName{100, 3}.Staging()), ".staging-step-0000000100-g3");
  for (const char* name : {"", "step-", "step-1-g1", "step-0000000001-g", "step-0000000001-g01", "step-0000000001-g1x",
                           "step-000000000x-g1", "step--000000001-g1", "step-0000000001"}) {
    EXPECT_EQ(ParseDirectory(name), std::nullopt) << name;
  }
}

TEST(WhyReserved, APartThatIsTheNameOfACheckpoint) {
  for (const char* name :
       {"step-0000000020-g1", ".staging-step-0000015000-g12", ".removing-step-0000000000-g0", "step-12345678901-g7"}) {
    const std::string why = absl::StrCat("is in ", name,
                                         ", and only a checkpoint has such a name: name a folder outside of "
                                         "checkpoints");
    for (const char* path : {"", "/", "/runs/x/"}) {
      for (const char* below : {"", "/", "/in/it", "//./in", "/in/../it"}) {
        EXPECT_EQ(WhyReserved(absl::StrCat(path, name, below)), why) << path << name << below;
      }
    }
  }
}

TEST(WhyReserved, APartThatIsTheNameOfAnOwnersFile) {
  for (const char* name : {"owner.json", "owner.json.previous", ".owner.json.1234-5", ".owner.json.previous.12"}) {
    const std::string why = absl::StrCat("is in ", name,
                                         ", and only the file that says which job owns a folder of checkpoints has "
                                         "such a name: name another folder");
    for (const char* path : {"", "/", "/runs/x/"}) {
      for (const char* below : {"", "/", "/in/it", "/step-0000000020-g1"}) {
        EXPECT_EQ(WhyReserved(absl::StrCat(path, name, below)), why) << path << name << below;
      }
    }
  }
}

TEST(WhyReserved, APathThatLeavesSuchAPartGoesThroughIt) {
  EXPECT_EQ(
      WhyReserved("x/step-0000000020-g1/../y"),
      "goes through step-0000000020-g1 by \"..\", and only a checkpoint has such a name: write x/y, if that is the "
      "folder");
  EXPECT_EQ(
      WhyReserved("/runs/x/.staging-step-0000000020-g1/a//../.././y"),
      "goes through .staging-step-0000000020-g1 by \"..\", and only a checkpoint has such a name: write /runs/x/y, "
      "if that is the folder");
  EXPECT_EQ(WhyReserved("/x/owner.json/../y"),
            "goes through owner.json by \"..\", and only the file that says which job owns a folder of checkpoints has "
            "such a name: write /x/y, if that is the folder");
  EXPECT_EQ(WhyReserved("/x/owner.json/../step-0000000020-g1"),
            "is in step-0000000020-g1, and only a checkpoint has such a name: name a folder outside of checkpoints");
}

TEST(WhyReserved, NoOtherName) {
  for (const char* path :
       {"", "/", "/runs/x/in", "/runs/x/step-20-g1", "/runs/x/step-0000000020-g", "/runs/x/step-0000000020",
        "/runs/x/step-0000000020-g1-old", "/runs/x/my-step-0000000020-g1", "/runs/x/.old-step-0000000020-g1",
        "/runs/x/step-0000000020-g01", "/runs/x/step-00000000200-g1", "/runs/x/step-0000000020/g1", "/runs/owner",
        "/runs/owner.json5/x", "/runs/my-owner.json/x", "/runs/owner.json.previous.old", "/runs/.owner.json"}) {
    EXPECT_EQ(WhyReserved(path), "") << path;
  }
}

}  // namespace
}  // namespace muster::checkpoint
