// Where the coordinator is and how to connect to it: flag, then environment, then context file, then default.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace muster::cli {

// The command line's flags; an empty string is an absent flag.
struct ConnectionFlags {
  std::string address;
  std::string token_file;
  std::string timeout;
  std::string ca;
};

struct Connection {
  std::string address;     // "unix:/run/user/1000/muster/coordinator.sock", "127.0.0.1:7000"
  std::string token;       // empty: none
  std::string token_from;  // where it was set: "MUSTER_TOKEN", "--token-file: /t"
  std::string authority;  // PEM of the authority that must have signed the coordinator's certificate; empty: plain text
  absl::Duration timeout;        // of one call, or of following; zero: each call's default
  bool default_address = false;  // no address was configured
};

using Environment = std::function<std::optional<std::string>(const char* name)>;
Environment ProcessEnvironment();

// Flags --address (or --coordinator), --token-file (or --token), --timeout, --ca; environment MUSTER_ADDRESS (or
// MUSTER_COORDINATOR), MUSTER_TOKEN, MUSTER_TOKEN_FILE, MUSTER_TIMEOUT, MUSTER_CA;
// $XDG_CONFIG_HOME/muster/context.yaml (else ~/.config) with the keys address, token, token_file, timeout, ca.
// Without HOME and XDG_CONFIG_HOME no context file is read.
// InvalidArgument: a context file or time-out that is wrong, or a relative path in one of the two. NotFound,
// PermissionDenied: a token file or ca that cannot be read.
absl::StatusOr<Connection> ResolveConnection(const ConnectionFlags& flags, const Environment& environment);

// $MUSTER_RUNTIME_DIR, else $XDG_RUNTIME_DIR/muster, else /tmp/muster-<uid>: sockets live there. InvalidArgument: the
// variable holds a relative path, which would name another folder in each working folder.
absl::StatusOr<std::string> RuntimeFolder(const Environment& environment);
// $XDG_STATE_HOME/muster, else ~/.local/state/muster. InvalidArgument: neither it nor HOME is set, or the one that
// counts holds a relative path.
absl::StatusOr<std::string> StateFolder(const Environment& environment);

// Ok if the folder does not exist, or is ours and closed to others: in /tmp anyone may create a folder of that name and
// listen in it. Otherwise PermissionDenied.
absl::Status CheckRuntimeFolder(const std::string& folder);

// "30s", "1h30m", "7d", "1d12h"; a bare number is seconds. InvalidArgument, with `from`, the flag or variable that the
// text comes from.
absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text, absl::string_view from = "");
// A time as the CLI prints it, in the local zone unless it names one: "2026-01-31T12:00:00Z", "2026-01-31 12:00:00",
// "2026-01-31T12:00", "2026-01-31". Absent: it is none.
std::optional<absl::Time> ParseDateAndTime(absl::string_view text);
// What --since takes: how long before `now` ("10m", "7d"), or a time as the CLI prints it ("2026-01-31T12:00:00Z",
// local "2026-01-31 12:00:00", "2026-01-31"). Empty: absl::InfinitePast(). InvalidArgument.
absl::StatusOr<absl::Time> ParseSince(absl::string_view text, absl::Time now);
// A time to come, for this flag: "now", how long after `now` ("2h", "7d"), or as ParseDateAndTime. InvalidArgument.
absl::StatusOr<absl::Time> ParseWhen(absl::string_view flag, absl::string_view text, absl::Time now);

// WriteDurably (common/file/durable_file.h) that creates the folder (0700).
absl::Status WriteFile(const std::string& path, const std::string& text);
absl::Status MakeFolders(const std::string& path);

}  // namespace muster::cli
