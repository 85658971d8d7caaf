// Every command that a page prints, in a block or within a sentence, typed by typed_test or not, is of a program, a
// command and flags that there are; so is every target, script and flag of a benchmark.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/docs/blocks.h"
#include "tests/docs/checkout.h"

namespace muster::docs {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

// "muster data prepare", with its help page; of the daemons, too. Their pages are generated, and never stale.
const std::map<std::string, std::string>& HelpPages() {
  static const auto& pages = *[] {
    auto& all = *new std::map<std::string, std::string>;
    const std::string text =
        absl::StrReplaceAll(absl::StrCat(ReadPage("docs/cli.md"), ReadPage("docs/configuration.md")),
                            {{"<!-- generated: ", "## "}, {" -->\n```text", "\n\n```text"}});
    for (const absl::string_view part : absl::StrSplit(text, "\n## ")) {
      const std::vector<absl::string_view> halves = absl::StrSplit(part, absl::MaxSplits("\n\n```text\n", 1));
      if (halves.size() == 2) all[std::string(halves[0])] = std::string(halves[1].substr(0, halves[1].find("\n```\n")));
    }
    return &all;
  }();
  return pages;
}

std::set<std::string> FlagsOf(const std::string& help) {
  static const std::regex flag("(^|[ ,\\[(])(--?[a-z][a-z-]*)");
  std::set<std::string> flags;
  for (std::sregex_iterator it(help.begin(), help.end(), flag), end; it != end; ++it) flags.insert((*it)[2]);
  return flags;
}

// What is wrong with `muster ...`; empty: nothing.
std::string MistakeOfProgram(const Words& words) {
  static const std::set<std::string>& global = *new std::set<std::string>(FlagsOf(HelpPages().at("muster")));
  std::string command = words[0];
  size_t at = 1;
  while (at < words.size()) {
    const std::string longer = absl::StrCat(command, " ", words[at]);
    const auto next = HelpPages().lower_bound(longer);
    if (global.contains(words[at])) {
      at += 2;  // with its value
    } else if (next != HelpPages().end() && (next->first == longer || absl::StartsWith(next->first, longer + " "))) {
      command = longer;
      ++at;
    } else {
      break;
    }
  }
  if (command == "muster" && at < words.size() && absl::ascii_islower(words[at][0]) && words[at] != "help") {
    return absl::StrCat("no command ", words[at]);
  }
  const auto page = HelpPages().find(command);
  if (page == HelpPages().end()) return "";  // a group: "muster checkpoint"
  const std::set<std::string> flags = FlagsOf(page->second);
  for (; at < words.size() && words[at] != "--"; ++at) {
    std::smatch flag;
    if (std::regex_search(words[at], flag, std::regex("^--?[A-Za-z][\\w-]*")) && !flags.contains(flag[0]) &&
        !global.contains(flag[0])) {
      return absl::StrCat(command, " has no flag ", flag[0].str());
    }
  }
  return "";
}

// The text of the package's BUILD file and of the target's sources; empty: there is no such target.
std::string SourceOfTarget(const std::string& label) {
  std::string package = label.substr(2, label.find(':') - 2);
  const std::string name =
      absl::StrContains(label, ':') ? label.substr(label.find(':') + 1) : package.substr(package.rfind('/') + 1);
  const std::string build = ReadFile(Root() / package / "BUILD");
  // A component `x` has a test `x_test`; some targets stand in a list.
  const std::string component(absl::StripSuffix(name, "_test"));
  if (!absl::StrContains(build, absl::StrCat("\"", name, "\"")) &&
      !absl::StrContains(build, absl::StrCat("name = \"", component, "\""))) {
    return "";
  }
  std::string all = build;
  for (const auto& entry : fs::directory_iterator(Root() / package)) {
    if (entry.path().extension() == ".cc" || entry.path().extension() == ".h") all += ReadFile(entry.path());
  }
  return all;
}

// Of `source`, a text that has the flags as strings.
std::string MistakeOfFlags(const Words& words, size_t begin, const std::string& source) {
  for (size_t i = begin; i < words.size(); ++i) {
    std::smatch flag;
    if (!std::regex_search(words[i], flag, std::regex("^--[a-z][\\w-]*")) || absl::StartsWith(words[i], "--gtest_")) {
      continue;
    }
    if (!absl::StrContains(source, absl::StrCat("\"", flag[0].str())) &&
        !absl::StrContains(source, absl::StrCat(",", flag[0].str(), "\""))) {
      return absl::StrCat("no flag ", flag[0].str());
    }
  }
  return "";
}

std::string MistakeOfTarget(const Words& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::StartsWith(words[i], "//") || absl::EndsWith(words[i], "...")) continue;
    const std::string source = SourceOfTarget(words[i]);
    if (source.empty()) return absl::StrCat("no target ", words[i]);
    if (i + 1 < words.size() && words[i + 1] == "--") return MistakeOfFlags(words, i + 2, source);
  }
  return "";
}

std::string MistakeOfScript(Words words) {
  if (words[0] == "python3") words.erase(words.begin());
  if (words.empty()) return "";
  const std::string script(absl::StripPrefix(words[0], "./"));
  static const std::regex ours("^(bench|tools|deploy|sdk|\\.ci)/[\\w./-]+$|^(test|quickstart)\\.sh$");
  if (!std::regex_match(script, ours)) return "";
  if (!fs::exists(Root() / script)) return absl::StrCat("no file ", script);
  if (script == "test.sh") return MistakeOfTarget(words);  // its other words are Bazel's
  return absl::EndsWith(script, ".py") ? MistakeOfFlags(words, 1, ReadFile(Root() / script)) : "";
}

// Whether the words are a command of ours, and what is wrong with it.
bool IsOurs(Words words, std::string& mistake) {
  static const std::regex variable("^[A-Z_]+=.*");
  while (!words.empty() && (std::regex_match(words[0], variable) || words[0] == "sudo" || words[0] == "nohup")) {
    words.erase(words.begin());
  }
  if (words.empty()) return false;
  if (words[0] == "muster" || HelpPages().contains(words[0])) {
    mistake = MistakeOfProgram(words);
    return true;
  }
  mistake = words[0] == "bazel" ? MistakeOfTarget(words) : MistakeOfScript(words);
  return words[0] == "bazel" || words[0] == "python3" || absl::StrContains(words[0], "/");
}

// The simple commands of a line of shell.
std::vector<Words> CommandsOf(const std::string& line) {
  const std::string bare = std::regex_replace(line, std::regex("(^|\\s)#.*"), "");
  std::vector<Words> commands;
  for (const std::string& part :
       std::vector<std::string>(absl::StrSplit(absl::StrReplaceAll(bare, {{"&&", "\n"}, {"$(", "\n"}}),
                                               absl::ByAnyChar("\n|;()"), absl::SkipWhitespace()))) {
    commands.push_back(absl::StrSplit(part, absl::ByAnyChar(" \n"), absl::SkipEmpty()));
  }
  return commands;
}

// Code within sentences.
std::vector<std::string> Spans(const std::string& page) {
  const std::string prose = absl::StrJoin(Prose(page), "\n");
  const std::vector<std::string> parts = absl::StrSplit(prose, '`');
  std::vector<std::string> spans;
  for (size_t i = 1; i < parts.size(); i += 2) spans.push_back(absl::StrReplaceAll(parts[i], {{"\n", " "}}));
  return spans;
}

std::vector<fs::path> Pages() {
  std::vector<fs::path> pages;
  for (const fs::path& file : Files({".md"})) {
    // Its commands were those of their time.
    if (file != "CHANGELOG.md") pages.push_back(file);
  }
  return pages;
}

TEST(Commands, AreOfProgramsTargetsAndFlagsThatThereAre) {
  int ours = 0;
  for (const fs::path& file : Pages()) {
    const std::string page = ReadFile(Root() / file);
    std::vector<std::string> lines = Spans(page);
    const Blocks blocks = BlocksOf(page);
    EXPECT_TRUE(blocks.mistakes.empty()) << file << ":" << absl::StrJoin(blocks.mistakes, "\n");
    for (const Block& block : blocks.blocks) {
      if (!block.jobs.empty() || !block.save_as.empty()) continue;
      const std::string text = absl::StrReplaceAll(block.text, {{"\\\n", " "}});
      lines.insert(lines.end(), {block.first, block.then});
      for (const absl::string_view line : absl::StrSplit(text, '\n')) lines.emplace_back(line);
    }
    for (const std::string& line : lines) {
      for (const Words& command : CommandsOf(line)) {
        std::string mistake;
        ours += IsOurs(command, mistake) ? 1 : 0;
        EXPECT_EQ(mistake, "") << file << ": " << line;
      }
    }
  }
  EXPECT_GT(ours, 400) << "the patterns do not find them";
}

TEST(Commands, FlagsHaveOneSpelling) {
  std::set<std::string> flags;
  for (const auto& [command, help] : HelpPages()) flags.merge(FlagsOf(help));
  EXPECT_GT(flags.size(), 150u);
  static const std::regex underscored("^--[a-z]+(_[a-z]+)+");
  for (const fs::path& file : Pages()) {
    for (const std::string& span : Spans(ReadFile(Root() / file))) {
      std::smatch flag;
      if (!std::regex_search(span, flag, underscored)) continue;
      const std::string ours = absl::StrReplaceAll(flag[0].str(), {{"_", "-"}});
      EXPECT_FALSE(flags.contains(ours)) << file << ": " << flag[0] << " is " << ours << " today";
    }
  }
}

TEST(Commands, MistakesAreFound) {
  const auto mistake = [](const std::string& line) {
    std::string all;
    for (const Words& words : CommandsOf(line)) {
      std::string one;
      IsOurs(words, one);
      all += one;
    }
    return all;
  };
  EXPECT_EQ(mistake("muster ps -a && X=1 sudo muster sumbit job.yaml"), "no command sumbit");
  EXPECT_EQ(mistake("muster --timeout 5s data prepare a b --vallidation c  # --x"),
            "muster data prepare has no flag --vallidation");
  EXPECT_EQ(mistake("muster run --ranks 2 -- python a.py --steps 3"), "");
  EXPECT_EQ(mistake("echo $(muster-worker --slotz 3)"), "muster-worker has no flag --slotz");
  EXPECT_EQ(mistake("bazel run //bench:scalign"), "no target //bench:scalign");
  EXPECT_EQ(mistake("bazel run //bench:scaling -- --stages 8 --stagez 8"), "no flag --stagez");
  EXPECT_EQ(mistake("python3 bench/strategies.py --rounds 5 --roundz 5"), "no flag --roundz");
  EXPECT_EQ(mistake("bench/strategy.py"), "no file bench/strategy.py");
  EXPECT_EQ(mistake("./test.sh //tests/docs:docs_tests"), "no target //tests/docs:docs_tests");
  EXPECT_EQ(mistake("./test.sh //tests/docs:pages_test --test_output=all"), "");
}

// A block that another test runs: that test has its programs and scripts.
TEST(Blocks, ThatAnotherTestRunsAreInIt) {
  static const std::regex essential("cmake -S|cmake --build|\\w+\\.py");
  int checked = 0;
  for (const fs::path& file : Pages()) {
    for (const Block& block : BlocksOf(ReadFile(Root() / file)).blocks) {
      absl::string_view label = block.not_typed;
      if (!absl::ConsumePrefix(&label, "is run by ")) continue;
      const std::string source = SourceOfTarget(std::string(label));
      EXPECT_NE(source, "") << file << ":" << block.line << ": no test " << label;
      int found = 0;
      for (std::sregex_iterator it(block.text.begin(), block.text.end(), essential), end; it != end; ++it, ++found) {
        EXPECT_TRUE(absl::StrContains(source, it->str())) << file << ":" << block.line << ": " << it->str();
      }
      EXPECT_GT(found, 0) << file << ":" << block.line << ": nothing that the test could have";
      ++checked;
    }
  }
  EXPECT_GT(checked, 0);
}

// tools/clean_machine.sh types these pages before anything is built, so it has a reader of its own.
TEST(Blocks, AreReadByTheCleanMachineAsTheyAreHere) {
  for (const char* page : {"README.md", "docs/quickstart.md"}) {
    std::string expected;
    for (const Block& block : BlocksOf(ReadPage(page)).blocks) {
      absl::StrAppend(&expected, block.line, block.second_machine ? "|second|" : "|first|", block.save_as, "|",
                      block.not_typed, "|", absl::StrJoin(block.replaced, " "), "\n", block.text);
    }
    EXPECT_NE(expected, "");
    const std::string command = absl::StrCat("/usr/bin/python3 '", (Root() / "tests/docs/type_pages.py").string(),
                                             "' --root '", Root().string(), "' --list ", page, " 2>&1");
    FILE* pipe = popen(command.c_str(), "re");
    ASSERT_NE(pipe, nullptr);
    std::string read;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) read.push_back(static_cast<char>(c));
    EXPECT_EQ(pclose(pipe), 0) << read;
    EXPECT_EQ(read, expected) << page;
  }
}

// For those who read the log: what no test types, and why.
TEST(Blocks, ThatAreNotTyped) {
  std::map<std::string, int> reasons;
  for (const fs::path& file : Pages()) {
    for (const Block& block : BlocksOf(ReadFile(Root() / file)).blocks) {
      if (block.not_typed.empty()) continue;
      std::printf("%s:%d is not typed: %s\n", file.c_str(), block.line, block.not_typed.c_str());
      ++reasons[block.not_typed.substr(0, block.not_typed.find(" //"))];
    }
  }
  // A reason that no block has is for no use.
  for (const auto& [reason, pattern] : ReasonsNotToType()) EXPECT_GT(reasons[reason], 0) << reason;
}

}  // namespace
}  // namespace muster::docs
