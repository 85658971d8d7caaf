#include "coordinator/simulate/month/tally.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace muster::simulate {
namespace {

struct Class {
  const char* name;
  uint32_t least, most;
};
constexpr std::array<Class, 5> kClasses = {
    {{"all", 1, kMonthSlots}, {"1 GPU", 1, 1}, {"2 to 8", 2, 8}, {"16 to 32", 9, 32}, {"64 to 128", 33, kMonthSlots}}};

std::string Hours(absl::Duration time) {
  const double hours = absl::ToDoubleHours(time);
  return absl::StrFormat("%.*f", hours >= 100 ? 0 : hours >= 10 ? 1 : 2, hours);
}

std::string Text(const Waits& waits) {
  return absl::StrCat(Hours(waits.p50), " / ", Hours(waits.p95), " / ", Hours(waits.max));
}

}  // namespace

Tally::Tally(const Month* month) : month_(month), jobs_(month->jobs.size()), projects_(month->projects.size()) {}

void Tally::Advance(absl::Duration to) {
  MUSTER_CHECK(to >= now_, "time goes back");
  const double seconds = absl::ToDoubleSeconds(to - now_);
  held_seconds_ += seconds * static_cast<double>(held_);
  const absl::Duration in_month = std::min(to, month_->length) - std::min(now_, month_->length);
  held_in_month_ += absl::ToDoubleSeconds(in_month) * static_cast<double>(held_);
  double sum = 0, squares = 0, waiting = 0;
  for (size_t p = 0; p < projects_.size(); ++p) {
    Project& project = projects_[p];
    if (project.waiting.empty()) continue;
    const uint64_t nominal = month_->projects[p].nominal;
    if (project.held + *project.waiting.begin() <= nominal) project.below += to - now_;
    const double part = static_cast<double>(project.held) / static_cast<double>(nominal);
    sum += part, squares += part * part, waiting += 1;
  }
  if (waiting >= 2 && squares > 0) {
    jain_seconds_ += seconds * sum * sum / (waiting * squares);
    contended_seconds_ += seconds;
  }
  now_ = to;
}

void Tally::Submitted(size_t job, absl::Duration at) {
  Advance(at);
  jobs_[job].since = at;
  projects_[month_->jobs[job].project].waiting.insert(month_->jobs[job].ranks);
}

void Tally::Started(size_t job, absl::Duration at) {
  Advance(at);
  const MonthJob& its = month_->jobs[job];
  Project& project = projects_[its.project];
  MUSTER_CHECK(!jobs_[job].holds && !jobs_[job].ended, "job ", job, " starts twice");
  project.waiting.erase(project.waiting.find(its.ranks));
  project.held += its.ranks, held_ += its.ranks;
  MUSTER_CHECK(held_ <= kMonthSlots, "more slots are held than there are");
  jobs_[job].waited += at - jobs_[job].since;
  jobs_[job].holds = true;
}

void Tally::Release(size_t job, absl::Duration at) {
  Advance(at);
  MUSTER_CHECK(jobs_[job].holds, "job ", job, " stops, and holds no slots");
  const MonthJob& its = month_->jobs[job];
  projects_[its.project].held -= its.ranks, held_ -= its.ranks;
  jobs_[job].holds = false;
}

void Tally::Preempted(size_t job, absl::Duration at) {
  Release(job, at);
  ++preemptions_;
  Submitted(job, at);
}

void Tally::Ended(size_t job, absl::Duration at, bool completed) {
  Release(job, at);
  jobs_[job].ended = true;
  not_completed_ += !completed;
}

Waits Tally::WaitsOf(const std::string& of, std::vector<absl::Duration> waits) const {
  Waits found{.of = of, .jobs = waits.size(), .p50 = {}, .p95 = {}, .max = {}};
  if (waits.empty()) return found;
  std::sort(waits.begin(), waits.end());
  const auto at = [&](double share) {  // the nearest rank
    return waits[static_cast<size_t>(std::lround(share * static_cast<double>(waits.size() - 1)))];
  };
  found.p50 = at(0.5), found.p95 = at(0.95), found.max = waits.back();
  return found;
}

MonthFigures Tally::Conclude(std::string policy) {
  MonthFigures figures{.policy = std::move(policy)};
  double trained = 0;
  for (const MonthJob& job : month_->jobs) trained += job.ranks * absl::ToDoubleSeconds(job.runs);
  figures.utilization = held_in_month_ / (kMonthSlots * absl::ToDoubleSeconds(month_->length));
  figures.overhead = 1 - trained / held_seconds_;
  figures.drained = now_ - month_->length;
  const auto waits = [&](const auto& counts) {
    std::vector<absl::Duration> found;
    for (size_t job = 0; job < jobs_.size(); ++job) {
      if (counts(month_->jobs[job])) found.push_back(jobs_[job].waited);
    }
    return found;
  };
  for (const Class& its : kClasses) {
    figures.by_size.push_back(
        WaitsOf(its.name, waits([&](const MonthJob& job) { return job.ranks >= its.least && job.ranks <= its.most; })));
  }
  for (size_t p = 0; p < projects_.size(); ++p) {
    figures.by_project.push_back(
        WaitsOf(month_->projects[p].name, waits([&](const MonthJob& job) { return job.project == p; })));
    figures.below_guarantee.push_back(projects_[p].below);
  }
  figures.jain = contended_seconds_ == 0 ? 1 : jain_seconds_ / contended_seconds_;
  figures.preemptions = preemptions_, figures.not_completed = not_completed_;
  return figures;
}

std::string TableOf(const Month& month, const std::vector<MonthFigures>& all) {
  std::string text = "| |";
  for (const MonthFigures& of : all) absl::StrAppend(&text, " ", of.policy, " |");
  absl::StrAppend(&text, "\n|---|");
  for (size_t i = 0; i < all.size(); ++i) absl::StrAppend(&text, "---|");
  const auto row = [&](const std::string& name, const auto& value) {
    absl::StrAppend(&text, "\n| ", name, " |");
    for (const MonthFigures& of : all) absl::StrAppend(&text, " ", value(of), " |");
  };
  row("slots in use, of 256", [](const MonthFigures& f) { return absl::StrFormat("%.1f%%", 100 * f.utilization); });
  row("of that starts and stops", [](const MonthFigures& f) { return absl::StrFormat("%.2f%%", 100 * f.overhead); });
  row("last job ended after the month, h", [](const MonthFigures& f) { return Hours(f.drained); });
  for (size_t i = 0; i < all[0].by_size.size(); ++i) {
    row(absl::StrCat("wait of ", i == 0 ? "all jobs" : absl::StrCat("jobs of ", all[0].by_size[i].of), " (",
                     all[0].by_size[i].jobs, "), h"),
        [&](const MonthFigures& f) { return Text(f.by_size[i]); });
  }
  for (size_t i = 0; i < all[0].by_project.size(); ++i) {
    row(absl::StrCat("wait in ", all[0].by_project[i].of, " (", all[0].by_project[i].jobs, "), h"),
        [&](const MonthFigures& f) { return Text(f.by_project[i]); });
  }
  for (size_t p = 0; p < month.projects.size(); ++p) {
    row(absl::StrCat(month.projects[p].name, " below its guarantee, h"),
        [&](const MonthFigures& f) { return Hours(f.below_guarantee[p]); });
  }
  row("Jain's index", [](const MonthFigures& f) { return absl::StrFormat("%.2f", f.jain); });
  row("preemptions", [](const MonthFigures& f) { return absl::StrCat(f.preemptions); });
  row("jobs not completed", [](const MonthFigures& f) { return absl::StrCat(f.not_completed); });
  return text + "\n";
}

}  // namespace muster::simulate
