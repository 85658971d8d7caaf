#include "data/tokenizer_origin.h"

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/file/beneath.h"
#include "common/file/durable_file.h"
#include "data/file_pattern.h"

namespace muster::data {
namespace {

constexpr size_t kMaxOriginBytes = 64 << 10;
constexpr size_t kShownOfSha256 = 8;

uint64_t SizeOf(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

// Whoever may read the tokens may read what made them.
FileOptions ModeOf(const std::string& path) {
  FileOptions options;
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) options.mode = info.st_mode & 0666;
  return options;
}

std::optional<TokenizerOrigin> OriginOf(const std::string& token_file) {
  const absl::StatusOr<int> fd =
      OpenConfined(FileUse::kData, absl::StrCat(token_file, kOriginEnding), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (!fd.ok()) return std::nullopt;
  std::string text(kMaxOriginBytes, '\0');
  const ssize_t got = pread(*fd, text.data(), text.size(), 0);
  close(*fd);
  if (got <= 0) return std::nullopt;
  text.resize(static_cast<size_t>(got));
  TokenizerOrigin origin;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(text, &origin, options).ok()) return std::nullopt;
  if (origin.token_file_bytes() != SizeOf(token_file)) return std::nullopt;
  origin.clear_token_file_bytes();
  return origin;
}

absl::Status CheckSame(const std::string& pattern, const std::optional<TokenizerOrigin>& origin,
                       const std::string& other, const std::optional<TokenizerOrigin>& origin_of_other) {
  if (!origin.has_value() || !origin_of_other.has_value()) return absl::OkStatus();
  if (origin->sha256() == origin_of_other->sha256()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      pattern, " was made with ", DescribeTokenizer(*origin), ", but ", other, " with ",
      DescribeTokenizer(*origin_of_other),
      ": the same ids mean different text; prepare it with the other one, or, if their ids are the same, remove ",
      pattern, kOriginEnding));
}

}  // namespace

absl::Status WriteTokenizerOrigin(const std::string& token_file, TokenizerOrigin origin) {
  origin.set_token_file_bytes(SizeOf(token_file));
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(origin, &json, print).ok()) {
    return absl::InternalError(absl::StrCat(origin.path(), " cannot be written as JSON"));
  }
  return WriteDurably(absl::StrCat(token_file, kOriginEnding), json + "\n", ModeOf(token_file));
}

absl::StatusOr<std::optional<TokenizerOrigin>> ReadTokenizerOrigin(const std::string& pattern) {
  const absl::StatusOr<std::vector<std::string>> files = FilesOf(pattern);
  if (!files.ok()) return std::nullopt;
  std::optional<TokenizerOrigin> first;
  std::string first_file;
  bool all = true;
  for (const std::string& file : *files) {
    std::optional<TokenizerOrigin> origin = OriginOf(file);
    all = all && origin.has_value();
    if (absl::Status same = CheckSame(file, origin, first_file, first); !same.ok()) return same;
    if (first.has_value() || !origin.has_value()) continue;
    first = std::move(origin);
    first_file = file;
  }
  if (!all) return std::nullopt;
  return first;
}

std::string DescribeTokenizer(const TokenizerOrigin& origin) {
  if (origin.path().empty()) return "bytes as tokens";
  return absl::StrCat("the tokenizer ", origin.path(), " (sha256 ", origin.sha256().substr(0, kShownOfSha256), ")");
}

absl::Status CheckTokenizer(const std::string& pattern, const std::string& other,
                            const std::optional<TokenizerOrigin>& origin_of_other) {
  if (pattern.empty()) return absl::OkStatus();
  const absl::StatusOr<std::optional<TokenizerOrigin>> origin = ReadTokenizerOrigin(pattern);
  if (!origin.ok()) return origin.status();
  return CheckSame(pattern, *origin, other, origin_of_other);
}

}  // namespace muster::data
