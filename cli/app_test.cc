#include "cli/app.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/config.h"
#include "cli/help_page.h"
#include "common/tls/certificate.h"

namespace muster::cli {
namespace {

std::vector<const CLI::App*> AllCommands(const CLI::App& app) {
  std::vector<const CLI::App*> all = {&app};
  for (size_t i = 0; i < all.size(); ++i) {
    for (const CLI::App* command : all[i]->get_subcommands({})) all.push_back(command);
  }
  return all;
}

TEST(App, EveryCommandHasAnExampleThatNamesIt) {
  Invocation invocation;
  const auto app = BuildApp(invocation);
  const std::vector<const CLI::App*> all = AllCommands(*app);
  EXPECT_GT(all.size(), 25u);
  for (const CLI::App* command : all) {
    if (command == app.get()) continue;
    std::string name = command->get_name();
    for (const CLI::App* up = command->get_parent(); up != nullptr; up = up->get_parent()) {
      name = up->get_name() + " " + name;
    }
    EXPECT_TRUE(absl::StrContains(command->get_footer(), "Example:\n  ")) << name;
    EXPECT_TRUE(absl::StrContains(command->get_footer(), name)) << name << "\n" << command->get_footer();
    EXPECT_FALSE(command->get_description().empty()) << name;
    EXPECT_LE(command->get_description().size(), 72u) << name;
    for (const CLI::Option* option : command->get_options()) {
      EXPECT_FALSE(option->get_description().empty()) << name << " " << option->get_name();
    }
  }
}

TEST(App, EveryExampleParses) {
  Invocation invocation;
  const auto whole = BuildApp(invocation);
  const auto names = AllCommands(*whole);
  for (size_t i = 1; i < names.size(); ++i) {
    std::string rest = names[i]->get_footer();
    for (size_t at; (at = rest.find("\n  muster ")) != std::string::npos;) {
      rest = rest.substr(at + 10);
      std::string line = rest.substr(0, rest.find('\n'));
      line = line.substr(0, line.find_first_of("|>&"));
      Invocation own;
      const auto app = BuildApp(own);
      EXPECT_NO_THROW(app->parse(line)) << line;
    }
  }
}

TEST(App, HelpIsGroupedAndShort) {
  Invocation invocation;
  const std::string help = BuildApp(invocation)->help();
  size_t last = 0;
  for (const char* group : {"Run:", "Look:", "Steer:", "Data and models:", "Service:", "Everywhere:", "Example:"}) {
    const size_t at = help.find(group);
    ASSERT_NE(at, std::string::npos) << group << "\n" << help;
    EXPECT_GT(at, last) << group;
    last = at;
  }
  EXPECT_LT(std::count(help.begin(), help.end(), '\n'), 80);
}

TEST(App, HelpBreaksLinesAtWords) {
  Invocation invocation;
  const std::unique_ptr<CLI::App> app = BuildApp(invocation);
  EXPECT_EQ(FittedPage(app->help(), 0), app->help());
  for (const CLI::App* command : app->get_subcommands({})) {
    const std::string page = FittedPage(command->help("muster"), 60);
    for (const absl::string_view line : absl::StrSplit(page, '\n')) {
      EXPECT_TRUE(line.size() <= 60 || absl::StartsWith(line, "  muster ")) << line;
    }
    // Only spaces and line breaks differ.
    const std::string whole = command->help("muster");
    const std::vector<std::string> words = absl::StrSplit(whole, absl::ByAnyChar(" \n"), absl::SkipEmpty());
    const std::vector<std::string> fitted = absl::StrSplit(page, absl::ByAnyChar(" \n"), absl::SkipEmpty());
    EXPECT_EQ(words, fitted);
  }
  EXPECT_EQ(FittedPage("  --folder FOLDER             also check its disk\n", 44),
            "  --folder FOLDER             also check its\n                              disk\n");
}

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    char path[] = "/tmp/muster-config-XXXXXX";
    folder_ = mkdtemp(path);
    variables_["XDG_CONFIG_HOME"] = folder_;
    variables_["MUSTER_RUNTIME_DIR"] = "/run/x";
  }
  absl::StatusOr<Connection> Resolve(const ConnectionFlags& flags) const {
    return ResolveConnection(flags, [this](const char* name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional<std::string>(found->second);
    });
  }
  void Context(const std::string& text) { ASSERT_TRUE(WriteFile(folder_ + "/muster/context.yaml", text).ok()); }

  std::string folder_;
  std::map<std::string, std::string> variables_;
};

TEST_F(ConfigTest, FlagThenEnvironmentThenContextThenDefault) {
  EXPECT_EQ(Resolve({})->address, "unix:/run/x/coordinator.sock");
  EXPECT_TRUE(Resolve({})->default_address);
  EXPECT_EQ(Resolve({})->timeout, absl::ZeroDuration());
  Context("address: host:1\ntoken: from-file\ntimeout: 5s\n");
  EXPECT_EQ(Resolve({})->address, "host:1");
  EXPECT_EQ(Resolve({})->token, "from-file");
  EXPECT_EQ(Resolve({})->timeout, absl::Seconds(5));
  variables_["MUSTER_ADDRESS"] = "host:2";
  variables_["MUSTER_TOKEN"] = "from-variable";
  variables_["MUSTER_TIMEOUT"] = "7";
  EXPECT_EQ(Resolve({})->address, "host:2");
  EXPECT_EQ(Resolve({})->token, "from-variable");
  EXPECT_EQ(Resolve({})->timeout, absl::Seconds(7));
  ASSERT_TRUE(WriteFile(folder_ + "/token", "from-flag\n").ok());
  const auto flags = Resolve({"host:3", folder_ + "/token", "1m"});
  EXPECT_EQ(flags->address, "host:3");
  EXPECT_EQ(flags->token, "from-flag");
  EXPECT_EQ(flags->timeout, absl::Minutes(1));
}

TEST_F(ConfigTest, WhomToBelieveBeyondThisMachine) {
  variables_["MUSTER_COORDINATOR"] = "gpu-head:1";
  EXPECT_EQ(Resolve({})->address, "gpu-head:1");
  variables_["MUSTER_ADDRESS"] = "gpu-head:2";
  EXPECT_EQ(Resolve({})->address, "gpu-head:2");
  absl::StatusOr<Connection> connection = Resolve({});
  const absl::Status no_authority = Client::Secure(*connection);
  EXPECT_TRUE(absl::IsFailedPrecondition(no_authority));
  EXPECT_TRUE(absl::StrContains(no_authority.message(), "MUSTER_CA")) << no_authority;
  const std::string key = tls::MakeKey().value();
  const std::string ca = tls::MakeAuthority(key, "a", tls::ValidFor(absl::Hours(1), absl::Now())).value();
  ASSERT_TRUE(WriteFile(folder_ + "/ca.crt", ca).ok());
  Context("ca: " + folder_ + "/ca.crt\n");
  connection = Resolve({});
  ASSERT_TRUE(connection.ok()) << connection.status();
  EXPECT_EQ(connection->authority, ca);
  EXPECT_TRUE(Client::Secure(*connection).ok());
  variables_["MUSTER_CA"] = folder_ + "/missing";
  EXPECT_TRUE(absl::IsNotFound(Resolve({}).status()));
  ASSERT_TRUE(WriteFile(folder_ + "/rubbish", "x").ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Resolve({"", "", "", folder_ + "/rubbish"}).status()));
}

TEST_F(ConfigTest, AWrongContextFileNamesLineAndColumn) {
  Context("adress: host:1\n");
  const absl::Status status = Resolve({}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(absl::EndsWith(status.message(), "context.yaml:1:1: adress: unknown field, did you mean address?"))
      << status;
  Context("address: [a]\n");
  EXPECT_TRUE(absl::IsInvalidArgument(Resolve({}).status()));
  Context("- a\n");
  EXPECT_TRUE(absl::IsInvalidArgument(Resolve({}).status()));
  Context("");
  EXPECT_TRUE(Resolve({}).ok());
}

TEST_F(ConfigTest, AnErrorNamesWhatTheValueComesFrom) {
  const auto says = [&](const ConnectionFlags& flags) { return std::string(Resolve(flags).status().message()); };
  Context("timeout: soon\n");
  EXPECT_EQ(says({}), folder_ + "/muster/context.yaml: timeout: invalid duration \"soon\": use 30s, 5m, 1h30m or 7d");
  variables_["MUSTER_TIMEOUT"] = "0s";
  EXPECT_EQ(says({}), "MUSTER_TIMEOUT: invalid duration 0s: must be greater than 0");
  EXPECT_EQ(says({"", "", "-1s"}), "--timeout: invalid duration -1s: must be greater than 0");
  variables_["MUSTER_COORDINATOR"] = "nowhere";
  EXPECT_EQ(says({}), "MUSTER_COORDINATOR: invalid coordinator address nowhere: use unix:/path or host:port");
  EXPECT_EQ(says({"127.0.0.1:abc"}),
            "--address: invalid coordinator address 127.0.0.1:abc: use unix:/path or host:port");
}

TEST_F(ConfigTest, ARelativeRuntimeFolderIsAnError) {
  const auto says = [&] { return std::string(Resolve({}).status().message()); };
  variables_["MUSTER_RUNTIME_DIR"] = "run/x";
  EXPECT_TRUE(absl::IsInvalidArgument(Resolve({}).status()));
  EXPECT_EQ(says(),
            "MUSTER_RUNTIME_DIR: run/x is a relative path, which would be another folder for each working directory: "
            "set MUSTER_RUNTIME_DIR to an absolute path, one that begins with /");
  EXPECT_EQ(Resolve({"host:1"})->address, "host:1") << "it is not used";
  variables_.erase("MUSTER_RUNTIME_DIR");
  variables_["XDG_RUNTIME_DIR"] = "~/run";
  EXPECT_EQ(says(),
            "XDG_RUNTIME_DIR: ~/run is a relative path, which would be another folder for each working directory: set "
            "XDG_RUNTIME_DIR to an absolute path, one that begins with /");
  variables_["XDG_RUNTIME_DIR"] = "/run/user/1";
  EXPECT_EQ(Resolve({})->address, "unix:/run/user/1/muster/coordinator.sock");
}

TEST_F(ConfigTest, ATokenFileThatIsNotThereIsAnError) {
  EXPECT_TRUE(absl::IsNotFound(Resolve({"", folder_ + "/missing", ""}).status()));
}

// gRPC aborts the process for such bytes.
TEST_F(ConfigTest, ATokenOfOtherBytesNamesItsSource) {
  const auto says = [&](const ConnectionFlags& flags) {
    const absl::Status status = Resolve(flags).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  constexpr char kWrong[] =
      ", which a request cannot carry; copy the token again: it is one word of printable ASCII characters";
  Context("token: \"a\\nb\"\n");
  EXPECT_EQ(says({}),
            absl::StrCat(folder_, "/muster/context.yaml: token: this is not a token: byte 2 of 3 is 0x0a", kWrong));
  const std::string file = folder_ + "/token";
  variables_["MUSTER_TOKEN_FILE"] = file;
  ASSERT_TRUE(WriteFile(file, "one\ntwo\n").ok());
  EXPECT_EQ(says({}), absl::StrCat("MUSTER_TOKEN_FILE: ", file, ": this is not a token: byte 4 of 7 is 0x0a", kWrong));
  variables_["MUSTER_TOKEN"] = "junk\r";
  EXPECT_EQ(says({}), absl::StrCat("MUSTER_TOKEN: this is not a token: byte 5 of 5 is 0x0d", kWrong));
  ASSERT_TRUE(WriteFile(file, std::string("\x7f"
                                          "ELF\0",
                                          5))
                  .ok());
  EXPECT_EQ(says({"", file, ""}),
            absl::StrCat("--token-file: ", file, ": this is not a token: byte 1 of 5 is 0x7f", kWrong));
  ASSERT_TRUE(WriteFile(file, "gr\xc3\xbc\xc3\x9f").ok());
  EXPECT_EQ(says({"", file, ""}),
            absl::StrCat("--token-file: ", file, ": this is not a token: byte 3 of 6 is 0xc3", kWrong));
}

TEST(ParseSince, TakesAgesAndTimesAsTheCliPrintsThem) {
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  EXPECT_EQ(*ParseSince("", now), absl::InfinitePast());
  EXPECT_EQ(*ParseSince("10m", now), now - absl::Minutes(10));
  EXPECT_EQ(*ParseSince("7d", now), now - absl::Hours(168));
  EXPECT_EQ(*ParseSince("2001-09-09T01:46:40Z", now), absl::FromUnixSeconds(1'000'000'000));
  const absl::CivilSecond local(2001, 9, 9, 1, 46, 40);
  EXPECT_EQ(*ParseSince("2001-09-09 01:46:40", now), absl::FromCivil(local, absl::LocalTimeZone()));
  EXPECT_EQ(*ParseSince("2001-09-09", now), absl::FromCivil(absl::CivilDay(2001, 9, 9), absl::LocalTimeZone()));
  for (const char* bad : {"yesterday", "-1h", "0", "2001-13-01"}) EXPECT_FALSE(ParseSince(bad, now).ok()) << bad;
}

TEST(ParseWhen, TakesTimesAndHowLongFromNow) {
  const absl::Time now = absl::FromUnixSeconds(1'000'000'000);
  EXPECT_EQ(*ParseWhen("--start", "now", now), now);
  EXPECT_EQ(*ParseWhen("--start", "2h", now), now + absl::Hours(2));
  EXPECT_EQ(*ParseWhen("--start", "2001-09-10T01:46:40Z", now), now + absl::Hours(24));
  const absl::Time local = absl::FromCivil(absl::CivilSecond(2026, 12, 1, 8, 0, 0), absl::LocalTimeZone());
  for (const char* text : {"2026-12-01T08:00", "2026-12-01 08:00", "2026-12-01T08:00:00", "2026-12-01 08:00:00"}) {
    EXPECT_EQ(*ParseWhen("--start", text, now), local) << text;
  }
  EXPECT_EQ(ParseWhen("--end", "tomorrow", now).status().message(),
            "--end tomorrow: write a time (2026-01-31T12:00), how long from now (2h, 7d), or now");
}

TEST(ParseTimeout, TakesDurationsAndSeconds) {
  EXPECT_EQ(*ParseTimeout("1.5"), absl::Milliseconds(1500));
  EXPECT_EQ(*ParseTimeout("1h30m"), absl::Minutes(90));
  EXPECT_EQ(*ParseTimeout("7d"), absl::Hours(168));
  EXPECT_EQ(*ParseTimeout("1d12h"), absl::Hours(36));
  for (const char* bad : {"", "x", "0", "-1s", "d", "-1d", "1dx", "0d", "1.5d", "inf", "nan", "5 s"})
    EXPECT_FALSE(ParseTimeout(bad).ok()) << bad;
}

}  // namespace
}  // namespace muster::cli
