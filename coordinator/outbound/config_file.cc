#include "coordinator/outbound/config_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/file/read_file.h"
#include "common/file/trusted_file.h"
#include "common/file_error.h"
#include "common/name.h"

namespace muster::outbound {
namespace {

constexpr size_t kMostBytes = 64 << 10;
constexpr size_t kMostOf = 256;  // texts of a list

}  // namespace

absl::Status WrongEntry(const std::string& where, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

absl::Status CheckKeys(const YAML::Node& map, const std::string& where, const std::set<std::string>& keys) {
  if (!map.IsMap()) return WrongEntry(where, "expected a map");
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
    if (!keys.contains(key)) return WrongEntry(where, absl::StrCat("unknown key \"", key, "\""));
    if (!seen.insert(key).second) return WrongEntry(where, absl::StrCat("the key ", key, " is there twice"));
  }
  return absl::OkStatus();
}

absl::Status ReadText(const YAML::Node& map, const std::string& where, const char* key, std::string& into) {
  const YAML::Node value = map[key];
  if (!value) return absl::OkStatus();
  if (!value.IsScalar() || value.Scalar().empty()) return WrongEntry(where, absl::StrCat(key, ": expected text"));
  into = value.Scalar();
  return absl::OkStatus();
}

absl::Status ReadTexts(const YAML::Node& map, const std::string& where, const char* key,
                       std::vector<std::string>& into) {
  const YAML::Node value = map[key];
  if (!value) return absl::OkStatus();
  if (!value.IsSequence() || value.size() == 0 || value.size() > kMostOf) {
    return WrongEntry(where, absl::StrCat(key, ": expected a list of 1 to ", kMostOf));
  }
  for (const YAML::Node& item : value) {
    if (!item.IsScalar() || item.Scalar().empty()) return WrongEntry(where, absl::StrCat(key, ": expected texts"));
    into.push_back(item.Scalar());
  }
  return absl::OkStatus();
}

absl::Status ReadTime(const YAML::Node& map, const std::string& where, const char* key, absl::Duration least,
                      absl::Duration most, absl::Duration& into) {
  std::string text;
  if (absl::Status status = ReadText(map, where, key, text); !status.ok() || text.empty()) return status;
  if (absl::ParseDuration(text, &into) && into >= least && into <= most) return absl::OkStatus();
  return WrongEntry(where, absl::StrCat(key, ": expected ", absl::FormatDuration(least), " to ",
                                        absl::FormatDuration(most), ", got \"", text, "\""));
}

absl::Status ReadName(const YAML::Node& map, const std::string& where, std::string& into) {
  if (absl::Status status = ReadText(map, where, "name", into); !status.ok()) return status;
  if (IsName(into)) return absl::OkStatus();
  return WrongEntry(
      where, "name: expected 1 to 40 characters of a-z, 0-9 and -; it must start and end with a letter or digit");
}

bool IsOneOf(const std::vector<std::string>& list, const std::string& text) {
  return list.empty() || std::find(list.begin(), list.end(), text) != list.end();
}

absl::Status CheckTrusted(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileError(errno, absl::StrCat("cannot look at ", path));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  return JudgeTrusted(path, info, geteuid());
}

absl::StatusOr<YAML::Node> ParseList(const std::string& text, const std::string& key, size_t most) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("line ", error.mark.line + 1, ": ", error.msg));
  }
  if (absl::Status status = CheckKeys(root, "the file", {key}); !status.ok()) return status;
  const YAML::Node list = root[key];
  if (!list || !list.IsSequence() || list.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat(key, ": expected a list of at most ", most));
  }
  return list;
}

absl::StatusOr<std::string> ReadTrusted(const std::string& path) {
  if (absl::Status status = CheckTrusted(path); !status.ok()) return status;
  return ReadWhole(path, kMostBytes);
}

}  // namespace muster::outbound
