#include "coordinator/tracking/config.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/file/read_file.h"
#include "coordinator/outbound/config_file.h"

namespace muster::tracking {
namespace {

using outbound::CheckKeys;
using outbound::ReadText;
using outbound::ReadTexts;
using outbound::WrongEntry;

constexpr size_t kMostCaBytes = 4 << 20;
constexpr size_t kMostDestinations = 8;     // each has a thread
constexpr size_t kMostTemplateBytes = 200;  // with names in place of the words at most MLflow's 500
constexpr size_t kMostNameBytes = 100;      // of a user in an experiment's name

std::string ProjectOf(const Job& job) { return job.project().empty() ? "default" : job.project(); }

// In the clear a token is for whoever listens.
bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

absl::Status CheckTemplate(const std::string& text, const std::string& where) {
  const std::string rest = absl::StrReplaceAll(text, {{"{project}", ""}, {"{user}", ""}, {"{name}", ""}});
  if (rest.find_first_of("{}") != std::string::npos) {
    return WrongEntry(where, "experiment: in braces may be {project}, {user} and {name}");
  }
  const bool plain = std::all_of(rest.begin(), rest.end(), [](unsigned char c) { return c >= ' ' && c != 0x7f; });
  if (text.size() <= kMostTemplateBytes && plain) return absl::OkStatus();
  return WrongEntry(where, absl::StrCat("experiment: expected one line of at most ", kMostTemplateBytes, " bytes"));
}

absl::Status ReadMlflow(const YAML::Node& map, const std::string& where, Destination& to) {
  absl::Status status = CheckKeys(map, where, {"url", "token_file", "password_file", "ca_file"});
  std::string url;
  if (status.ok()) status = ReadText(map, where, "url", url);
  if (status.ok()) status = ReadText(map, where, "token_file", to.token_file);
  if (status.ok()) status = ReadText(map, where, "password_file", to.password_file);
  if (status.ok()) status = ReadText(map, where, "ca_file", to.ca_file);
  if (!status.ok()) return status;
  absl::StatusOr<outbound::Url> parsed = outbound::ParseUrl(url);
  if (!parsed.ok()) return WrongEntry(where, absl::StrCat("url: ", parsed.status().message()));
  if (absl::StrContains(parsed->target, "?")) return WrongEntry(where, "url: expected no query (?)");
  while (absl::EndsWith(parsed->target, "/")) parsed->target.pop_back();
  to.url = *std::move(parsed);
  if (!to.ca_file.empty() && !to.url.encrypted) return WrongEntry(where, "ca_file: only with https");
  const bool secret = !to.token_file.empty() || !to.password_file.empty();
  if (!to.token_file.empty() && !to.password_file.empty()) {
    return WrongEntry(where, "give token_file or password_file, not both");
  }
  if (secret && !to.url.encrypted && !IsLoopback(to.url.host)) {
    return WrongEntry(where, "url: a token or password is sent over https only, or to this machine");
  }
  return absl::OkStatus();
}

absl::StatusOr<Destination> ReadDestination(const YAML::Node& map, std::string where) {
  absl::Status status =
      CheckKeys(map, where, {"name", "mlflow", "experiment", "users", "projects", "timeout", "history"});
  Destination to;
  if (status.ok()) status = outbound::ReadName(map, where, to.name);
  if (!status.ok()) return status;
  where = absl::StrCat("tracking: ", to.name);
  if (!map["mlflow"]) return WrongEntry(where, "mlflow: is missing: {url: ...}");
  status = ReadMlflow(map["mlflow"], where + ": mlflow", to);
  if (status.ok()) status = ReadText(map, where, "experiment", to.experiment);
  if (status.ok()) status = CheckTemplate(to.experiment, where);
  if (status.ok()) status = ReadTexts(map, where, "users", to.users);
  if (status.ok()) status = ReadTexts(map, where, "projects", to.projects);
  if (status.ok()) {
    status = outbound::ReadTime(map, where, "timeout", absl::Seconds(1), absl::Minutes(10), to.timeout);
  }
  std::string history;
  if (status.ok()) status = ReadText(map, where, "history", history);
  if (!status.ok()) return status;
  if (!history.empty() && history != "true" && history != "false") {
    return WrongEntry(where, "history: expected true or false");
  }
  to.history = history != "false";
  return to;
}

absl::Status CheckFiles(const Destination& destination) {
  absl::Status status;
  if (!destination.ca_file.empty()) status = ReadWhole(destination.ca_file, kMostCaBytes).status();
  for (const std::string& secret : {destination.token_file, destination.password_file}) {
    if (status.ok() && !secret.empty()) status = ReadSecret(secret).status();
  }
  return status;
}

}  // namespace

bool Wants(const Destination& destination, const Job& job) {
  return outbound::IsOneOf(destination.users, job.owner()) && outbound::IsOneOf(destination.projects, ProjectOf(job));
}

std::string ExperimentOf(const Destination& destination, const Job& job) {
  std::string user = job.owner().substr(0, kMostNameBytes);
  std::replace_if(
      user.begin(), user.end(), [](unsigned char c) { return c == '/' || c < ' ' || c >= 0x7f; }, '_');
  return absl::StrReplaceAll(destination.experiment,
                             {{"{project}", ProjectOf(job)}, {"{user}", user}, {"{name}", job.spec().name()}});
}

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadPrivateFile(path);
  if (!text.ok()) return text.status();
  const std::string secret(absl::StripAsciiWhitespace(*text));
  const bool plain = std::all_of(secret.begin(), secret.end(), [](unsigned char c) { return c >= ' ' && c < 0x7f; });
  if (secret.empty() || !plain) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected one line of printable ASCII"));
  }
  return secret;
}

absl::StatusOr<std::vector<Destination>> ParseConfig(const std::string& text) {
  return outbound::ParseDestinations<Destination>(text, "tracking", kMostDestinations, ReadDestination);
}

absl::StatusOr<std::vector<Destination>> LoadConfig(const std::string& path) {
  return outbound::LoadDestinations<Destination>(path, ParseConfig, CheckFiles);
}

}  // namespace muster::tracking
