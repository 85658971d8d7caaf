// Numbers, times and states as users read them. Pure.
#pragma once

#include <google/protobuf/timestamp.pb.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/output/screen.h"
#include "common/wrapped.h"
#include "proto/job.pb.h"

namespace muster::cli {

std::string Age(absl::Duration age);    // "12s", "3m", "5h", "9d": one unit, for tables; "-" when it is not known
std::string Span(absl::Duration span);  // "48s", "1m 20s", "2h 05m", "3d 4h"
// The only two ways to print a time: local on a terminal, and UTC with a Z elsewhere.
std::string TimeOfDay(const Screen& screen, absl::Time time);    // "12:00:00", "12:00:00Z"
std::string DateAndTime(const Screen& screen, absl::Time time);  // "2026-01-31 12:00:00", "2026-01-31T12:00:00Z"
// The line, which may begin with the UTC time that a process of Muster's own gives to what it logs: on a terminal with
// that time as DateAndTime has it, and milliseconds.
std::string WithOneClock(const Screen& screen, const std::string& line);
std::string Count(double count);        // "950", "12.3k", "124M", "1.56B"
std::string Significant(double value);  // four significant digits: "2.134", "0.0003", "1.2e-05"
std::string Grouped(uint64_t count);    // "1,234,567"
std::string Grouped(uint64_t count, absl::string_view one, absl::string_view many);  // "1 step", "1,234 steps"
// What the time_limit leaves of a job that has held slots for so long; infinite: there is none.
absl::Duration LimitLeft(const v1::Job& job, absl::Duration held);
// Until a running job ends, by the mean time of its recent steps or by its time_limit; none: unknown.
std::optional<absl::Duration> Remaining(const v1::Job& job, const v1::MetricPoint& metrics);
std::string TimeLeft(const v1::Job& job, const v1::MetricPoint& metrics);  // empty: unknown
std::string BusyCores(const v1::NodeUse& use);                             // "1.4/8"; empty: not measured
std::string UsedMemory(const v1::NodeUse& use);                            // "3.1 GiB/24 GiB"
// "12.3k tokens/s", of a language model; else "950 samples/s"; empty: not measured.
std::string Rate(const v1::MetricPoint& point);
// "0.25, top1 0.875": the loss, then the task's metrics.
std::string Validation(const v1::MetricPoint& point);

std::string StateName(v1::JobState state);         // "running"
std::string StateName(v1::NodeState state);        // "live"
std::string StateName(v1::GenerationState state);  // "ended"
std::string StateName(v1::RankState state);
std::string StateName(v1::SlotState state);
std::string ReasonName(v1::EndReason reason);  // "drained"; empty when unset
std::string DeviceName(v1::Device device);     // "cpu"
Colour ColourOf(v1::JobState state);
bool Ended(v1::JobState state);

// "gpt2 tiny", "zero 3", "fsdp hybrid" of a resolved spec.
std::string ModelName(const v1::JobSpec& spec);
std::string StrategyName(const v1::JobSpec& spec);
// ", 4 stages by 1f1b", ", 2 stages by interleaved of 3 chunks, tensor parallel over 4, context parallel over 2"; ""
// without any.
std::string ParallelName(const v1::JobSpec& spec);

// Text from elsewhere (log lines in tables, messages, names) must not move the cursor: control characters become '?',
// line breaks become spaces.
std::string OneLine(absl::string_view text);
// The same for text of several lines: keeps line breaks and tabs.
std::string Lines(absl::string_view text);

// Columns that UTF-8 text takes, one for each character (wide characters count as one).
int Width(absl::string_view text);
// Part of a line.
struct Part {
  std::string text;
  int optional = 0;  // left out of a line that is too wide, the highest first; 0: never
};
// The parts that fit in `columns`, of which 0 is no limit, with `gap` between them.
std::string Fitted(std::vector<Part> parts, absl::string_view gap, int columns);
// The first `columns` of it; "…" (or "~") marks the cut. Sequences for colors take no room.
std::string Cut(const std::string& text, int columns, bool unicode);
// What is drawn of a page in place: its first lines, each cut, so that nothing wraps or scrolls. Without a newline at
// the end.
std::string OnScreen(const std::string& page, const Screen& screen);

}  // namespace muster::cli
