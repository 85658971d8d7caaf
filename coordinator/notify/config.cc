#include "coordinator/notify/config.h"

#include <unistd.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/event_kinds.h"
#include "common/file/read_file.h"
#include "common/file_error.h"
#include "coordinator/outbound/config_file.h"
#include "coordinator/server/cursor.h"

namespace muster::notify {
namespace {

using outbound::CheckKeys;
using outbound::CheckTrusted;
using outbound::IsOneOf;
using outbound::ReadName;
using outbound::ReadText;
using outbound::ReadTexts;
using outbound::ReadTime;
using outbound::WrongEntry;

constexpr size_t kMostCaBytes = 4 << 20;
constexpr size_t kMostDestinations = 32;

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
  if (status.ok()) status = ReadName(map, where, to.name);
  if (!status.ok()) return status;
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
    if (!IsEventKind(wanted) && wanted != "all") {
      return WrongEntry(where, absl::StrCat("events: there is no event \"", wanted, "\": docs/notices.md lists them"));
    }
  }
  if (to.events.empty()) {
    return WrongEntry(where, "events: is missing: kinds of `muster events`, as [job.failed, node], or [all]");
  }
  return to;
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

}  // namespace

std::vector<Notice> NoticesOf(const server::Feed::Page& page) {
  std::vector<Notice> notices;
  for (const WatchItem& item : page.items) {
    if (!item.has_event()) continue;
    const absl::StatusOr<uint64_t> sequence = server::ParseCursor(item.cursor());
    Notice& notice = notices.emplace_back();
    notice.id = absl::StrCat(page.store_id, "-", sequence.value_or(0));
    notice.cursor = item.cursor();
    notice.event = item.event();
    const auto found = page.jobs.find(item.job());
    if (found == page.jobs.end()) continue;
    const Job& job = found->second;
    notice.user = job.owner();
    notice.project = job.project().empty() ? "default" : job.project();
    notice.labels.assign(job.labels().begin(), job.labels().end());
  }
  return notices;
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
  return outbound::ParseDestinations<Destination>(text, "notify", kMostDestinations, ReadDestination);
}

absl::StatusOr<std::vector<Destination>> LoadConfig(const std::string& path) {
  return outbound::LoadDestinations<Destination>(path, ParseConfig, CheckFiles);
}

}  // namespace muster::notify
