#include "coordinator/notify/config.h"

#include <sys/stat.h>
#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/file/read_file.h"
#include "common/file/trusted_file.h"
#include "common/file_error.h"
#include "common/name.h"
#include "coordinator/core/event_kinds.h"

namespace muster::notify {
namespace {

constexpr size_t kMostBytes = 64 << 10, kMostCaBytes = 4 << 20;
constexpr size_t kMostDestinations = 32;
constexpr size_t kMostOf = 256;  // events, users or projects of a destination

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

absl::Status ReadWebhook(const YAML::Node& map, const std::string& where, Webhook& webhook) {
  absl::Status status = CheckKeys(map, where, {"url", "secret_file", "ca_file"});
  std::string url;
  if (status.ok()) status = ReadText(map, where, "url", url);
  if (status.ok()) status = ReadText(map, where, "secret_file", webhook.secret_file);
  if (status.ok()) status = ReadText(map, where, "ca_file", webhook.ca_file);
  if (!status.ok()) return status;
  const absl::StatusOr<Url> parsed = ParseUrl(url);
  if (!parsed.ok()) return WrongEntry(where, absl::StrCat("url: ", parsed.status().message()));
  webhook.url = *parsed;
  if (!webhook.ca_file.empty() && !webhook.url.encrypted) return WrongEntry(where, "ca_file: only with https");
  return absl::OkStatus();
}

absl::StatusOr<Destination> ReadDestination(const YAML::Node& map, std::string where) {
  absl::Status status =
      CheckKeys(map, where, {"name", "webhook", "command", "timeout", "give_up_after", "events", "users", "projects"});
  Destination to;
  if (status.ok()) status = ReadText(map, where, "name", to.name);
  if (!status.ok()) return status;
  if (!IsName(to.name)) {
    return WrongEntry(
        where, "name: expected 1 to 40 characters of a-z, 0-9 and -; it must start and end with a letter or digit");
  }
  where = absl::StrCat("notify: ", to.name);
  if (map["webhook"]) status = ReadWebhook(map["webhook"], where + ": webhook", to.webhook.emplace());
  if (status.ok()) status = ReadTexts(map, where, "command", to.command);
  if (status.ok()) status = ReadTexts(map, where, "events", to.events);
  if (status.ok()) status = ReadTexts(map, where, "users", to.users);
  if (status.ok()) status = ReadTexts(map, where, "projects", to.projects);
  if (status.ok()) status = ReadTime(map, where, "timeout", absl::Seconds(1), absl::Minutes(10), to.timeout);
  if (status.ok()) {
    status = ReadTime(map, where, "give_up_after", absl::ZeroDuration(), absl::Hours(24 * 30), to.give_up_after);
  }
  if (!status.ok()) return status;
  if (to.webhook.has_value() == !to.command.empty()) return WrongEntry(where, "needs one of webhook and command");
  if (!to.command.empty() && to.command[0][0] != '/') return WrongEntry(where, "command: expected an absolute path");
  for (const std::string& wanted : to.events) {
    if (!core::IsEventKind(wanted) && wanted != "all") {
      return WrongEntry(where, absl::StrCat("events: there is no event \"", wanted, "\": docs/notices.md lists them"));
    }
  }
  if (to.events.empty()) {
    return WrongEntry(where, "events: is missing: kinds of `muster events`, as [job.failed, node], or [all]");
  }
  return to;
}

// Who may write to the file decides what the coordinator runs, and where notices go.
absl::Status CheckTrusted(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileError(errno, absl::StrCat("cannot look at ", path));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  return JudgeTrusted(path, info, geteuid());
}

absl::Status CheckSecret(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadPrivateFile(path);
  if (!text.ok()) return text.status();
  absl::string_view secret = absl::StripAsciiWhitespace(*text);
  if (secret.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  std::string key;
  if (absl::ConsumePrefix(&secret, "whsec_") && (!absl::Base64Unescape(secret, &key) || key.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": what follows whsec_ is not base64"));
  }
  return absl::OkStatus();
}

// The files that a destination names.
absl::Status CheckFiles(const Destination& destination) {
  if (!destination.webhook.has_value()) {
    const std::string& program = destination.command[0];
    if (absl::Status status = CheckTrusted(program); !status.ok()) return status;
    if (access(program.c_str(), X_OK) == 0) return absl::OkStatus();
    return FileError(errno, absl::StrCat("cannot run ", program));
  }
  const Webhook& webhook = *destination.webhook;
  absl::Status status;
  if (!webhook.ca_file.empty()) status = ReadWhole(webhook.ca_file, kMostCaBytes).status();
  if (status.ok() && !webhook.secret_file.empty()) status = CheckSecret(webhook.secret_file);
  return status;
}

bool IsOneOf(const std::vector<std::string>& list, const std::string& text) {
  return list.empty() || std::find(list.begin(), list.end(), text) != list.end();
}

}  // namespace

absl::StatusOr<Url> ParseUrl(const std::string& text) {
  absl::string_view rest = text;
  Url url;
  url.encrypted = absl::ConsumePrefix(&rest, "https://");
  if (!url.encrypted && !absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError("expected http://HOST[:PORT][/PATH], or https");
  }
  const bool plain = std::all_of(rest.begin(), rest.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (!plain || absl::StrContains(rest, "#")) {
    return absl::InvalidArgumentError("the URL has a fragment, a space or a non-ASCII character");
  }
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  absl::string_view place = rest.substr(0, end);
  url.target = std::string(rest.substr(end));
  if (url.target.empty() || url.target[0] == '?') url.target.insert(0, "/");
  if (absl::StrContains(place, "@")) {
    return absl::InvalidArgumentError("a user or a password in a URL is shown in too many places: use secret_file");
  }
  size_t colon = place.rfind(':');
  if (absl::StartsWith(place, "[")) {
    const size_t close = place.find(']');
    if (close == absl::string_view::npos) return absl::InvalidArgumentError("the host has no ]");
    url.host = std::string(place.substr(1, close - 1));
    colon = close + 1 < place.size() ? close + 1 : absl::string_view::npos;
    if (colon != absl::string_view::npos && place[colon] != ':')
      return absl::InvalidArgumentError("expected [HOST]:PORT");
  } else {
    url.host = std::string(place.substr(0, colon));
  }
  url.port = colon == absl::string_view::npos ? (url.encrypted ? "443" : "80") : std::string(place.substr(colon + 1));
  uint32_t port = 0;
  if (url.host.empty() || !absl::SimpleAtoi(url.port, &port) || port == 0 || port > 65535) {
    return absl::InvalidArgumentError("expected http://HOST[:PORT][/PATH], or https");
  }
  return url;
}

bool Wants(const Destination& destination, const Notice& notice) {
  const std::string& kind = notice.event.kind();
  const bool of_kind =
      std::any_of(destination.events.begin(), destination.events.end(), [&](const std::string& wanted) {
        return wanted == "all" || kind == wanted || absl::StartsWith(kind, wanted + ".");
      });
  return of_kind && IsOneOf(destination.users, notice.user) && IsOneOf(destination.projects, notice.project);
}

absl::StatusOr<std::vector<Destination>> ParseConfig(const std::string& text) {
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("line ", error.mark.line + 1, ": ", error.msg));
  }
  if (absl::Status status = CheckKeys(root, "the file", {"notify"}); !status.ok()) return status;
  const YAML::Node list = root["notify"];
  if (!list || !list.IsSequence() || list.size() > kMostDestinations) {
    return absl::InvalidArgumentError(absl::StrCat("notify: expected a list of at most ", kMostDestinations));
  }
  std::vector<Destination> destinations;
  std::set<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    absl::StatusOr<Destination> destination = ReadDestination(list[i], absl::StrCat("notify[", i, "]"));
    if (!destination.ok()) return destination.status();
    if (!names.insert(destination->name).second) {
      return absl::InvalidArgumentError(absl::StrCat("notify: the name ", destination->name, " is there twice"));
    }
    destinations.push_back(*std::move(destination));
  }
  return destinations;
}

absl::StatusOr<std::vector<Destination>> LoadConfig(const std::string& path) {
  if (absl::Status status = CheckTrusted(path); !status.ok()) return status;
  const absl::StatusOr<std::string> text = ReadWhole(path, kMostBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<Destination>> destinations = ParseConfig(*text);
  if (!destinations.ok()) {
    return absl::Status(destinations.status().code(), absl::StrCat(path, ": ", destinations.status().message()));
  }
  for (const Destination& destination : *destinations) {
    if (const absl::Status status = CheckFiles(destination); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(path, ": ", destination.name, ": ", status.message()));
    }
  }
  return destinations;
}

}  // namespace muster::notify
