#include "tests/docs/checkout.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"

namespace muster::docs {

namespace fs = std::filesystem;

fs::path Root() { return fs::canonical("WORKSPACE").parent_path(); }

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string ReadPage(const std::string& name) {
  const std::string text = ReadFile(Root() / name);
  EXPECT_FALSE(text.empty()) << name;
  return text;
}

std::vector<fs::path> Files(const std::set<std::string>& endings) {
  const std::set<std::string> skipped = {"third_party", ".git", "bin", "runs", "shared"};
  std::vector<fs::path> files;
  for (auto it = fs::recursive_directory_iterator(Root()); it != fs::recursive_directory_iterator(); ++it) {
    if (it->is_symlink() || skipped.contains(it->path().filename().string())) {
      it.disable_recursion_pending();
      continue;
    }
    if (it->is_regular_file() && endings.contains(it->path().extension().string())) {
      files.push_back(fs::relative(it->path(), Root()));
    }
  }
  return files;
}

bool IsTest(const fs::path& file) {
  const std::string name = file.string();
  return absl::StrContains(name, "_test.") || absl::StartsWith(name, "tests/") || absl::StrContains(name, "testing") ||
         absl::StartsWith(file.filename().string(), "fake_");
}

std::vector<std::string> Prose(const std::string& page) {
  std::vector<std::string> prose;
  bool code = false;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(page, '\n'))) {
    const bool fence = absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "```");
    if (!code && !fence) prose.push_back(line);
    code ^= fence;
  }
  return prose;
}

}  // namespace muster::docs
