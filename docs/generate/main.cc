// Writes the generated pages into the checkout:   bazel run //docs:update
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "docs/generate/pages.h"

int main() {
  const char* const root = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  if (root == nullptr) {
    std::fputs("usage: bazel run //docs:update\n", stderr);
    return 2;
  }
  const std::string top = std::string(root) + "/";
  const auto read = [&](const std::string& path) -> absl::StatusOr<std::string> {
    std::ifstream in(top + path);
    if (!in) return absl::NotFoundError("cannot read " + top + path);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  };
  const auto pages = muster::docs::GeneratedPages(muster::docs::RunFromRunfiles, read);
  if (!pages.ok()) {
    std::fprintf(stderr, "update: %s\n", std::string(pages.status().message()).c_str());
    return 1;
  }
  for (const muster::docs::Page& page : *pages) {
    std::ofstream out(top + page.path, std::ios::trunc);
    out << page.text;
    out.close();
    if (!out) {
      std::fprintf(stderr, "update: cannot write %s\n", (top + page.path).c_str());
      return 1;
    }
    std::printf("wrote %s\n", page.path.c_str());
  }
  return 0;
}
