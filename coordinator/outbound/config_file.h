// Reading the small YAML files in which an administrator names other servers: `notify:`, `tracking:`, and a list of
// maps.
//
// The messages of InvalidArgument name the line, or `where` and the key.
#pragma once

#include <yaml-cpp/yaml.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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

// The entries of the list `key`, each as `read(map, where)` makes it; their names differ. The message of an error says
// which one. Destination has a `name`.
template <typename Destination, typename Read>
absl::StatusOr<std::vector<Destination>> ParseDestinations(const std::string& text, const std::string& key, size_t most,
                                                           const Read& read) {
  const absl::StatusOr<YAML::Node> list = ParseList(text, key, most);
  if (!list.ok()) return list.status();
  std::vector<Destination> destinations;
  std::set<std::string> names;
  for (size_t i = 0; i < list->size(); ++i) {
    absl::StatusOr<Destination> destination = read((*list)[i], absl::StrCat(key, "[", i, "]"));
    if (!destination.ok()) return destination.status();
    if (!names.insert(destination->name).second) {
      return absl::InvalidArgumentError(absl::StrCat(key, ": the name ", destination->name, " is there twice"));
    }
    destinations.push_back(*std::move(destination));
  }
  return destinations;
}

// Of the file at `path`, which CheckTrusted takes, by `parse(text)`; `check(destination)` looks at the files that one
// names.
template <typename Destination, typename Parse, typename Check>
absl::StatusOr<std::vector<Destination>> LoadDestinations(const std::string& path, const Parse& parse,
                                                          const Check& check) {
  const absl::StatusOr<std::string> text = ReadTrusted(path);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<Destination>> destinations = parse(*text);
  if (!destinations.ok()) {
    return absl::Status(destinations.status().code(), absl::StrCat(path, ": ", destinations.status().message()));
  }
  for (const Destination& destination : *destinations) {
    if (const absl::Status status = check(destination); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(path, ": ", destination.name, ": ", status.message()));
    }
  }
  return destinations;
}

}  // namespace muster::outbound
