// Reads a report file as its script appends to it, with bounds on what it passes on: a script that writes too much, or
// nonsense, costs Muster a warning.
//
//   ReportTail tail(path);
//   for (Report& report : tail.Read(clock.Read().steady)) ...
//   if (const std::string warning = tail.TakeWarning(); !warning.empty()) ...
//
// Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "worker/exec/report_line.h"

namespace muster::exec {

class ReportTail {
 public:
  // At most `burst` reports at once and `per_second` in the long run; more are dropped.
  explicit ReportTail(std::string path, double per_second = 20, double burst = 200);
  ~ReportTail();
  ReportTail(const ReportTail&) = delete;

  // Makes an empty file that its owner may write to.
  absl::Status Create();

  // The whole lines since the last call, at most 1 MiB of them. Frees their place on the disk. A line that is malformed
  // is left out.
  std::vector<Report> Read(SteadyTime now);

  // Once for the first malformed line, and once for the first dropped report; else empty.
  std::string TakeWarning();

 private:
  void Take(absl::string_view line, SteadyTime now, std::vector<Report>& reports);
  bool MaySend(SteadyTime now);

  const std::string path_;
  const double per_second_, burst_;
  int descriptor_ = -1;
  uint64_t offset_ = 0;  // read
  uint64_t freed_ = 0;
  std::string rest_;       // a line without its end
  bool skipping_ = false;  // the rest of a line that is too long
  double tokens_;
  SteadyTime filled_at_;
  bool malformed_ = false, dropped_ = false;
  std::string warning_;
};

}  // namespace muster::exec
