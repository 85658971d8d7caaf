#include "common/flags/daemon_flags.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "common/flags/spelling.h"

namespace muster {
namespace {

struct Values {
  std::string folder, level = "info", roots;
  uint32_t slots = 1;
  absl::Duration grace = absl::Seconds(30);
};

void AddAll(CLI::App& app, Values& values) {
  app.add_option("--state-dir", values.folder, "a folder")->required();
  app.add_option("--slots", values.slots, "slots")->check(CLI::Range(1, 4))->capture_default_str();
  app.add_option("--log-level", values.level, "level")->check(CLI::IsMember({"info", "warn"}))->capture_default_str();
  app.add_subcommand("run", "runs")->add_option("--data-roots", values.roots, "folders");
  AddDuration(app, "--kill-grace", values.grace, "grace");
}

int Parse(Values& values, std::vector<std::string> words) {
  CLI::App app("", "program");
  AddAll(app, values);
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return ParseFlags(app, static_cast<int>(argv.size()), argv.data());
}

TEST(DaemonFlagsTest, BothSpellingsAreTaken) {
  for (const char* flag : {"--state-dir", "--state_dir"}) {
    Values values;
    EXPECT_EQ(Parse(values, {flag, "/a_b", "--kill_grace=2m", "run", "--data_roots", "/c_d"}), -1);
    EXPECT_EQ(values.folder, "/a_b");
    EXPECT_EQ(values.roots, "/c_d");
    EXPECT_EQ(values.grace, absl::Minutes(2));
  }
}

TEST(DaemonFlagsTest, WrongValuesExitWithTwo) {
  for (const char* wrong : {"--kill-grace=0s", "--kill-grace=soon", "--slots=5", "--log-level=loud", "--no-such"}) {
    Values values;
    EXPECT_EQ(Parse(values, {"--state-dir", "x", wrong}), 2) << wrong;
  }
}

TEST(DaemonFlagsTest, HelpShowsNoTypesOfTheParser) {
  Values values;
  testing::internal::CaptureStdout();
  EXPECT_EQ(Parse(values, {"--help"}), 0);
  const std::string page = testing::internal::GetCapturedStdout();
  EXPECT_NE(page.find("--log-level info|warn"), std::string::npos) << page;
  EXPECT_NE(page.find("--slots N"), std::string::npos) << page;
  EXPECT_NE(page.find("--kill-grace TIME"), std::string::npos) << page;
  EXPECT_NE(page.find("grace (default 30s)"), std::string::npos) << page;
  EXPECT_NE(page.find("show this page"), std::string::npos) << page;
  for (const char* word : {"TEXT", "UINT", "REQUIRED", "_", "[1"}) {
    EXPECT_EQ(page.find(word), std::string::npos) << word << "\n" << page;
  }
}

TEST(DaemonFlagsTest, RefusesInOurWords) {
  const auto says = [](const std::vector<std::string>& words) {
    CLI::App app("", "program");
    std::string one;
    uint32_t number = 0;
    CLI::Option* a = app.add_option("--one", one);
    app.add_option("--number", number)->needs(a)->check(CLI::Range(1, 4));
    app.add_option("--level", one)->check(CLI::IsMember({"info", "warn"}));
    app.add_option("--other", one)->excludes(a);
    app.require_subcommand(1);
    app.add_subcommand("run", "runs");
    std::vector<std::string> all = {"program"};
    all.insert(all.end(), words.begin(), words.end());
    std::vector<char*> argv;
    for (std::string& word : all) argv.push_back(word.data());
    testing::internal::CaptureStderr();
    EXPECT_EQ(ParseFlags(app, static_cast<int>(argv.size()), argv.data()), 2);
    const std::string text = testing::internal::GetCapturedStderr();
    return text.substr(0, text.find('\n'));
  };
  EXPECT_EQ(says({}), "program: a command is missing");
  EXPECT_EQ(says({"--one", "x", "--one", "y", "run"}), "program: --one takes one value, got 2");
  EXPECT_EQ(says({"--one"}), "program: --one needs a value");
  EXPECT_EQ(says({"--other", "x", "--one", "y", "run"}), "program: --one cannot be used with --other");
  EXPECT_EQ(says({"--number", "1", "run"}), "program: --number needs --one");
  EXPECT_EQ(says({"--number", "5", "run"}), "program: --number: must be a number from 1 to 4, got 5");
  EXPECT_EQ(says({"--level", "loud", "run"}), "program: --level: \"loud\" is not one of info, warn");
  EXPECT_EQ(says({"run", "what"}), "program: unknown argument what");
  EXPECT_EQ(says({"run", "--what"}), "program: unknown option --what");
  // Also where something is missing because of it, and before its value.
  EXPECT_EQ(says({"--numbr", "2", "run"}), "program: unknown option --numbr, did you mean --number?");
  EXPECT_EQ(says({"--numbr=2"}), "program: unknown option --numbr, did you mean --number?");
  EXPECT_EQ(says({"rnu"}), "program: unknown command rnu, did you mean run?");
  EXPECT_EQ(says({"start", "now"}), "program: unknown command start");
}

TEST(DaemonFlagsTest, AMisspelledFlagIsNamedRatherThanTheOneThatIsMissing) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--state-dirr", "/x", "--slots", "2"},
                                                {"--slots", "2", "--state-dirr", "/x", "run"}}) {
    Values values;
    testing::internal::CaptureStderr();
    EXPECT_EQ(Parse(values, words), 2);
    EXPECT_EQ(testing::internal::GetCapturedStderr(),
              "program: unknown option --state-dirr, did you mean --state-dir?\nsee: program --help\n");
  }
  Values values;
  testing::internal::CaptureStderr();
  EXPECT_EQ(Parse(values, {"--state-dir", "x", "run", "--data-root", "y"}), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "program: unknown option --data-root, did you mean --data-roots?\nsee: program --help\n");
}

TEST(DaemonFlagsTest, AFullStandardOutputIsAnError) {
  std::fflush(stdout);
  const int before = dup(STDOUT_FILENO), full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(before, 0);
  ASSERT_GE(full, 0);
  CLI::App app("", "program");
  app.set_version_flag("--version", "1.2.3");
  std::string program = "program", version = "--version";
  char* argv[] = {program.data(), version.data()};
  testing::internal::CaptureStderr();
  dup2(full, STDOUT_FILENO);
  const int code = ParseFlags(app, 2, argv);
  dup2(before, STDOUT_FILENO);
  close(before);
  close(full);
  std::cout.clear();
  std::clearerr(stdout);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "program: cannot write to standard output: is the disk full?\n");
  EXPECT_EQ(code, 1);
}

TEST(KebabFlagsTest, ValuesAndUnknownNamesStayAsTyped) {
  const auto known = [](const std::string& name) { return name == "weight-decay"; };
  EXPECT_EQ(KebabFlags({"--weight_decay=a_b", "--other_flag", "x_y", "--", "--weight_decay"}, known),
            (std::vector<std::string>{"--weight-decay=a_b", "--other_flag", "x_y", "--", "--weight_decay"}));
}

}  // namespace
}  // namespace muster
