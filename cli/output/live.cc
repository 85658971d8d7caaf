#include "cli/output/live.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/output/format.h"
#include "cli/output/plot.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

// The curve needs no more points, and a stream may bring 100,000.
constexpr size_t kMaxPoints = 8192;

// Drops every second point when there are too many.
void AddPoint(std::vector<std::pair<double, double>>& points, double step, double value) {
  // A restarted job repeats the steps since its checkpoint.
  while (!points.empty() && points.back().first >= step) points.pop_back();
  points.emplace_back(step, value);
  if (points.size() < kMaxPoints) return;
  size_t kept = 0;
  for (size_t i = 0; i < points.size(); i += 2) points[kept++] = points[i];
  points.resize(kept);
}

std::vector<std::string> LogLines(const Screen& screen, const v1::LogChunk& chunk, bool several_ranks) {
  std::vector<std::string> lines = absl::StrSplit(chunk.text(), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (std::string& line : lines) {
    line = OneLine(WithOneClock(screen, line));
    if (several_ranks) line = absl::StrCat("rank ", chunk.rank(), ": ", line);
  }
  return lines;
}

}  // namespace

void JobView::SetJob(const v1::Job& job) { job_ = job; }

void JobView::ApplyMetrics(const v1::MetricPoint& point) {
  step_ = point.step();
  step_time_.Add(step_, point.step_seconds());
  if (const std::string rate = Rate(point); !rate.empty()) rate_ = rate;
  if (point.has_loss()) {
    loss_ = point.loss();
    if (!first_loss_) first_loss_ = loss_;
    AddPoint(losses_, static_cast<double>(step_), point.loss());
  }
  if (point.has_validation_loss()) {
    validation_loss_ = point.validation_loss();
    validation_ = Validation(point);
    AddPoint(validations_, static_cast<double>(step_), point.validation_loss());
  }
}

std::vector<std::string> JobView::Apply(const v1::WatchItem& item, absl::Time now) {
  switch (item.body_case()) {
    case v1::WatchItem::kSnapshot:
      SetJob(item.snapshot());
      held_as_of_ = now;
      return {};
    case v1::WatchItem::kEvent: {
      // An older event says what the job was before the snapshot.
      if (!item.in_snapshot()) ApplyState(item.event(), now);
      const std::string time = TimeOfDay(screen_, FromProto(item.event().time()));
      std::vector<std::string> lines = Tick(absl::InfiniteFuture());
      const std::string line = absl::StrCat(Paint(screen_, Colour::kDim, time), "  ", EventText(item.event()), "\n");
      for (const absl::string_view part : absl::StrSplit(Wrapped(line, screen_.width), '\n', absl::SkipEmpty())) {
        lines.emplace_back(part);
      }
      return lines;
    }
    case v1::WatchItem::kLog:
      return LogLines(screen_, item.log(), job_.spec().resources().ranks() > 1);
    case v1::WatchItem::kGap: {
      const std::string items = item.gap().items() == 0 ? "some" : absl::StrCat(item.gap().items());
      return {absl::StrCat("(", items, " ", OneLine(item.gap().what()), " are no longer kept)")};
    }
    case v1::WatchItem::kMetrics:
      break;
    case v1::WatchItem::BODY_NOT_SET:
      return {};
  }
  ApplyMetrics(item.metrics());
  if (screen_.terminal) return {};
  const bool must = item.metrics().has_validation_loss() || item.metrics().step() == TotalSteps();
  if (!must && now - last_line_ < absl::Seconds(1)) {
    held_back_ = item.metrics();
    return {};
  }
  held_back_.reset();
  last_line_ = now;
  return {MetricsLine(item.metrics(), now)};
}

void JobView::ApplyState(const v1::StateEvent& event, absl::Time now) {
  const v1::JobState state = event.job_state();
  if (state == v1::JOB_STATE_UNSPECIFIED || state == job_.state()) return;
  job_.set_held_seconds(absl::ToDoubleSeconds(Held(now)));
  held_as_of_ = now;
  job_.set_state(state);
  const bool waits = state == v1::JOB_STATE_QUEUED || state == v1::JOB_STATE_PAUSED;
  job_.set_reason(waits ? event.message() : "");  // the old one was that of the old state
}

absl::Duration JobView::Held(absl::Time now) const {
  const bool holds = job_.state() == v1::JOB_STATE_STARTING || job_.state() == v1::JOB_STATE_RUNNING ||
                     job_.state() == v1::JOB_STATE_STOPPING;
  return absl::Seconds(job_.held_seconds()) +
         (holds && held_as_of_.has_value() ? std::max(now - *held_as_of_, absl::ZeroDuration()) : absl::ZeroDuration());
}

// Of a fault's cause the details, which can be long, are printed once: by the restart, or by FailureText.
std::string JobView::EventText(const v1::StateEvent& event) {
  const std::string message = OneLine(event.message());
  if (event.kind() == "rank.exited" || event.kind() == "rank.hung") {
    cause_ = message.substr(0, message.rfind(" (on "));
    const size_t details = event.kind() == "rank.exited" ? cause_.find(": ") : std::string::npos;
    details_shown_ = details == std::string::npos;
    return details_shown_ ? message : absl::StrCat(cause_.substr(0, details), message.substr(cause_.size()));
  }
  const size_t repeated = cause_.empty() ? std::string::npos : message.find(cause_);
  if (repeated == std::string::npos) return message;
  if (!details_shown_ && event.kind() == "job.queued") {
    details_shown_ = true;
    return message;
  }
  absl::string_view head = absl::string_view(message).substr(0, repeated);
  absl::ConsumeSuffix(&head, ": ");
  absl::ConsumeSuffix(&head, " after");
  return std::string(head);
}

std::vector<std::string> JobView::Tick(absl::Time now) {
  if (!held_back_ || now - last_line_ < absl::Seconds(1)) return {};
  const std::string line = MetricsLine(*held_back_, now == absl::InfiniteFuture() ? last_line_ : now);
  held_back_.reset();
  if (now != absl::InfiniteFuture()) last_line_ = now;
  return {line};
}

std::string JobView::MetricsLine(const v1::MetricPoint& point, absl::Time now) const {
  std::vector<std::string> parts = {TotalSteps() == 0 ? absl::StrCat("step ", point.step())
                                                      : absl::StrCat("step ", point.step(), "/", TotalSteps())};
  if (point.has_loss()) parts.push_back(absl::StrCat("loss ", Significant(point.loss())));
  if (point.has_validation_loss()) {
    parts.push_back(absl::StrCat("validation loss ", Validation(point)));
  }
  if (const std::string rate = Rate(point); !rate.empty()) parts.push_back(rate);
  if (const auto left = TimeLeft(now); left && *left > absl::ZeroDuration()) {
    parts.push_back(absl::StrCat(Span(*left), " left"));
  }
  return absl::StrJoin(parts, "  ");
}

std::optional<absl::Duration> JobView::TimeLeft(absl::Time now) const {
  if (TotalSteps() == 0 || step_time_.mean_seconds() <= 0) return std::nullopt;
  const uint64_t left = TotalSteps() - std::min(step_, TotalSteps());
  return std::min(absl::Seconds(step_time_.mean_seconds() * static_cast<double>(left)), LimitLeft(job_, Held(now)));
}

std::string JobView::Bar(double fraction, int columns) const {
  fraction = std::clamp(fraction, 0.0, 1.0);
  if (!screen_.unicode) {
    const int full = static_cast<int>(fraction * columns);
    return absl::StrCat("[", std::string(full, '#'), std::string(columns - full, '.'), "]");
  }
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(fraction * columns * 8);
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  for (int used = eighths / 8 + (eighths % 8 > 0 ? 1 : 0); used < columns; ++used) bar += "░";
  return bar;
}

std::string JobView::LiveLine(absl::Time now) const {
  const std::string state = StateName(job_.state());
  std::string head = OneLine(job_.id());
  if (job_.state() == v1::JOB_STATE_QUEUED || job_.state() == v1::JOB_STATE_PAUSED || step_ == 0) {
    std::string line = absl::StrCat(head, "  ", state);
    if (!job_.reason().empty()) absl::StrAppend(&line, "  ", OneLine(job_.reason()));
    if (job_.has_submitted()) absl::StrAppend(&line, "  ", Span(now - FromProto(job_.submitted())));
    return Cut(line, screen_.width, screen_.unicode);
  }
  // The time left is what stays on a narrow terminal.
  std::vector<Part> parts;
  const double fraction = TotalSteps() == 0 ? 0 : static_cast<double>(step_) / static_cast<double>(TotalSteps());
  if (TotalSteps() > 0) {
    parts.push_back({absl::StrFormat("%3d%%", static_cast<int>(std::min(1.0, fraction) * 100))});
    parts.push_back({absl::StrCat(step_, "/", TotalSteps()), /*optional=*/1});
  } else {
    parts.push_back({absl::StrCat("step ", step_)});
  }
  if (loss_) parts.push_back({absl::StrCat("loss ", Significant(*loss_)), /*optional=*/2});
  if (validation_loss_) parts.push_back({absl::StrCat("val ", Significant(*validation_loss_)), /*optional=*/4});
  if (!rate_.empty()) parts.push_back({rate_, /*optional=*/3});
  if (const auto left = TimeLeft(now)) parts.push_back({absl::StrCat(Span(*left), " left")});
  if (job_.state() != v1::JOB_STATE_RUNNING) head = absl::StrCat(head, "  ", state);
  const int beside_head = screen_.width == 0 ? 0 : std::max(1, screen_.width - Width(head) - 2);
  const std::string tail = Fitted(std::move(parts), "  ", beside_head);
  // The bar gets the columns that the text leaves, between 8 and 30.
  const int free = screen_.width - Width(head) - Width(tail) - 5;
  const int columns = screen_.width == 0 ? 20 : std::min(30, free - (screen_.unicode ? 0 : 2));
  if (TotalSteps() == 0 || columns < 8) {
    return Cut(absl::StrCat(head, "  ", tail), screen_.width, screen_.unicode);
  }
  return absl::StrCat(head, "  ", Bar(fraction, columns), " ", tail);
}

std::string JobView::Curve() const {
  Plot plot;
  plot.title = "loss";
  plot.line = losses_;
  plot.marks = validations_;
  plot.marks_title = "validation loss";
  plot.unicode = screen_.unicode;
  plot.width = CurveWidth(screen_);
  return losses_.size() < 2 ? "" : Draw(plot);
}

std::string JobView::Summary(absl::Time now) const {
  std::string out = Curve();
  if (!out.empty()) out += "\n";
  absl::StrAppend(&out, OneLine(job_.id()), " ", Paint(screen_, ColourOf(job_.state()), StateName(job_.state())));
  std::vector<std::string> parts;
  const uint64_t steps = std::max(step_, job_.progress_step());
  if (steps > 0) {
    // The steps before another job's checkpoint were not this job's, and it took no time for them.
    const bool others = !job_.spec().train().checkpoint().resume_from().empty();
    std::string text = others ? absl::StrCat("at step ", Grouped(steps))
                              : absl::StrCat(Grouped(steps), steps == 1 ? " step" : " steps");
    if (job_.has_started()) {
      const absl::Time end = job_.has_ended() ? FromProto(job_.ended()) : now;
      absl::StrAppend(&text, others ? ", " : " in ", Span(end - FromProto(job_.started())),
                      others ? " after it resumed from another job's checkpoint" : "");
    }
    parts.push_back(text);
  }
  if (loss_ && first_loss_) {
    parts.push_back(
        absl::StrCat("loss ", Significant(*first_loss_), screen_.unicode ? " → " : " -> ", Significant(*loss_)));
  }
  if (validation_loss_) parts.push_back(absl::StrCat("validation loss ", validation_));
  if (job_.restarts() > 0) parts.push_back(absl::StrCat("restarted ", job_.restarts(), "x"));
  if (!parts.empty()) absl::StrAppend(&out, ": ", absl::StrJoin(parts, ", "));
  return out + "\n";
}

std::string JobView::FailureText(bool with_reason) const {
  if (job_.state() != v1::JOB_STATE_FAILED) return "";
  std::string out;
  if (with_reason && !job_.reason().empty()) {
    absl::StrAppend(&out, Paint(screen_, Colour::kRed, "failed"), ": ", OneLine(job_.reason()), "\n");
  }
  if (!job_.has_failure()) return out;
  const v1::Failure& failure = job_.failure();
  const std::string& message = failure.exit().message();
  absl::StrAppend(&out, "first failing rank: ", failure.rank());
  if (!failure.node().empty()) absl::StrAppend(&out, " on ", OneLine(failure.node()));
  absl::StrAppend(&out, " (generation ", failure.generation(), ")");
  if (!message.empty() && !absl::StrContains(job_.reason(), message)) {
    absl::StrAppend(&out, ": ", OneLine(message));
  }
  out += "\n";
  if (const int others = failure.collateral_size(); others > 0) {
    absl::StrAppend(&out, others, others == 1 ? " other rank" : " other ranks", " stopped as a result\n");
  }
  // "rank 0 exited with code 1: WHY": the log says WHY, too.
  const size_t why = message.find(": ");
  const std::string known = why == std::string::npos ? "" : message.substr(why + 2);
  std::string lines;
  for (const std::string& line : failure.exit().last_lines()) {
    if (known.empty() || !absl::StrContains(line, known)) {
      absl::StrAppend(&lines, "  ", OneLine(WithOneClock(screen_, line)), "\n");
    }
  }
  if (!lines.empty()) absl::StrAppend(&out, "last lines of its log:\n", lines);
  if (!failure.hint().empty()) absl::StrAppend(&out, "hint: ", OneLine(failure.hint()), "\n");
  return out;
}

}  // namespace muster::cli
