#include "worker/agent/token.h"

#include <cstdlib>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/file/read_file.h"
#include "common/tls/token.h"

namespace muster::agent {

absl::StatusOr<std::string> ParseToken(std::string_view text) {
  std::vector<std::vector<std::string>> lines;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty() || words[0][0] == '#') continue;
    lines.push_back(std::move(words));
  }
  if (lines.size() == 1 && lines[0].size() == 1) return lines[0][0];
  for (const std::vector<std::string>& words : lines) {
    if (words.size() == 3 && words[2] == "worker") return words[0];
  }
  return absl::InvalidArgumentError("no token for a worker: expected one token, or a line `token name worker`");
}

absl::StatusOr<std::string> ReadJoinToken(const std::string& path) {
  if (path.empty()) {
    const char* variable = std::getenv("MUSTER_JOIN_TOKEN");
    return std::string(variable == nullptr ? "" : variable);
  }
  const absl::StatusOr<std::string> text = ReadWhole(path);
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat("join token: ", text.status().message()));
  return std::string(absl::StripAsciiWhitespace(*text));
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWhole(path);
  if (!text.ok()) return absl::Status(text.status().code(), absl::StrCat("token file: ", text.status().message()));
  absl::StatusOr<std::string> token = ParseToken(*text);
  const absl::Status status = token.ok() ? tls::CheckTokenText(*token) : token.status();
  if (status.ok()) return token;
  return absl::Status(status.code(), absl::StrCat("token file ", path, ": ", status.message()));
}

}  // namespace muster::agent
