#include "cli/output/format.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/message/fields.h"
#include "common/time_limit.h"
#include "common/unprintable.h"
#include "common/utf8.h"
#include "models/family.h"

namespace muster::cli {
namespace {

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Escapes what is unprintable ("\x1b"), and bytes that are no UTF-8, of which some terminals take 0x9b for ESC [.
std::string Clean(absl::string_view text, bool keep_breaks) {
  std::string out;
  while (!text.empty()) {
    const auto [length, character] = DecodeUtf8(text);
    const absl::string_view bytes = text.substr(0, std::max<size_t>(length, 1));
    text.remove_prefix(bytes.size());
    if (character == '\n' || character == '\t') {
      out += keep_breaks ? bytes[0] : ' ';
    } else if (character == '\r' && keep_breaks) {
      continue;
    } else if (length == 0) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(bytes[0]));
    } else if (IsUnprintable(character) && character < 0x100) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<uint32_t>(character));
    } else if (IsUnprintable(character)) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<uint32_t>(character));
    } else {
      absl::StrAppend(&out, bytes);
    }
  }
  return out;
}

template <typename State>
std::string EnumName(State state, const google::protobuf::EnumDescriptor* type) {
  const auto* value = type->FindValueByNumber(static_cast<int>(state));
  // An unknown value comes from a newer coordinator.
  return value == nullptr ? absl::StrCat("state ", static_cast<int>(state)) : EnumText(*value);
}

// Three significant digits of a number below a thousand.
int Decimals(double value) { return value < 9.995 ? 2 : value < 99.95 ? 1 : 0; }

}  // namespace

std::string Age(absl::Duration age) {
  const int64_t seconds = std::max<int64_t>(0, absl::ToInt64Seconds(age));
  if (seconds < 120) return absl::StrCat(seconds, "s");
  if (seconds < 2 * 3600) return absl::StrCat(seconds / 60, "m");
  if (seconds < 48 * 3600) return absl::StrCat(seconds / 3600, "h");
  return absl::StrCat(seconds / 86400, "d");
}

std::string Span(absl::Duration span) { return span == absl::InfiniteDuration() ? "-" : FormatSpan(span); }

std::string TimeOfDay(const Screen& screen, absl::Time time) {
  return screen.terminal ? absl::FormatTime("%H:%M:%S", time, absl::LocalTimeZone())
                         : absl::FormatTime("%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string DateAndTime(const Screen& screen, absl::Time time) {
  return screen.terminal ? absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::LocalTimeZone())
                         : absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
}

std::string WithOneClock(const Screen& screen, const std::string& line) {
  static constexpr size_t kLength = sizeof("2026-01-31T12:00:00.000Z") - 1;
  absl::Time time;
  if (!screen.terminal || line.size() <= kLength || line[kLength - 1] != 'Z' || line[kLength] != ' ' ||
      !absl::ParseTime(absl::RFC3339_full, line.substr(0, kLength), &time, nullptr)) {
    return line;
  }
  return absl::FormatTime("%Y-%m-%d %H:%M:%E3S", time, absl::LocalTimeZone()) + line.substr(kLength);
}

std::string Count(double count) {
  static constexpr const char* kUnits[] = {"", "k", "M", "B", "T", "P", "E"};
  size_t unit = 0;
  // 999.95k would print as 1000.0k.
  while (std::fabs(count) >= 999.5 && unit + 1 < std::size(kUnits)) {
    count /= 1000;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%.0f", count);
  return absl::StrFormat("%.*f%s", Decimals(count), count, kUnits[unit]);
}

std::string Significant(double value) { return absl::StrFormat("%.4g", value); }

std::string Grouped(uint64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string Grouped(uint64_t count, absl::string_view one, absl::string_view many) {
  return absl::StrCat(Grouped(count), " ", count == 1 ? one : many);
}

absl::Duration LimitLeft(const v1::Job& job, absl::Duration held) {
  const absl::StatusOr<absl::Duration> limit = ParseTimeLimit(job.spec().time_limit());
  return limit.ok() ? std::max(*limit - held, absl::ZeroDuration()) : absl::InfiniteDuration();
}

std::optional<absl::Duration> Remaining(const v1::Job& job, const v1::MetricPoint& metrics) {
  const uint64_t total = job.spec().train().steps();
  if (job.state() != v1::JOB_STATE_RUNNING || !metrics.has_step_seconds()) return std::nullopt;
  if (metrics.step() == 0 || metrics.step() > total) return std::nullopt;
  // The coordinator knows no mean of a job whose steps it has not seen since its start.
  const double step = metrics.mean_step_seconds() > 0 ? metrics.mean_step_seconds() : metrics.step_seconds();
  return std::min(absl::Seconds(static_cast<double>(total - metrics.step()) * step),
                  LimitLeft(job, absl::Seconds(job.held_seconds())));
}

std::string TimeLeft(const v1::Job& job, const v1::MetricPoint& metrics) {
  const std::optional<absl::Duration> left = Remaining(job, metrics);
  return left.has_value() ? Span(*left) : "";
}

std::string BusyCores(const v1::NodeUse& use) {
  return use.cores() == 0 ? "" : absl::StrFormat("%.1f/%d", use.busy_cores(), use.cores());
}

std::string UsedMemory(const v1::NodeUse& use) {
  return use.memory_bytes() == 0
             ? ""
             : absl::StrCat(FormatBytes(use.used_memory_bytes()), "/", FormatBytes(use.memory_bytes()));
}

std::string Rate(const v1::MetricPoint& point) {
  if (point.has_tokens_per_second()) return absl::StrCat(Count(point.tokens_per_second()), " tokens/s");
  if (point.has_samples_per_second()) return absl::StrCat(Count(point.samples_per_second()), " samples/s");
  return "";
}

std::string Validation(const v1::MetricPoint& point) {
  std::string text = Significant(point.validation_loss());
  for (const v1::NamedMetric& metric : point.validation()) {
    absl::StrAppend(&text, ", ", OneLine(metric.name()), " ", Significant(metric.value()));
  }
  return text;
}

std::string StateName(v1::JobState state) { return EnumName(state, v1::JobState_descriptor()); }
std::string StateName(v1::NodeState state) { return EnumName(state, v1::NodeState_descriptor()); }
std::string StateName(v1::GenerationState state) { return EnumName(state, v1::GenerationState_descriptor()); }
std::string StateName(v1::RankState state) { return EnumName(state, v1::RankState_descriptor()); }
std::string StateName(v1::SlotState state) { return EnumName(state, v1::SlotState_descriptor()); }
std::string ReasonName(v1::EndReason reason) {
  return reason == v1::END_REASON_UNSPECIFIED ? "" : EnumName(reason, v1::EndReason_descriptor());
}
std::string DeviceName(v1::Device device) { return EnumName(device, v1::Device_descriptor()); }

Colour ColourOf(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_RUNNING:
      return Colour::kGreen;
    case v1::JOB_STATE_FAILED:
      return Colour::kRed;
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_STOPPING:
      return Colour::kYellow;
    case v1::JOB_STATE_COMPLETED:
      return Colour::kCyan;
    default:
      return Colour::kNone;
  }
}

bool Ended(v1::JobState state) {
  return state == v1::JOB_STATE_COMPLETED || state == v1::JOB_STATE_FAILED || state == v1::JOB_STATE_CANCELLED;
}

std::string ModelName(const v1::JobSpec& spec) {
  constexpr int kColumns = 40;
  if (!spec.has_exec()) return models::Describe(spec.train().model());
  std::string command;
  for (const std::string& part : spec.exec().command()) {
    const std::string shown = command.empty() ? part.substr(part.rfind('/') + 1) : part;
    absl::StrAppend(&command, command.empty() ? "" : " ", OneLine(shown));
  }
  return Cut(command, kColumns, /*unicode=*/false);
}

std::string StrategyName(const v1::JobSpec& spec) {
  if (spec.has_exec()) return "exec";
  const v1::Strategy& strategy = spec.train().strategy();
  const auto* member = v1::Strategy::GetReflection()->GetOneofFieldDescriptor(
      strategy, v1::Strategy::descriptor()->FindOneofByName("kind"));
  if (member == nullptr) return "single";
  if (strategy.has_zero()) return absl::StrCat("zero ", strategy.zero().stage());
  if (strategy.has_fsdp() && strategy.fsdp().has_reshard()) {
    return absl::StrCat("fsdp ", EnumName(strategy.fsdp().reshard(), v1::Reshard_descriptor()));
  }
  return member->name();
}

std::string ParallelName(const v1::JobSpec& spec) {
  const v1::Train& train = spec.train();
  std::string name;
  if (train.parallel().pipeline() > 1) {
    const std::string schedule = EnumName(train.pipeline().schedule(), v1::PipelineSchedule_descriptor());
    absl::StrAppend(&name, ", ", train.parallel().pipeline(), " stages by ", schedule);
    if (train.pipeline().chunks() > 1) absl::StrAppend(&name, " of ", train.pipeline().chunks(), " chunks");
  }
  if (train.parallel().tensor() > 1) {
    absl::StrAppend(&name, ", tensor parallel over ", train.parallel().tensor(),
                    train.parallel().sequence_parallel() ? " with sequence parallel" : "");
  }
  if (train.parallel().context() > 1) {
    absl::StrAppend(&name, ", context parallel over ", train.parallel().context());
  }
  return name;
}

std::string OneLine(absl::string_view text) { return Clean(text, false); }
std::string Lines(absl::string_view text) { return Clean(text, true); }

int Width(absl::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return !Continues(c); }));
}

std::string Fitted(std::vector<Part> parts, absl::string_view gap, int columns) {
  const auto joined = [&] {
    return absl::StrJoin(parts, gap, [](std::string* out, const Part& part) { absl::StrAppend(out, part.text); });
  };
  while (columns > 0 && !parts.empty() && Width(joined()) > columns) {
    const auto most = std::max_element(parts.begin(), parts.end(),
                                       [](const Part& a, const Part& b) { return a.optional < b.optional; });
    if (most->optional == 0) break;
    parts.erase(most);
  }
  return joined();
}

std::string Cut(const std::string& text, int columns, bool unicode) {
  if (columns <= 0) return text;
  size_t kept = 0;  // bytes before the mark
  int width = 0;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\x1b') {
      at = std::min(text.size(), text.find('m', at)) + 1;
    } else {
      for (++at; at < text.size() && Continues(text[at]); ++at) {
      }
      ++width;
    }
    if (width < columns) kept = at;
  }
  if (width <= columns) return text;
  const std::string begin = text.substr(0, kept);
  return absl::StrCat(begin, unicode ? "…" : "~", absl::StrContains(begin, '\x1b') ? "\x1b[0m" : "");
}

std::string OnScreen(const std::string& page, const Screen& screen) {
  std::vector<std::string> lines = absl::StrSplit(absl::StripSuffix(page, "\n"), '\n');
  if (screen.height > 0) lines.resize(std::min(lines.size(), static_cast<size_t>(screen.height)));
  for (std::string& line : lines) line = Cut(line, screen.width, screen.unicode);
  return absl::StrJoin(lines, "\n");
}

}  // namespace muster::cli
