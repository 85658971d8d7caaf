// Every #include of our sources against allowed_includes.txt, the pure folders against clocks, randomness and
// unordered iteration by name, and every file against words that were replaced by the field's own. Bazel's visibility
// keeps our own targets apart; it does not see system headers.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

const std::set<std::string, std::less<>> kImpure = {
    "atomic",   "chrono", "condition_variable", "ctime",  "filesystem", "fstream",       "future",
    "iostream", "mutex",  "shared_mutex",       "random", "thread",     "unordered_map", "unordered_set",
};
// Spelt so that this file does not contain them as words of code.
const std::vector<std::string> kImpureNames = {
    "absl::Now(",  "absl::flat_hash_", "absl::node_hash_", "absl::Mutex",   "absl::SleepFor", "std::unordered_",
    "std::random", "getenv(",          " rand(",           "gettimeofday(", "clock_gettime(", "std::this_thread",
};

// The checkout: this test runs outside the sandbox, where runfiles are links to the real sources.
fs::path Root() { return fs::canonical("WORKSPACE").parent_path(); }

struct Rule {
  std::set<std::string, std::less<>> words;
};

std::map<std::string, Rule> ReadRules() {
  std::map<std::string, Rule> rules;
  std::ifstream in(Root() / "tests/borders/allowed_includes.txt");
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    rules[words[0]].words.insert(words.begin() + 1, words.end());
  }
  for (auto& [folder, rule] : rules) {
    const auto named = rule.words;
    for (const std::string& word : named) {
      if (word[0] == '_') rule.words.insert(rules.at(word).words.begin(), rules.at(word).words.end());
    }
  }
  return rules;
}

std::vector<fs::path> Sources(const std::set<std::string>& endings = {".h", ".cc", ".cu"}) {
  std::vector<fs::path> files;
  const std::set<std::string> skipped = {"third_party", ".git", "bin", "runs"};
  for (auto it = fs::recursive_directory_iterator(Root()); it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    if (it->is_symlink() || skipped.contains(name)) {
      it.disable_recursion_pending();
      continue;
    }
    const std::string ext = it->path().extension().string();
    if (it->is_regular_file() && endings.contains(ext)) {
      files.push_back(fs::relative(it->path(), Root()));
    }
  }
  return files;
}

const Rule* RuleFor(const std::map<std::string, Rule>& rules, fs::path folder, std::string& name) {
  for (; !folder.empty(); folder = folder.parent_path()) {
    const auto found = rules.find(folder.string());
    if (found != rules.end()) {
      name = found->first;
      return &found->second;
    }
  }
  return nullptr;
}

// The rule of the allow-list that an included path falls under; the path itself if no fixed rule matches.
std::string WordFor(absl::string_view path, bool angled) {
  if (absl::EndsWith(path, ".grpc.pb.h") || absl::StartsWith(path, "grpc")) return "grpc";
  if (absl::StartsWith(path, "proto/")) return "proto";
  for (const char* torch : {"ATen/", "c10/", "torch/", "caffe2/"}) {
    if (absl::StartsWith(path, torch)) return "torch";
  }
  if (angled && !absl::StrContains(path, '/') && !absl::StrContains(path, '.')) return "std";
  for (const char* posix : {"sys/", "linux/", "net/", "netinet/", "arpa/"}) {
    if (absl::StartsWith(path, posix)) return "posix";
  }
  if (angled && !absl::StrContains(path, '/') && path != "sqlite3.h" && path != "nccl.h") return "posix";
  return std::string(path);
}

bool Allowed(const Rule& rule, absl::string_view path, bool angled) {
  const std::string word = WordFor(path, angled);
  if (word == "std" && rule.words.contains("pure")) return !kImpure.contains(std::string(path));
  if (rule.words.contains(word)) return true;
  for (const std::string& allowed : rule.words) {
    if (absl::StartsWith(word, absl::StrCat(allowed, "/")) || absl::StartsWith(word, absl::StrCat(allowed, ".")))
      return true;
  }
  return false;
}

void CheckFile(const fs::path& file, const Rule& rule, const Rule& test_rule, const std::string& rule_name) {
  const bool test = absl::StrContains(file.filename().string(), "_test.");
  const bool pure = rule.words.contains("pure") && !test;
  std::ifstream in(Root() / file);
  int number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    const std::string where = absl::StrCat(file.string(), ":", number);
    absl::string_view line = absl::StripLeadingAsciiWhitespace(text);
    if (absl::ConsumePrefix(&line, "#include ")) {
      if (line.size() < 3) continue;
      const bool angled = line[0] == '<';
      const absl::string_view path = line.substr(1, line.find(angled ? '>' : '"', 1) - 1);
      const bool own = absl::StartsWith(path, absl::StrCat(file.parent_path().string(), "/")) ||
                       absl::StartsWith(path, absl::StrCat(rule_name, "/")) || absl::StartsWith(path, "testing/");
      if (own || Allowed(rule, path, angled) || (test && Allowed(test_rule, path, angled))) continue;
      ADD_FAILURE() << where << ": " << rule_name << " may not include " << path
                    << " (tests/borders/allowed_includes.txt)";
    } else if (pure && !absl::StartsWith(line, "//")) {
      for (const std::string& name : kImpureNames) {
        EXPECT_FALSE(absl::StrContains(line, name)) << where << ": a pure folder may not use " << name;
      }
    }
  }
}

// The retired words, each with the one that is used now.
std::map<std::string, std::string> ReadRetiredWords() {
  std::map<std::string, std::string> words;
  std::ifstream in(Root() / "tests/borders/retired_words.txt");
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::pair<std::string, std::string> pair = absl::StrSplit(line, absl::MaxSplits(absl::ByAnyChar(" "), 1));
    words.insert(pair);
  }
  return words;
}

// The words of a line in lower case: of Wish, kWishes, wish_ and checkpoint_wish "wish", "wishes", "wish", "wish".
std::vector<std::string> WordsOf(absl::string_view line) {
  std::vector<std::string> words(1);
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    const bool letter = absl::ascii_isalpha(static_cast<unsigned char>(c));
    const bool starts = absl::ascii_isupper(static_cast<unsigned char>(c)) && i > 0 &&
                        absl::ascii_islower(static_cast<unsigned char>(line[i - 1]));
    if (!letter || starts) words.emplace_back();
    if (letter) words.back() += absl::ascii_tolower(static_cast<unsigned char>(c));
  }
  return words;
}

TEST(Borders, RetiredWordsStayRetired) {
  const std::map<std::string, std::string> retired = ReadRetiredWords();
  ASSERT_TRUE(retired.contains("wish"));
  for (const fs::path& file : Sources({".h", ".cc", ".cu", ".proto", ".md", ".py", ".sh", ".yaml", ".bzl"})) {
    if (file == "CHANGELOG.md") continue;
    std::ifstream in(Root() / file);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      for (const std::string& word : WordsOf(line)) {
        const auto found = retired.find(word);
        if (found == retired.end() || file == "tests/borders/borders_test.cc") continue;
        ADD_FAILURE() << file.string() << ":" << number << ": say " << found->second << " for \"" << word << "\"";
      }
    }
  }
}

// The built-in families, by their folders: "gpt2".
std::vector<std::string> Families() {
  std::vector<std::string> families;
  for (const auto& entry : fs::directory_iterator(Root() / "models")) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && name != "custom") families.push_back(name);
  }
  return families;
}

// What names a family in code: Gpt2Family, gpt2(), "gpt2.block", GPT2_SIZE_TINY.
std::regex NamesOf(const std::string& family) {
  const std::string upper = absl::AsciiStrToUpper(family);
  const std::string camel = absl::StrCat(upper.substr(0, 1), family.substr(1));
  return std::regex(absl::StrCat(camel, R"(([A-Z]|\b)|\b\w*)", family, R"(\(|")", family, R"(\.?\w*"|)", upper, "_"));
}

// The lines of a file's code that `names` finds. All of them have `word`, in capitals or not: regular expressions are
// slow.
std::vector<std::string> LinesWith(const std::string& word, const std::regex& names, const fs::path& file) {
  std::vector<std::string> lines;
  std::ifstream in(Root() / file);
  for (std::string line; std::getline(in, line);) {
    const std::string code = line.substr(0, line.find("//"));
    if (absl::StrContains(absl::AsciiStrToLower(code), word) && std::regex_search(code, names)) lines.push_back(line);
  }
  return lines;
}

// A family is its two folders, its message in the spec and a line in each of the two lists; tests, benches and fakes
// may name it.
TEST(Borders, NoOtherFileNamesAModelFamily) {
  const std::vector<std::string> families = Families();
  ASSERT_GE(families.size(), 3u);
  const std::regex all(
      R"(models/family\.cc|worker/units/families\.cc|(bench|tests)/.*|.*(_test|_fuzz)\.(cc|h)|)"
      R"(coordinator/daemon/testing\.cc|coordinator/simulate/simulation\.cc|worker/trainer/fake_trainer_server\.cc)");
  for (const std::string& family : families) {
    const std::regex names = NamesOf(family), own(absl::StrCat("(models|worker/units)/", family, "/.*"));
    std::set<std::string> found;
    for (const fs::path& file : Sources()) {
      const std::vector<std::string> lines = LinesWith(family, names, file);
      if (lines.empty()) continue;
      found.insert(file.string());
      if (std::regex_match(file.string(), own) || std::regex_match(file.string(), all)) continue;
      for (const std::string& line : lines)
        ADD_FAILURE() << file << " names the model family " << family << ": " << line;
    }
    for (const char* list : {"models/family.cc", "worker/units/families.cc"}) {
      EXPECT_TRUE(found.contains(list)) << "the pattern does not find " << family << " in " << list;
    }
  }
}

// A user's own model comes from a library, which these files find, trust and load; nothing else knows of it.
TEST(Borders, OnlyWhatLoadsLibrariesNamesCustomModels) {
  const std::regex names(R"(\bk?Custom([A-Z][a-z]|\b)|\b(has_|mutable_)?custom\(|"custom\.?\w*")");
  const std::regex may(
      R"((models|worker/units)/custom/.*|models/family\.cc|worker/units/families\.cc|cli/job_file\.cc|)"
      R"(cli/spec/paths\.cc|worker/agent/(rank_checks|command_line)\.cc|worker/plugins/.*|)"
      R"(worker/trainer/(inspect|main|weights)\.cc|(bench|tests)/.*|.*_test\.(cc|h))");
  size_t found = 0;
  for (const fs::path& file : Sources()) {
    for (const std::string& line : LinesWith("custom", names, file)) {
      ++found;
      EXPECT_TRUE(std::regex_match(file.string(), may)) << file << " names custom models: " << line;
    }
  }
  EXPECT_GT(found, 20u) << "the pattern does not find them";
}

// Whether a line of code divides or multiplies a rank's number or coordinate. Numbers of a mesh (mesh.shard) are
// counts.
bool HasRankArithmetic(const std::string& line) {
  static const auto* const counts = new std::regex(R"(\bmesh\.\w+)");
  static const auto* const names = new std::regex(
      R"(\b(r|rank|owner|replica|shard|stage)_?(\(\))? [%/] [A-Za-z_(]|\b(owner|replica|shard|stage)_?(\(\))? \* \w)");
  const std::string code = line.substr(0, line.find("//"));
  if (!absl::StrContains(code, " % ") && !absl::StrContains(code, " / ") && !absl::StrContains(code, " * "))
    return false;
  return std::regex_search(std::regex_replace(code, *counts, "count"), *names);
}

TEST(Borders, RankArithmeticIsFound) {
  for (const char* line : {"weights[r % shards]", "ranks[r - r % tensor].node", "ranks.subspan(stage * each, each)",
                           "owner / shards_inside_", "shard_ % shards_inside_", "at.replica % mesh.replicas_inside",
                           "role.replica() * table.shards() + role.shard()", "rank / std::max(1u, ranks_per_node)",
                           "parts[stage * mesh.tensor + share]"}) {
    EXPECT_TRUE(HasRankArithmetic(line)) << line;
  }
  for (const char* line : {"elements /= mesh.shard * mesh.replicas_inside", "stage.trained / mesh.shard * reduced",
                           "ranks.size() % tensor != 0", "colors[shard % 3]", "x;  // r % shards"}) {
    EXPECT_FALSE(HasRankArithmetic(line)) << line;
  }
}

// Kernels count rows so, and collectives the ranks of a group.
TEST(Borders, OnlyTheMeshCalculatesWithRanks) {
  const std::regex may(
      R"(strategies/schedule/mesh\.(cc|h)|worker/(units|collectives)/.*|(bench|tests)/.*|.*_test\.(cc|h))");
  for (const fs::path& file : Sources()) {
    if (std::regex_match(file.string(), may)) continue;
    std::ifstream in(Root() / file);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      EXPECT_FALSE(HasRankArithmetic(line)) << file.string() << ":" << number << ": calculates with a rank's place; "
                                            << "strategies/schedule/mesh.h does that: " << line;
    }
  }
}

// "kVersion" of "constexpr char kVersion[] = ...", at the beginning of a line; "": it defines no constant.
std::string ConstantOf(const std::string& line) {
  static const auto* const constants =
      new std::regex(R"(^(inline )?(constexpr|const) [^=({]*\b(k[A-Z]\w*)(\[\])?\s*[={].*)");
  std::smatch match;
  return std::regex_match(line, match, *constants) ? match[3].str() : "";
}

// The sources of a target are compiled together, so a source's own constant would stand in for the header's in all of
// the target's sources.
TEST(Borders, ConstantsOfASourceHideNoneOfAHeader) {
  ASSERT_EQ(ConstantOf("inline constexpr char kVersion[] = \"0.1.0\";"), "kVersion");
  ASSERT_EQ(ConstantOf("constexpr absl::Duration kPatience = absl::Seconds(1);"), "kPatience");
  ASSERT_EQ(ConstantOf("  const int kHere = 1;"), "");
  std::map<std::string, std::string> of_headers;  // of namespace muster, which every source sees
  for (const fs::path& file : Sources({".h"})) {
    std::ifstream in(Root() / file);
    bool everywhere = false;
    for (std::string line; std::getline(in, line);) {
      if (absl::StartsWith(line, "namespace ")) everywhere = line == "namespace muster {";
      if (const std::string name = ConstantOf(line); everywhere && !name.empty()) of_headers[name] = file.string();
    }
  }
  ASSERT_TRUE(of_headers.contains("kVersion"));
  for (const fs::path& file : Sources({".cc"})) {
    std::ifstream in(Root() / file);
    for (std::string line; std::getline(in, line);) {
      const auto hidden = of_headers.find(ConstantOf(line));
      if (hidden == of_headers.end()) continue;
      ADD_FAILURE() << file.string() << " hides " << hidden->first << " of " << hidden->second << ": " << line;
    }
  }
}

TEST(Borders, WordsAreFoundInsideOfNames) {
  EXPECT_EQ(absl::StrJoin(WordsOf("kLastWish(checkpoint_wish)"), " "), "k last wish checkpoint wish ");
}

// Of an option's names the first one is documented: --kebab-case, in the programs of bench/ too. An older spelling may
// follow. Scripts in examples/ are those of users.
TEST(Borders, FlagsAreKebabCase) {
  const std::regex underscored(R"re(add_(option|flag|argument)\(\s*"--[a-z0-9-]*_)re");
  EXPECT_TRUE(std::regex_search("app.add_option(\"--crowd_size\", size);", underscored));
  EXPECT_FALSE(std::regex_search("app.add_option(\"--crowd-size,--crowd_size\", size);", underscored));
  for (const fs::path& file : Sources({".h", ".cc", ".py"})) {
    if (*file.begin() == "examples") continue;
    std::ifstream in(Root() / file);
    std::stringstream text;
    text << in.rdbuf();
    const std::string code = text.str();
    std::smatch found;
    EXPECT_FALSE(std::regex_search(code, found, underscored)) << file << ": " << found.str();
  }
}

TEST(Borders, EveryIncludeIsAllowed) {
  const std::map<std::string, Rule> rules = ReadRules();
  ASSERT_TRUE(rules.contains("_test"));
  size_t checked = 0;
  for (const fs::path& file : Sources()) {
    std::string name;
    const Rule* rule = RuleFor(rules, file.parent_path(), name);
    if (rule == nullptr) {
      ADD_FAILURE() << file << ": its folder has no line in tests/borders/allowed_includes.txt";
      continue;
    }
    CheckFile(file, *rule, rules.at("_test"), name);
    ++checked;
  }
  EXPECT_GT(checked, 10u) << "the sources were not found";
}

// The rules themselves: each border refuses the includes that it exists for.
TEST(Borders, RulesRefuseWhatTheyAreFor) {
  std::map<std::string, Rule> rules = ReadRules();
  EXPECT_FALSE(Allowed(rules["coordinator/core"], "grpcpp/grpcpp.h", true));
  EXPECT_FALSE(Allowed(rules["coordinator/core"], "proto/jobs_service.grpc.pb.h", false));
  EXPECT_FALSE(Allowed(rules["coordinator/core"], "chrono", true));
  EXPECT_FALSE(Allowed(rules["coordinator/core"], "unistd.h", true));
  EXPECT_FALSE(Allowed(rules["models"], "unordered_map", true));
  EXPECT_FALSE(Allowed(rules["strategies"], "ATen/core/Tensor.h", false));
  EXPECT_FALSE(Allowed(rules["coordinator"], "ATen/core/Tensor.h", false));
  EXPECT_FALSE(Allowed(rules["worker/engine"], "grpcpp/grpcpp.h", true));
  EXPECT_FALSE(Allowed(rules["worker/shim"], "grpcpp/grpcpp.h", true));
  EXPECT_FALSE(Allowed(rules["worker/agent"], "torch/torch.h", false));
  EXPECT_FALSE(Allowed(rules["cli"], "worker/engine/engine.h", false));
  EXPECT_FALSE(Allowed(rules["coordinator/core"], "common/file/durable_file.h", false));
  EXPECT_FALSE(Allowed(rules["strategies"], "common/failpoint.h", false));
  EXPECT_TRUE(Allowed(rules["strategies"], "common/bytes.h", false));
  EXPECT_TRUE(Allowed(rules["coordinator/core"], "map", true));
  EXPECT_TRUE(Allowed(rules["coordinator/core"], "proto/job.pb.h", false));
  EXPECT_TRUE(Allowed(rules["worker/units"], "ATen/ops/add.h", false));
}

}  // namespace
}  // namespace muster
