// Log lines of the daemons and of the trainer. One event is one line on stderr: a constant phrase, then fields.
//
//   StartLog("worker", LogLevel::kInfo);                    // first thing in main
//   LogInfo("rank started", {rank_id, {"pid", pid}});
//   LogWarn("cannot remove the folder", {{"path", path}, {"error", status}});
//
//   2026-11-22T21:03:04.123Z info  worker  rank started job=gpt-abcd generation=2 rank=3 pid=123
//
// Time is UTC. A value that is empty or has a space, `=`, a quote, a backslash or a control character is quoted as in
// logfmt, with the escapes of JSON, so no value can end a line or look like another field. Names are snake_case and the
// same everywhere: job, generation, rank, node, step, path, error.
//
// Thread-safe. A line below the level costs a comparison: values are references until they are printed.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"

namespace muster {

enum class LogLevel { kDebug, kInfo, kWarn, kError, kOff };

// "debug", "info", "warn", "error", "off": what --log-level takes. Other text is kInfo.
LogLevel LogLevelOf(absl::string_view name);

// A phrase that is known to the compiler: lower case, without `=` and control characters, so it needs no quoting.
class LogMessage {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): so that a literal is a message
  consteval LogMessage(const char* text) : text_(text) {
    for (; *text != '\0'; ++text) {
      if (*text < ' ' || *text == '=') throw "values are fields";
    }
  }
  absl::string_view text() const { return text_; }

 private:
  const char* text_;
};

// A name and a value; a RankId is three of them: job, generation, rank. Refers to its value, which outlives the call.
// Durations print as 1.5s, times as in the line, a Status as its code and message.
class LogField {
 public:
  LogField(const char* name, bool value) : name_(name), value_(value) {}
  LogField(const char* name, std::signed_integral auto value) : name_(name), value_(int64_t{value}) {}
  LogField(const char* name, std::unsigned_integral auto value) : name_(name), value_(uint64_t{value}) {}
  LogField(const char* name, double value) : name_(name), value_(value) {}
  LogField(const char* name, absl::string_view value) : name_(name), value_(value) {}
  LogField(const char* name, const std::string& value) : name_(name), value_(absl::string_view(value)) {}
  LogField(const char* name, const char* value) : name_(name), value_(absl::string_view(value)) {}
  template <typename Tag>
  LogField(const char* name, const StringId<Tag>& value) : name_(name), value_(absl::string_view(value.value())) {}
  LogField(const char* name, const absl::Status& value) : name_(name), value_(&value) {}
  LogField(const char* name, absl::Duration value) : name_(name), value_(value) {}
  LogField(const char* name, absl::Time value) : name_(name), value_(value) {}
  // NOLINTNEXTLINE(google-explicit-constructor): so that a rank is a field
  LogField(const RankId& rank) : name_(""), value_(&rank) {}

  // Appends " name=value".
  void AppendTo(std::string& line) const;

 private:
  const char* name_;
  std::variant<bool, int64_t, uint64_t, double, absl::string_view, const absl::Status*, absl::Duration, absl::Time,
               const RankId*>
      value_;
};

using LogFields = absl::Span<const LogField>;

void LogDebug(LogMessage message, LogFields fields = {});
void LogInfo(LogMessage message, LogFields fields = {});
void LogWarn(LogMessage message, LogFields fields = {});
void LogError(LogMessage message, LogFields fields = {});

// Sets the program's name and level. Before it, lines name no program.
void StartLog(const std::string& program, LogLevel level);
// Fields that every later line has before its own: a worker's node, a trainer's rank. Before other threads log.
void SetLogContext(LogFields fields);

}  // namespace muster
