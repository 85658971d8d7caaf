#include "common/log/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/unprintable.h"
#include "common/utf8.h"

namespace muster {
namespace {

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

// %*: our names, of one width. spdlog's own are compiled into its library.
class LevelName final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&, spdlog::memory_buf_t& out) override {
    const absl::string_view name = line.level == spdlog::level::debug  ? "debug"
                                   : line.level == spdlog::level::info ? "info "
                                   : line.level == spdlog::level::warn ? "warn "
                                                                       : "error";
    out.append(name.data(), name.data() + name.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelName>(); }
};

std::shared_ptr<spdlog::logger> MakeLogger(const std::string& program) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<LevelName>('*').set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %* %n  %v");
  auto logger = std::make_shared<spdlog::logger>(program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::move(formatter));
  return logger;
}

struct Log {
  std::shared_ptr<spdlog::logger> logger = MakeLogger("-");
  std::string context;
};

// Never destroyed: threads may log until the process ends.
Log& TheLog() {
  static Log* const log = new Log;
  return *log;
}

// Appends `text`, in quotes if a reader could not tell where it ends.
void AppendValue(absl::string_view text, std::string& line) {
  const size_t begin = line.size();
  bool quoted = text.empty();
  line += '"';
  while (!text.empty()) {
    const auto [length, character] = DecodeUtf8(text);
    const absl::string_view bytes = text.substr(0, std::max<size_t>(length, 1));
    text.remove_prefix(bytes.size());
    quoted |= length == 0 || character <= ' ' || character == '=' || character == '"' || character == '\\' ||
              IsUnprintable(character);
    if (length == 0) {
      line += "\\ufffd";
    } else if (character == '"' || character == '\\') {
      absl::StrAppend(&line, "\\", bytes);
    } else if (character == '\n') {
      line += "\\n";
    } else if (character == '\r') {
      line += "\\r";
    } else if (character == '\t') {
      line += "\\t";
    } else if (IsUnprintable(character)) {
      absl::StrAppendFormat(&line, "\\u%04x", static_cast<uint32_t>(character));
    } else {
      absl::StrAppend(&line, bytes);
    }
  }
  if (quoted) {
    line += '"';
  } else {
    line.erase(begin, 1);
  }
}

void Write(LogLevel level, LogMessage message, LogFields fields) {
  const Log& log = TheLog();
  if (!log.logger->should_log(SpdlogLevel(level))) return;
  std::string line = absl::StrCat(message.text(), log.context);
  for (const LogField& field : fields) field.AppendTo(line);
  log.logger->log(SpdlogLevel(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

LogLevel LogLevelOf(absl::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  return name == "off" ? LogLevel::kOff : LogLevel::kInfo;
}

void LogField::AppendTo(std::string& line) const {
  if (const auto* const rank = std::get_if<const RankId*>(&value_)) {
    LogField("job", (*rank)->job).AppendTo(line);
    absl::StrAppend(&line, " generation=", (*rank)->generation, " rank=", (*rank)->rank);
    return;
  }
  absl::StrAppend(&line, " ", name_, "=");
  std::visit(
      [&line](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          line += value ? "true" : "false";
        } else if constexpr (std::is_arithmetic_v<Value>) {
          absl::StrAppend(&line, value);  // six digits of a double
        } else if constexpr (std::is_same_v<Value, absl::string_view>) {
          AppendValue(value, line);
        } else if constexpr (std::is_same_v<Value, const absl::Status*>) {
          AppendValue(value->ToString(), line);
        } else if constexpr (std::is_same_v<Value, absl::Duration>) {
          AppendValue(absl::FormatDuration(value), line);
        } else if constexpr (std::is_same_v<Value, absl::Time>) {
          AppendValue(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", value, absl::UTCTimeZone()), line);
        }
      },
      value_);
}

void LogDebug(LogMessage message, LogFields fields) { Write(LogLevel::kDebug, message, fields); }
void LogInfo(LogMessage message, LogFields fields) { Write(LogLevel::kInfo, message, fields); }
void LogWarn(LogMessage message, LogFields fields) { Write(LogLevel::kWarn, message, fields); }
void LogError(LogMessage message, LogFields fields) { Write(LogLevel::kError, message, fields); }

void StartLog(const std::string& program, LogLevel level) {
  TheLog().logger = MakeLogger(program);
  TheLog().logger->set_level(SpdlogLevel(level));
}

void SetLogContext(LogFields fields) {
  std::string& context = TheLog().context;
  context.clear();
  for (const LogField& field : fields) field.AppendTo(context);
}

}  // namespace muster
