// Types every command of every page, in order, on a home of its own, with the real programs. Two hosts in network
// namespaces are the two machines. What a page says about a job has to be valid, and what it says that a command prints
// is what it prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "testing/temporary_folder.h"
#include "tests/cluster/hosts.h"
#include "tests/docs/blocks.h"
#include "tests/docs/readers.h"
#include "tests/docs/typed.h"

namespace muster::docs {
namespace {

namespace fs = std::filesystem;

std::optional<cluster::Hosts>& TheHosts() {
  static auto& hosts = *new std::optional<cluster::Hosts>();
  return hosts;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
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
    const Blocks page = BlocksOf(ReadFile(path));
    EXPECT_TRUE(page.mistakes.empty()) << path << ":" << absl::StrJoin(page.mistakes, "\n");
    const Reader reader = ReaderOf(path);
    const Machine::Typed ready =
        first_->Type(absl::StrCat("export SECOND_HOME=", Home("second"), " SOURCES=", fs::current_path().string(),
                                  " HOST=", TheHosts()->Address(0), "\n", reader.before));
    EXPECT_EQ(ready.exit_code, 0) << ready.output;
    std::map<std::string, std::string> stands_for;
    for (const auto& [theirs, ours] : reader.stands_for) {
      const Machine::Typed value = first_->Type(absl::StrCat("printf %s \"", ours, "\"\n"));
      EXPECT_EQ(value.exit_code, 0) << value.output;
      stands_for[theirs] = value.output;
    }
    std::string printed;
    for (const Block& block : page.blocks) {
      if (!block.not_typed.empty()) continue;
      if (!TypeBlock(path, block, stands_for, printed)) break;  // what follows needs it
    }
    return printed;
  }

  bool TypeBlock(const std::string& path, const Block& block, const std::map<std::string, std::string>& stands_for,
                 std::string& printed) {
    SCOPED_TRACE(absl::StrCat(path, ":", block.line));
    Machine& machine = block.second_machine ? *second_ : *first_;
    const auto type = [&](const std::string& commands) {
      const Machine::Typed typed = machine.Type(commands);
      absl::StrAppend(&printed, typed.output);
      EXPECT_EQ(typed.exit_code, 0) << commands << "\n" << typed.output;
      return typed;
    };
    if (!block.first.empty() && type(block.first).exit_code != 0) return false;
    std::string text = block.text;
    for (const std::string& replaced : block.replaced) {
      EXPECT_TRUE(absl::StrContains(text, replaced)) << "no " << replaced;
      const std::string name = replaced.substr(0, replaced.find('='));
      EXPECT_TRUE(values_.contains(name)) << "the test has no value for " << name;
      text = absl::StrReplaceAll(text, {{replaced, absl::StrCat(name, "=", values_[name])}});
    }
    text = absl::StrReplaceAll(text, stands_for);
    // A reader's job trains for minutes.
    text = std::regex_replace(text, std::regex("steps: 1300"), "steps: 60");
    for (const std::string& job : block.jobs) {
      machine.Save("shown.yaml", absl::StrReplaceAll(job, stands_for));
      if (type("muster validate shown.yaml || { cat shown.yaml; false; }\n").exit_code != 0) return false;
    }
    if (!block.save_as.empty()) {
      machine.Save(block.save_as, text);
    } else if (block.jobs.empty()) {
      const Machine::Typed typed = type(text);
      if (typed.exit_code != 0) return false;
      if (block.prints.has_value()) {
        EXPECT_TRUE(Matches(typed.output, *block.prints)) << "prints:\n" << typed.output << "\nnot\n" << *block.prints;
      }
    }
    return block.then.empty() || type(block.then).exit_code == 0;
  }

  const TemporaryFolder folder_;
  std::map<std::string, std::string> values_ = {{"HEAD", TheHosts()->Address(0)},
                                                {"SHARED", folder_.path() + "/shared"}};
  std::unique_ptr<Machine> first_, second_;
};

// The pages that have blocks to type, but for the two below.
std::vector<std::string> OtherPages() {
  std::vector<std::string> pages;
  for (const auto& entry : fs::recursive_directory_iterator("docs")) {
    const std::string path = entry.path().string();
    if (!absl::EndsWith(path, ".md") || path == "docs/quickstart.md") continue;
    const Blocks page = BlocksOf(ReadFile(path));
    if (!page.blocks.empty() || !page.mistakes.empty()) pages.push_back(path);
  }
  std::sort(pages.begin(), pages.end());
  return pages;
}

class PageTest : public TypedTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(PageTest, IsTyped) { Type(GetParam()); }

std::string NameOf(const ::testing::TestParamInfo<std::string>& page) {
  return absl::StrReplaceAll(page.param, {{"/", "_"}, {"-", "_"}, {".md", ""}});
}

INSTANTIATE_TEST_SUITE_P(Pages, PageTest, ::testing::ValuesIn(OtherPages()), NameOf);

TEST_F(TypedTest, Readme) {
  const std::string printed = Type("README.md");
  EXPECT_TRUE(absl::StrContains(printed, " completed: 60 steps in "));
  EXPECT_TRUE(absl::StrContains(printed, "And God said"));
  // The error that it shows is that of its own job file with the mistake.
  std::smatch shown;
  const std::string page = ReadFile("README.md");
  ASSERT_TRUE(std::regex_search(page, shown, std::regex("`(job\\.yaml:[0-9:]+ optimizer\\.lrr: [^`]+)`")));
  const Machine::Typed wrong = first_->Type(
      "mkdir wrong && sed 's/lr: 3e-3/lrr: 3e-3/' job.yaml >wrong/job.yaml && cd wrong\n"
      "muster validate job.yaml || true\n");
  EXPECT_TRUE(absl::StrContains(wrong.output, shown[1].str() + "\n")) << wrong.output;
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
