// The pages against the tree: links resolve, the README is short, and the pages that promise to have all names of a
// kind have them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/docs/checkout.h"

namespace muster::docs {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostWordsOfTheReadme = 900;

// The first group of every match.
std::set<std::string> Found(const std::string& text, const std::regex& pattern, size_t group = 1) {
  std::set<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) found.insert((*it)[group]);
  return found;
}

// GitHub's anchors: lower case, spaces as -, nothing else but letters, digits, - and _. A repeated one gets -1, -2.
std::set<std::string> AnchorsOf(const std::string& page) {
  std::map<std::string, int> seen;
  std::set<std::string> anchors;
  for (const std::string& line : Prose(page)) {
    const size_t level = line.find_first_not_of('#');
    if (level == 0 || level == std::string::npos || level > 6 || line[level] != ' ') continue;
    // A link in a heading counts with its text.
    const std::string heading =
        std::regex_replace(line.substr(level + 1), std::regex(R"(\[([^\]]*)\]\([^)]*\))"), "$1");
    std::string anchor;
    for (const char c : heading) {
      const auto u = static_cast<unsigned char>(c);
      if (absl::ascii_isalnum(u) || c == '-' || c == '_' || u >= 0x80) anchor += absl::ascii_tolower(u);
      if (c == ' ') anchor += '-';
    }
    const int before = seen[anchor]++;
    anchors.insert(before == 0 ? anchor : absl::StrCat(anchor, "-", before));
  }
  return anchors;
}

TEST(Pages, EveryRelativeLinkAndAnchorResolves) {
  const std::regex link(R"(\]\(([^)\s]+)\))");
  int checked = 0;
  for (const fs::path& file : Files({".md"})) {
    for (const std::string& line : Prose(ReadFile(Root() / file))) {
      for (const std::string& target : Found(line, link)) {
        if (absl::StrContains(target, "://") || absl::StartsWith(target, "mailto:")) continue;
        const size_t hash = target.find('#');
        const std::string path = target.substr(0, hash);
        const fs::path to = path.empty() ? Root() / file : Root() / file.parent_path() / path;
        ++checked;
        if (!fs::exists(to)) {
          ADD_FAILURE() << file << ": no file " << target;
        } else if (hash != std::string::npos) {
          EXPECT_TRUE(AnchorsOf(ReadFile(to)).contains(target.substr(hash + 1))) << file << ": no anchor " << target;
        }
      }
    }
  }
  EXPECT_GT(checked, 150) << "the pattern does not find them";
}

TEST(Pages, AnchorsAreGitHubs) {
  EXPECT_EQ(AnchorsOf("# A b, c_d `e`\n## A\n```\n# no\n```\n## A\n#x\n## 3. Two, over TLS\n"),
            (std::set<std::string>{"a-b-c_d-e", "a", "a-1", "3-two-over-tls"}));
}

TEST(Pages, TheIndexHasEveryPage) {
  const std::string index = ReadPage("docs/index.md");
  for (const fs::path& file : Files({".md"})) {
    if (!absl::StartsWith(file.string(), "docs/") || file == "docs/index.md") continue;
    EXPECT_TRUE(absl::StrContains(index, absl::StrCat("(", file.string().substr(5), ")"))) << file;
  }
}

TEST(Readme, IsReadInThreeMinutes) {
  const std::string page = ReadPage("README.md");
  const std::vector<std::string> words = absl::StrSplit(page, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  EXPECT_LE(words.size(), kMostWordsOfTheReadme);
  EXPECT_GT(words.size(), kMostWordsOfTheReadme / 3);
  const std::vector<std::string> sentences =
      absl::StrSplit(page.substr(0, page.find("\n## ")), absl::ByAnyChar(".!?"), absl::SkipWhitespace());
  EXPECT_EQ(sentences.size(), 3u) << "what Muster is";
  // "in 9m 06s" of the transcript is what the text before it says.
  EXPECT_TRUE(absl::StrContains(page, "completed: 1,300 steps in 9m ") &&
              absl::StrContains(page, "training took nine\n"));
  EXPECT_FALSE(absl::StrContains(page, "tests/faults")) << "it cites no tests";
  EXPECT_LT(page.find("\n## A job\n"), page.find("\n## Compared to PyTorch\n"));
}

// Names that start with MUSTER_ but are macros.
std::set<std::string> Macros() {
  std::set<std::string> macros;
  const std::regex define(R"(#(?:define |ifdef |ifndef |if defined\()(MUSTER_\w+))");
  for (const fs::path& file : Files({".h", ".cc", ".cu"})) {
    macros.merge(Found(ReadFile(Root() / file), define));
  }
  return macros;
}

TEST(Configuration, HasEveryEnvironmentVariable) {
  const std::string page = ReadPage("docs/configuration.md");
  const std::set<std::string> macros = Macros();
  const std::regex own(R"(\bMUSTER_[A-Z0-9]+(_[A-Z0-9]+)*\b)");
  const std::regex read(R"re((getenv|environment|Variable|Environment)\("([A-Z][A-Z0-9_]+)"\))re");
  const std::regex python(R"re(environ\.get\("([A-Z][A-Z0-9_]+)")re");
  std::set<std::string> names;
  for (const fs::path& file : Files({".cc", ".sh", ".py", ".bzl", ".yaml", ".service", ".sbatch"})) {
    const std::string text = ReadFile(Root() / file);
    const std::string folder = *file.begin();
    if (folder == "sdk" && file.extension() == ".py" && !IsTest(file)) names.merge(Found(text, python));
    if (folder == "build_defs" || folder == "sdk" || folder == "docs") continue;
    names.merge(Found(text, own, 0));
    if (!IsTest(file)) names.merge(Found(text, read, 2));
  }
  for (const std::string& name : names) {
    if (macros.contains(name)) continue;
    EXPECT_TRUE(std::regex_search(page, std::regex(absl::StrCat("\\b", name, "\\b")))) << name;
  }
  EXPECT_GT(names.size(), 30u);
}

TEST(Configuration, HasEveryVariableOfARank) {
  const std::string page = ReadPage("docs/configuration.md"), exec = ReadPage("docs/exec.md");
  const std::string code = ReadPage("worker/agent/command_line.cc");
  std::smatch list;
  ASSERT_TRUE(std::regex_search(code, list, std::regex(R"(kInherited\[\] = \{([^}]*)\})")));
  const std::vector<std::string> inherited =
      absl::StrSplit(list[1].str(), absl::ByAnyChar("\", \n"), absl::SkipEmpty());
  EXPECT_GT(inherited.size(), 9u);
  for (const std::string& name : inherited) {
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("`", name, "`"))) << name;
    EXPECT_TRUE(absl::StrContains(exec, absl::StrCat("`", name, "`"))) << name;
  }
  std::set<std::string> set = Found(code, std::regex(R"re(\bset\("([A-Z_]+)")re"));
  EXPECT_TRUE(set.contains("LOGNAME"));
  set.merge(Found(ReadPage("worker/collectives/nccl.cc"), std::regex(R"re(\bsetenv\("([A-Z_]+)")re")));
  EXPECT_TRUE(set.contains("NCCL_LAUNCH_ORDER_IMPLICIT"));
  for (const std::string& name : set) EXPECT_TRUE(std::regex_search(page, std::regex("`" + name + "[`=]"))) << name;
}

TEST(Configuration, HasEveryKeyOfTheContextFile) {
  const std::string page = ReadPage("docs/configuration.md"), code = ReadPage("cli/config.cc");
  std::smatch keys;
  ASSERT_TRUE(std::regex_search(code, keys, std::regex(R"(known = \{([^}]*)\})")));
  const std::vector<std::string> words = absl::StrSplit(keys[1].str(), absl::ByAnyChar("\", "), absl::SkipEmpty());
  EXPECT_EQ(words.size(), 5u);
  for (const std::string& word : words) EXPECT_TRUE(absl::StrContains(page, absl::StrCat("`", word, "`"))) << word;
}

// Each call in the row of the right that the coordinator asks for, and no other call.
TEST(Security, HasEveryCallWithItsRight) {
  const std::string page = ReadPage("docs/security.md");
  const std::map<std::string, std::string> rows = {
      {"kRead", "read the cluster"},
      {"kReadJob", "read a job"},
      {"kSubmit", "submit"},
      {"kOwn", "steer a job or template"},
      {"kAdmin", "administer"},
      {"kWorker", "be a node"},
      {"kJoin", "join"},
  };
  const std::regex rule(R"re(\{"/muster\.v1\.(\w+)/(\w+)", Needs::(\w+)\})re");
  const std::string rules = ReadPage("coordinator/rpc/authorize.cc");
  std::map<std::string, std::set<std::string>> expected, shown;
  for (std::sregex_iterator at(rules.begin(), rules.end(), rule), end; at != end; ++at) {
    ASSERT_TRUE(rows.contains((*at)[3])) << (*at)[3];
    expected[rows.at((*at)[3])].insert(absl::StrCat((*at)[1].str(), ".", (*at)[2].str()));
  }
  const std::regex row(R"re(\| ([a-z ]+) \| (`[A-Z]\w+\.[^|]+) \|)re"), call(R"re(`(\w+\.\w+)`)re");
  for (std::sregex_iterator at(page.begin(), page.end(), row), end; at != end; ++at) {
    shown[(*at)[1]] = Found((*at)[2], call);
  }
  EXPECT_EQ(shown, expected);
  EXPECT_EQ(expected.size(), rows.size());
}

// "Suite.Case" of every test in C++.
std::set<std::string> Cases() {
  const std::regex begin(R"(\b(?:TEST|TEST_F|TEST_P|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)\(\s*(\w+),\s*(\w+))");
  std::set<std::string> cases;
  for (const fs::path& file : Files({".cc"})) {
    if (!absl::EndsWith(file.string(), "_test.cc")) continue;
    const std::string text = ReadFile(Root() / file);
    for (std::sregex_iterator at(text.begin(), text.end(), begin), end; at != end; ++at) {
      cases.insert(absl::StrCat((*at)[1].str(), ".", (*at)[2].str()));
    }
  }
  return cases;
}

// A test that was renamed or removed leaves a claim without evidence.
TEST(Reliability, NamesTestsThatThereAre) {
  const std::set<std::string> cases = Cases();
  const std::regex name(R"(`([A-Z]\w+\.[A-Z]\w+)`)"), path(R"(`((?:\w+/)+\w+_test)`)");
  size_t names = 0, paths = 0;
  for (const char* page : {"docs/reliability.md", "docs/internals/reliability.md", "docs/internals/protections.md",
                           "docs/internals/parity.md", "docs/internals/checkpoints.md"}) {
    const std::string text = ReadPage(page);
    for (const std::string& test : Found(text, name)) {
      EXPECT_TRUE(cases.contains(test)) << page << ": there is no test " << test;
      ++names;
    }
    for (const std::string& file : Found(text, path)) {
      EXPECT_TRUE(fs::exists(Root() / absl::StrCat(file, ".cc"))) << page << ": there is no file " << file << ".cc";
      ++paths;
    }
  }
  EXPECT_GT(names, 120u);
  EXPECT_GT(paths, 20u);
}

// Evidence is in docs/internals.
TEST(Pages, ForUsersNameNoTests) {
  const std::regex test(R"(`[^`\n]*(\b\w+/\w+_test\b|/\w+:\w+_test\b|_test\.cc\b)[^`\n]*`)");
  for (const char* page :
       {"checkpoints", "data", "exec", "models", "networks", "parallelism", "performance", "security", "web"}) {
    EXPECT_EQ(Found(ReadPage(absl::StrCat("docs/", page, ".md")), test), std::set<std::string>()) << page;
  }
}

// "a request": 8 KiB, or the size that stands behind the names of methods.
TEST(Reliability, HasTheLimitOfEveryRequest) {
  const std::string rows = ReadPage("docs/reliability.md"), code = ReadPage("common/rpc/message_limits.h");
  std::smatch row;
  ASSERT_TRUE(std::regex_search(rows, row, std::regex(R"(\| a request \| 8 KiB; ([^|]+) \|)")));
  const std::string all = row[1];
  const std::regex part(R"(of ([A-Za-z, ]+) (\d+ [KM]iB);)"), method(R"(\b([A-Z]\w+))");
  std::map<std::string, std::string> shown, expected;
  for (std::sregex_iterator at(all.begin(), all.end(), part), end; at != end; ++at) {
    for (const std::string& of : Found((*at)[1], method)) shown[of] = (*at)[2];
  }
  const std::regex limit(R"(MUSTER_LIMIT_MESSAGE\((\w+)Request, (\d+) << (\d+)\);)");
  for (std::sregex_iterator at(code.begin(), code.end(), limit), end; at != end; ++at) {
    ASSERT_TRUE((*at)[3] == "10" || (*at)[3] == "20") << (*at)[0];
    const std::string size = absl::StrCat((*at)[2].str(), (*at)[3] == "10" ? " KiB" : " MiB");
    if (size != "8 KiB") expected[(*at)[1]] = size;
  }
  EXPECT_EQ(shown, expected);
  EXPECT_GT(expected.size(), 5u);
}

TEST(Operations, HasEveryMetric) {
  const std::string page = ReadPage("docs/operations.md");
  const std::regex name(R"re("(muster_[a-z_]+)")re");
  std::set<std::string> names;
  for (const fs::path& file : Files({".cc"})) {
    const std::string path = file.string();
    if (IsTest(file) || !(absl::StartsWith(path, "coordinator/") || absl::StartsWith(path, "worker/"))) continue;
    names.merge(Found(ReadFile(Root() / file), name));
  }
  for (const std::string& metric : names) {
    EXPECT_TRUE(absl::StrContains(page, absl::StrCat("| `", metric, "` |"))) << metric;
  }
  EXPECT_GT(names.size(), 30u);
  // Nor one that is gone.
  for (const std::string& metric : Found(page, std::regex(R"(\| `(muster_[a-z_]+)` \|)"))) {
    EXPECT_TRUE(names.contains(metric)) << metric << " is no metric";
  }
}

TEST(Operations, HasEveryAlert) {
  const std::string page = ReadPage("docs/operations.md"), rules = ReadPage("deploy/prometheus/alerts.yml");
  const std::set<std::string> alerts = Found(rules, std::regex(R"(- alert: (\w+))"));
  EXPECT_GT(alerts.size(), 10u);
  EXPECT_EQ(Found(page, std::regex(R"(\| `(Muster\w+)` \|)")), alerts);
}

// A pager shows the text of the rule. What it says to do is what the page says.
TEST(Operations, AlertsSayWhatThePageSays) {
  const std::string page = ReadPage("docs/operations.md"), rules = ReadPage("deploy/prometheus/alerts.yml");
  std::map<std::string, std::string> shown, expected;
  const std::regex row(R"re(\| `(Muster\w+)` \|[^|]*\|[^|]*\| ([^|\n]*) \|)re");
  for (std::sregex_iterator at(page.begin(), page.end(), row), end; at != end; ++at) {
    shown[(*at)[1]] = std::regex_replace((*at)[2].str(), std::regex(R"(\[\w+\]\(([^)]*)\))"), "docs/$1");
  }
  const std::regex rule(R"re(- alert: (\w+)[^]*?description: "?([^\n]*?)"?\n)re");
  for (std::sregex_iterator at(rules.begin(), rules.end(), rule), end; at != end; ++at) {
    expected[(*at)[1]] = std::regex_replace((*at)[2].str(), std::regex(R"(\{\{ \$labels\.job_id \}\})"), "JOB");
  }
  EXPECT_EQ(shown, expected);
}

// The text of all strings of the programs, as one: pieces that the code joins follow each other.
std::string Strings() {
  std::string all;
  for (const fs::path& file : Files({".cc", ".h"})) {
    if (IsTest(file)) continue;
    const std::string text = ReadFile(Root() / file);
    bool inside = false;
    for (size_t i = 0; i < text.size(); ++i) {
      if (!inside && text[i] == '/' && i + 1 < text.size() && text[i + 1] == '/') {
        i = std::min(text.find('\n', i), text.size());
      } else if (!inside && text[i] == '\'' && i + 2 < text.size() && text[i + 2] == '\'') {
        i += 2;  // '"'
      } else if (text[i] == '"') {
        inside = !inside;
        // Only a literal right behind another one, or behind a comma, continues it.
        if (!inside) {
          const size_t next = text.find_first_not_of(" \n,", i + 1);
          if (next == std::string::npos || text[next] != '"') all += '\n';
        }
      } else if (inside) {
        if (text[i] == '\\' && i + 1 < text.size()) ++i;
        all += text[i];
      }
    }
    all += '\n';
  }
  return all;
}

TEST(Troubleshooting, QuotesMessagesThatThereAre) {
  const std::string strings = Strings();
  int quoted = 0;
  for (const std::string& line : Prose(ReadPage("docs/troubleshooting.md"))) {
    if (!absl::StartsWith(line, "| `")) continue;
    const std::string cell = line.substr(0, line.find(" | "));
    const std::vector<std::string> parts = absl::StrSplit(cell, '`');
    for (size_t i = 1; i < parts.size(); i += 2) {
      EXPECT_TRUE(absl::StrContains(strings, parts[i])) << "no program says \"" << parts[i] << "\": " << line;
      ++quoted;
    }
  }
  EXPECT_GT(quoted, 30);
  EXPECT_FALSE(absl::StrContains(strings, "a message that no program has"));
}

// Checkpoints of one job must not be in another's way: `runs/NAME` would be shared by all jobs of a file.
TEST(Examples, EveryCheckpointPathIsOfOneJob) {
  const std::regex path(R"(checkpoint:?[^\n]*\bpath: *("[^"]*"|[^,}\n]+))"), alone(R"(^  path: *([^ #\n]+))");
  int checked = 0;
  for (const fs::path& file : Files({".yaml", ".md"})) {
    const std::string name = file.string();
    if (IsTest(file) ||
        !(absl::StartsWith(name, "examples/") || absl::StartsWith(name, "docs/") || name == "README.md")) {
      continue;
    }
    const std::string text = ReadFile(Root() / file);
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
      std::smatch found;
      if (!std::regex_search(line, found, path) && !std::regex_search(line, found, alone)) continue;
      const std::string value = found[1];
      if (absl::StartsWith(value, "FOLDER") || absl::StartsWith(value, "\"\"")) continue;
      EXPECT_TRUE(absl::StrContains(value, "{job}") || absl::StrContains(value, "{name}")) << file << ": " << line;
      ++checked;
    }
  }
  EXPECT_GT(checked, 10);
}

}  // namespace
}  // namespace muster::docs
