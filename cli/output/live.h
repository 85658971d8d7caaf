// What `watch` shows of one job, from the items of its stream. Pure: each call passes the time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/output/screen.h"
#include "common/step_time.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

class JobView {
 public:
  explicit JobView(Screen screen) : screen_(screen) {}

  // Applies an item; returns the lines to print for it: state events, which fit the terminal, gaps, log lines, and,
  // where there is no live line, metrics: at most one line a second, but every validation and the last step.
  std::vector<std::string> Apply(const v1::WatchItem& item, absl::Time now);
  // A metrics line that the rate limit held back, once its second is over.
  std::vector<std::string> Tick(absl::Time now);

  // One line for a terminal, at most its width: name, state, bar, step, loss, tokens/s, time left.
  std::string LiveLine(absl::Time now) const;

  // The summary at the end: "gpt2-tiny-x7f2 completed: 1000 steps in 1m 52s, loss 5.545 -> 1.742, validation loss
  // 1.781", and the curve. Of a job with checkpoint.resume_from: "at step 1000, 20s after it resumed from another job's
  // checkpoint".
  std::string Summary(absl::Time now) const;
  // Why the job failed: the reason, the first failing rank, its last lines, a hint. Says nothing twice. Empty for other
  // jobs.
  std::string FailureText(bool with_reason = true) const;
  std::string Curve() const;

  void SetJob(const v1::Job& job);
  // The terminal has so many columns now.
  void Resize(int columns) { screen_.width = columns; }
  const v1::Job& job() const { return job_; }
  uint64_t step() const { return step_; }

 private:
  std::string EventText(const v1::StateEvent& event);
  std::string MetricsLine(const v1::MetricPoint& point, absl::Time now) const;
  void ApplyMetrics(const v1::MetricPoint& point);
  void ApplyState(const v1::StateEvent& event, absl::Time now);
  // How long the job has held slots, which its time_limit bounds.
  absl::Duration Held(absl::Time now) const;
  // Until its last step or its time_limit.
  std::optional<absl::Duration> TimeLeft(absl::Time now) const;
  std::string Bar(double fraction, int columns) const;
  uint64_t TotalSteps() const { return job_.spec().train().steps(); }

  Screen screen_;
  v1::Job job_;
  std::optional<absl::Time> held_as_of_;  // the time of job_.held_seconds; none: of a job that is not followed
  uint64_t step_ = 0;
  StepTime step_time_;
  std::string rate_;
  std::string cause_;  // of the newest fault
  bool details_shown_ = false;
  std::string validation_;  // the newest one's loss and metrics
  std::optional<double> loss_, first_loss_, validation_loss_;
  std::vector<std::pair<double, double>> losses_, validations_;
  std::optional<v1::MetricPoint> held_back_;
  absl::Time last_line_ = absl::InfinitePast();
};

}  // namespace muster::cli
