// Reading the small YAML files in which an administrator names other servers: `notify:`, `tracking:`, and a list of
// maps.
//
// The messages of InvalidArgument name the line, or `where` and the key.
#pragma once

#include <yaml-cpp/yaml.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster::outbound {

absl::Status WrongEntry(const std::string& where, const std::string& what);

// The list of a file that has one key. InvalidArgument: it is no YAML, or has another key, or more than `most` entries.
absl::StatusOr<YAML::Node> ParseList(const std::string& text, const std::string& key, size_t most);

// InvalidArgument: `map` is none, or has a key that is not one of `keys`, or one twice.
absl::Status CheckKeys(const YAML::Node& map, const std::string& where, const std::set<std::string>& keys);

// Each leaves `into` alone where the key is missing.
absl::Status ReadText(const YAML::Node& map, const std::string& where, const char* key, std::string& into);
absl::Status ReadTexts(const YAML::Node& map, const std::string& where, const char* key,
                       std::vector<std::string>& into);
absl::Status ReadTime(const YAML::Node& map, const std::string& where, const char* key, absl::Duration least,
                      absl::Duration most, absl::Duration& into);
// The key `name`, which is required: a name as of jobs.
absl::Status ReadName(const YAML::Node& map, const std::string& where, std::string& into);

// Whether `list` has the text, or is empty.
bool IsOneOf(const std::vector<std::string>& list, const std::string& text);

// PermissionDenied: others may write to the file. Who may decides what the coordinator runs, and where it sends.
absl::Status CheckTrusted(const std::string& path);
// The text of such a file, of at most 64 KiB. Errors as CheckTrusted and ReadWhole.
absl::StatusOr<std::string> ReadTrusted(const std::string& path);

}  // namespace muster::outbound
