// Types every command of README.md and docs/quickstart.md, in order, on a clean home, with the real programs. Two hosts
// in network namespaces are the two machines.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "testing/temporary_folder.h"
#include "tests/cluster/hosts.h"
#include "tests/docs/typed.h"

namespace muster::docs {
namespace {

namespace fs = std::filesystem;

std::optional<cluster::Hosts>& TheHosts() {
  static auto& hosts = *new std::optional<cluster::Hosts>();
  return hosts;
}

class TypedTest : public ::testing::Test {
 protected:
  TypedTest() {
    CopyPrograms(folder_.path() + "/bin");
    for (const char* name : {"first", "second", "shared"}) fs::create_directories(absl::StrCat(Home(name)));
    first_ = std::make_unique<Machine>(Home("first"), folder_.path() + "/bin", TheHosts()->Enter(0));
    second_ = std::make_unique<Machine>(Home("second"), folder_.path() + "/bin", TheHosts()->Enter(1));
  }
  ~TypedTest() override { second_.reset(), first_.reset(); }

  std::string Home(const std::string& machine) const { return absl::StrCat(folder_.path(), "/", machine); }

  // Types the page; returns what it printed.
  std::string Type(const std::string& path) {
    std::ifstream in(path);
    std::stringstream page;
    page << in.rdbuf();
    const std::vector<Block> blocks = BlocksOf(page.str());
    EXPECT_GT(blocks.size(), 1u) << path;
    EXPECT_EQ(first_->Type(absl::StrCat("export SECOND_HOME=", Home("second"), "\n")).exit_code, 0);
    std::string printed;
    for (const Block& block : blocks) {
      Machine& machine = block.second_machine ? *second_ : *first_;
      std::string text = block.text;
      for (const std::string& replaced : block.replaced) {
        EXPECT_TRUE(absl::StrContains(text, replaced)) << path << ":" << block.line << ": no " << replaced;
        const std::string name = replaced.substr(0, replaced.find('='));
        EXPECT_TRUE(values_.contains(name)) << path << ":" << block.line << ": the test has no value for " << name;
        text = absl::StrReplaceAll(text, {{replaced, absl::StrCat(name, "=", values_[name])}});
      }
      // A reader's job trains for minutes.
      text = std::regex_replace(text, std::regex("steps: 1300"), "steps: 60");
      if (!block.save_as.empty()) {
        machine.Save(block.save_as, text);
        continue;
      }
      const Machine::Typed typed = machine.Type(text);
      absl::StrAppend(&printed, typed.output);
      EXPECT_EQ(typed.exit_code, 0) << path << ":" << block.line << ":\n" << text << "\n" << typed.output;
      if (typed.exit_code != 0) break;  // what follows needs it
    }
    return printed;
  }

  const TemporaryFolder folder_;
  std::map<std::string, std::string> values_ = {{"HEAD", TheHosts()->Address(0)},
                                                {"SHARED", folder_.path() + "/shared"}};
  std::unique_ptr<Machine> first_, second_;
};

TEST_F(TypedTest, Readme) {
  const std::string printed = Type("README.md");
  EXPECT_TRUE(absl::StrContains(printed, " completed: 60 steps in "));
  EXPECT_TRUE(absl::StrContains(printed, "And God said"));
}

TEST_F(TypedTest, Quickstart) {
  const std::string printed = Type("docs/quickstart.md");
  EXPECT_TRUE(absl::StrContains(printed, " completed: 200 steps in "));
  // The sweep: each job has its own folder of checkpoints.
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(Home("first") + "/muster-first/runs")) {
    folders.insert(entry.path().filename().string());
    EXPECT_TRUE(fs::exists(entry.path() / "owner.json")) << entry.path();
  }
  EXPECT_EQ(folders.size(), 6u);
  for (const char* lr : {"sweep-1e-3-", "sweep-3e-3-", "sweep-1e-2-"}) {
    EXPECT_TRUE(absl::StartsWith(*folders.lower_bound(lr), lr)) << lr;
  }
  // The last job had a rank on each machine.
  EXPECT_TRUE(std::regex_search(printed, std::regex("far-[a-z0-9]+ is starting generation 1: 2 ranks on \\S+, \\S+")));
}

TEST(Blocks, AreReadAsTheirCommentsSay) {
  const std::vector<Block> blocks = BlocksOf(
      "```sh\na\n```\n\n<!-- not typed: no engine -->\n```sh\nb\n```\n```yaml\n# job.yaml\nname: c\n```\n"
      "```yaml\nname: shown\n```\n```\nprinted\n```\n<!-- on the second machine -->\n<!-- typed with: H=x S=y -->\n"
      "```sh\nexport H=x S=y\n```\n<!-- typed as: cp a b -->\n```sh\nscp a b:\n```\n<!-- not typed: x "
      "-->\ntext\n\n```sh\nd\n```\n");
  ASSERT_EQ(blocks.size(), 5u);
  EXPECT_EQ(blocks[0].text, "a\n");
  EXPECT_EQ(blocks[1].save_as, "job.yaml");
  EXPECT_TRUE(blocks[2].second_machine);
  EXPECT_EQ(blocks[2].replaced, (std::vector<std::string>{"H=x", "S=y"}));
  EXPECT_EQ(blocks[3].text, "cp a b\n");
  EXPECT_FALSE(blocks[3].second_machine);
  EXPECT_EQ(blocks[4].text, "d\n");
}

TEST_F(TypedTest, ABlockEndsAtItsFirstMistake) {
  EXPECT_EQ(first_->Type("export KEPT=yes\nmkdir -p a && cd a\n").exit_code, 0);
  const Machine::Typed typed = first_->Type("echo $KEPT $(basename $PWD)\nmuster describe\necho after\n");
  EXPECT_EQ(typed.exit_code, 2);
  EXPECT_TRUE(absl::StartsWith(typed.output, "yes a\n")) << typed.output;
  EXPECT_TRUE(absl::EndsWith(typed.output, "failed: muster describe\n")) << typed.output;
}

}  // namespace
}  // namespace muster::docs

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // This process leaves the machine's network before it has threads.
  absl::StatusOr<muster::cluster::Hosts> made = muster::cluster::Hosts::Make(2);
  if (!made.ok()) {
    std::fprintf(stderr, "typed_test: %s\n", made.status().ToString().c_str());
    return 1;
  }
  muster::docs::TheHosts().emplace(*std::move(made));
  return RUN_ALL_TESTS();
}
