#include "cli/config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/spec/tree.h"
#include "common/file/durable_file.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/file_error.h"
#include "common/flags/suggest.h"
#include "common/rpc/rpc.h"
#include "common/tls/certificate.h"
#include "common/tls/token.h"

namespace muster::cli {
namespace {

constexpr size_t kMaxContextBytes = 64 << 10;
constexpr size_t kMaxTokenBytes = 4 << 10;
constexpr size_t kMaxAuthorityBytes = 64 << 10;

std::string Or(const std::optional<std::string>& value, const std::string& otherwise) {
  return value.has_value() && !value->empty() ? *value : otherwise;
}

// The folder that this variable holds. Empty: it is not set. InvalidArgument: a relative path.
absl::StatusOr<std::string> FolderIn(const char* variable, const Environment& environment) {
  const std::string folder = Or(environment(variable), "");
  if (folder.empty() || folder[0] == '/') return folder;
  return absl::InvalidArgumentError(absl::StrCat(
      variable, ": ", folder, " is a relative path, which would be another folder for each working directory: set ",
      variable, " to an absolute path, one that begins with /"));
}

// What the variable holds, else this folder of HOME's. Empty: neither is set. InvalidArgument: a relative path.
absl::StatusOr<std::string> FolderOfUser(const char* variable, const char* below_home, const Environment& environment) {
  absl::StatusOr<std::string> folder = FolderIn(variable, environment);
  if (!folder.ok() || !folder->empty()) return folder;
  folder = FolderIn("HOME", environment);
  if (!folder.ok() || folder->empty()) return folder;
  return absl::StrCat(*folder, below_home);
}

// Empty: the user has no folder for it. InvalidArgument: a relative path.
absl::StatusOr<std::string> ContextFile(const Environment& environment) {
  const absl::StatusOr<std::string> folder = FolderOfUser("XDG_CONFIG_HOME", "/.config", environment);
  if (!folder.ok() || folder->empty()) return folder;
  return *folder + "/muster/context.yaml";
}

// The context file's keys and values; empty if there is no file.
absl::StatusOr<std::map<std::string, std::string>> ReadContext(const std::string& path) {
  std::map<std::string, std::string> values;
  if (path.empty()) return values;
  const absl::StatusOr<std::string> text = ReadWhole(path, kMaxContextBytes);
  if (absl::IsNotFound(text.status())) return values;
  if (!text.ok()) return text.status();
  ParsedYaml yaml = ParseYaml(*text, path);
  if (yaml.root.kind != Node::Kind::kMap && yaml.root.kind != Node::Kind::kNull) {
    yaml.problems.push_back(
        Problem{yaml.root.where, "", absl::StrCat("expected a map, got ", Describe(yaml.root)), ""});
  }
  const std::vector<std::string> known = {"address", "token", "token_file", "timeout", "ca"};
  for (const Entry& entry : yaml.root.entries) {
    if (std::find(known.begin(), known.end(), entry.key) == known.end()) {
      yaml.problems.push_back(Problem{entry.where, entry.key, "unknown field", Nearest(entry.key, known)});
    } else if (entry.value.kind != Node::Kind::kScalar) {
      yaml.problems.push_back(
          Problem{entry.value.where, entry.key, absl::StrCat("expected a string, got ", Describe(entry.value)), ""});
    } else {
      values[entry.key] = entry.value.text;
    }
  }
  if (!yaml.problems.empty()) return ToStatus(yaml.problems);
  return values;
}

// A value, and what it comes from: "--timeout", "MUSTER_TIMEOUT", or the context file and its key.
struct Setting {
  std::string value;
  std::string from;
};

// An error names what the wrong value comes from: a variable or a file is not on the command line.
absl::Status WrongSetting(const Setting& setting, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(setting.from, ": ", status.message()));
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

absl::StatusOr<Connection> ResolveConnection(const ConnectionFlags& flags, const Environment& environment) {
  const absl::StatusOr<std::string> context_file = ContextFile(environment);
  if (!context_file.ok()) return context_file.status();
  const absl::StatusOr<std::map<std::string, std::string>> context = ReadContext(*context_file);
  if (!context.ok()) return context.status();
  const auto pick = [&](const char* name, const std::string& flag, const std::vector<const char*>& variables,
                        const char* key) {
    if (!flag.empty()) return Setting{flag, name};
    for (const char* variable : variables) {
      if (const std::string value = Or(environment(variable), ""); !value.empty()) return Setting{value, variable};
    }
    const auto found = context->find(key);
    return found == context->end() ? Setting{} : Setting{found->second, absl::StrCat(*context_file, ": ", key)};
  };
  Connection connection;
  const Setting address = pick("--address", flags.address, {"MUSTER_ADDRESS", "MUSTER_COORDINATOR"}, "address");
  connection.address = address.value;
  if (connection.address.empty()) {
    const absl::StatusOr<std::string> runtime = RuntimeFolder(environment);
    if (!runtime.ok()) return runtime.status();
    connection.address = absl::StrCat("unix:", *runtime, "/coordinator.sock");
    connection.default_address = true;
  }
  if (!connection.default_address) {
    if (const absl::Status form = rpc::CheckAddress(address.value); !form.ok()) return WrongSetting(address, form);
  }
  if (const Setting timeout = pick("--timeout", flags.timeout, {"MUSTER_TIMEOUT"}, "timeout"); !timeout.value.empty()) {
    const absl::StatusOr<absl::Duration> parsed = ParseTimeout(timeout.value, timeout.from);
    if (!parsed.ok()) return parsed.status();
    connection.timeout = *parsed;
  }
  Setting token;
  // A flag that names a token file takes precedence over the variable that holds the token itself.
  const std::string variable = flags.token_file.empty() ? Or(environment("MUSTER_TOKEN"), "") : "";
  const Setting file =
      variable.empty() ? pick("--token-file", flags.token_file, {"MUSTER_TOKEN_FILE"}, "token_file") : Setting{};
  if (!variable.empty()) {
    token = {variable, "MUSTER_TOKEN"};
  } else if (!file.value.empty()) {
    const absl::StatusOr<std::string> text = ReadWhole(file.value, kMaxTokenBytes);
    if (!text.ok()) return WrongSetting(file, text.status());
    token = {std::string(absl::StripAsciiWhitespace(*text)), absl::StrCat(file.from, ": ", file.value)};
  } else {
    token = pick("", "", {}, "token");
  }
  if (const absl::Status status = tls::CheckTokenText(token.value); !status.ok()) return WrongSetting(token, status);
  connection.token = token.value;
  connection.token_from = token.from;
  if (const Setting ca = pick("--ca", flags.ca, {"MUSTER_CA"}, "ca"); !ca.value.empty()) {
    const absl::StatusOr<std::string> authority = ReadWhole(ca.value, kMaxAuthorityBytes);
    if (!authority.ok()) return WrongSetting(ca, authority.status());
    const auto read = tls::ReadCertificate(*authority);
    if (!read.ok()) {
      return WrongSetting(ca, absl::InvalidArgumentError(absl::StrCat(ca.value, ": ", read.status().message())));
    }
    connection.authority = *authority;
  }
  return connection;
}

absl::StatusOr<std::string> RuntimeFolder(const Environment& environment) {
  for (const auto& [variable, below] : {std::pair{"MUSTER_RUNTIME_DIR", ""}, {"XDG_RUNTIME_DIR", "/muster"}}) {
    const absl::StatusOr<std::string> folder = FolderIn(variable, environment);
    if (!folder.ok()) return folder;
    if (!folder->empty()) return absl::StrCat(*folder, below);
  }
  return absl::StrCat("/tmp/muster-", getuid());
}

absl::StatusOr<std::string> StateFolder(const Environment& environment) {
  const absl::StatusOr<std::string> folder = FolderOfUser("XDG_STATE_HOME", "/.local/state", environment);
  if (!folder.ok()) return folder;
  if (!folder->empty()) return *folder + "/muster";
  return absl::InvalidArgumentError("neither HOME nor XDG_STATE_HOME is set: set one to an absolute path");
}

absl::Status CheckRuntimeFolder(const std::string& folder) {
  const absl::Status status = CheckPrivateFolder(folder);
  if (status.ok() || absl::IsNotFound(status)) return absl::OkStatus();
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), "; another user could listen there: set MUSTER_RUNTIME_DIR to another folder"));
}

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text, absl::string_view from) {
  const absl::string_view colon = from.empty() ? "" : ": ";
  absl::Duration duration;
  double seconds = 0;
  const size_t d = text.find('d');
  int64_t days = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (d != absl::string_view::npos && absl::SimpleAtoi(text.substr(0, d), &days) && days >= 0 &&
             (d + 1 == text.size() || absl::ParseDuration(text.substr(d + 1), &duration))) {
    duration += days * absl::Hours(24);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, colon, "invalid duration \"", text, "\": use 30s, 5m, 1h30m or 7d"));
  }
  if (duration <= absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(from, colon, "invalid duration ", text, ": must be greater than 0"));
  }
  return duration;
}

std::optional<absl::Time> ParseDateAndTime(absl::string_view text) {
  absl::Time time;
  std::string error;
  for (const char* format :
       {absl::RFC3339_full, "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"}) {
    if (absl::ParseTime(format, text, absl::LocalTimeZone(), &time, &error)) return time;
  }
  return std::nullopt;
}

absl::StatusOr<absl::Time> ParseWhen(absl::string_view flag, absl::string_view text, absl::Time now) {
  if (text == "now") return now;
  if (const std::optional<absl::Time> time = ParseDateAndTime(text); time.has_value()) return *time;
  if (const absl::StatusOr<absl::Duration> later = ParseTimeout(text); later.ok()) return now + *later;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", text, ": write a time (2026-01-31T12:00), how long from now (2h, 7d), or now"));
}

absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now) {
  if (text.empty()) return absl::InfinitePast();
  if (const std::optional<absl::Time> time = ParseDateAndTime(text); time.has_value()) return *time;
  if (const absl::StatusOr<absl::Duration> ago = ParseTimeout(text); ago.ok()) return now - *ago;
  return absl::InvalidArgumentError(absl::StrCat(
      "--since ", text, ": write how long ago (10m, 2h, 7d) or a time (2026-01-31, 2026-01-31T12:00:00Z)"));
}

absl::Status MakeFolders(const std::string& path) {
  for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return CreateError(errno, part);
    }
    if (at == std::string::npos) return absl::OkStatus();
  }
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  if (const size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0) {
    if (absl::Status made = MakeFolders(path.substr(0, slash)); !made.ok()) return made;
  }
  return WriteDurably(path, text);
}

}  // namespace muster::cli
