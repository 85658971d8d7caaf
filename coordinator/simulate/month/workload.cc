#include "coordinator/simulate/month/workload.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "coordinator/simulate/random.h"

namespace muster::simulate {
namespace {

struct Size {
  uint32_t ranks;
  double share;  // of jobs
};
constexpr std::array<Size, 8> kSizes = {
    {{1, .50}, {2, .12}, {4, .13}, {8, .15}, {16, .05}, {32, .03}, {64, .015}, {128, .005}}};
constexpr double kMedianMinutes = 20, kGrowth = 0.4, kSigma = 1.8;  // of run times
constexpr absl::Duration kShortest = absl::Minutes(1), kLongest = absl::Hours(72);

struct Demand {
  MonthProject project;
  double of_quota;       // what it asks for, before all is scaled to the load
  double in_third_week;  // how much busier it is then
};
const std::vector<Demand>& Demands() {
  static const auto& demands = *new std::vector<Demand>{{{"vision", 96, 12}, 0.9, 1},
                                                        {{"speech", 64, 10}, 0.8, 6},
                                                        {{"language", 48, 8}, 2.0, 1},
                                                        {{"robotics", 32, 6}, 0.5, 1},
                                                        {{"theory", 16, 4}, 1.0, 1}};
  return demands;
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  double Uniform() { return static_cast<double>(random_.Next() >> 11) * 0x1.0p-53; }
  double Normal() {
    return std::sqrt(-2 * std::log(1 - Uniform())) * std::cos(2 * std::numbers::pi * Uniform());  // Box and Muller
  }

  uint32_t Ranks() {
    double left = Uniform();
    for (const Size& size : kSizes) {
      if (left < size.share) return size.ranks;
      left -= size.share;
    }
    return 1;
  }

  absl::Duration RunTime(uint32_t ranks) {
    const double minutes = kMedianMinutes * std::pow(ranks, kGrowth) * std::exp(kSigma * Normal());
    return std::clamp(absl::Trunc(absl::Minutes(minutes), absl::Seconds(1)), kShortest, kLongest);
  }

  absl::Duration TimeLimit(absl::Duration runs) {
    const double factor = 1.2 * std::pow(10 / 1.2, Uniform());
    const absl::Duration asked = factor * runs + absl::Minutes(10);
    for (const int hours : {1, 2, 4, 8, 12, 24, 48, 72, 120}) {
      if (asked <= absl::Hours(hours)) return absl::Hours(hours);
    }
    return absl::Hours(168);
  }

  // Of the users of a project the first submits most: their shares are as 1, 1/2, 1/3, ...
  uint32_t User(uint32_t users) {
    double all = 0;
    for (uint32_t user = 0; user < users; ++user) all += 1.0 / (user + 1);
    double left = Uniform() * all;
    for (uint32_t user = 0; user < users; ++user) {
      left -= 1.0 / (user + 1);
      if (left < 0) return user;
    }
    return users - 1;
  }

  // More by day than by night, and on weekdays than on the others.
  absl::Duration Time(absl::Duration length, double in_third_week) {
    const double busiest = std::max(1.0, in_third_week);
    for (;;) {
      const absl::Duration at = Uniform() * length;
      const auto hours = absl::ToDoubleHours(at);
      const double hour = std::fmod(hours, 24), day = std::floor(hours / 24);
      double rate = hour >= 9 && hour < 19 ? 1.0 : hour >= 7 && hour < 23 ? 0.5 : 0.2;
      if (std::fmod(day, 7) >= 5) rate *= 0.4;
      if (day >= 14 && day < 21) rate *= in_third_week;
      if (Uniform() * busiest < rate) return absl::Trunc(at, absl::Seconds(1));
    }
  }

 private:
  Random random_;
};

}  // namespace

std::string Month::UserName(uint32_t user) const { return absl::StrCat("user-", user); }

Month MakeMonth(const MonthOptions& options) {
  Draw draw(options.seed);
  Month month{.length = absl::Hours(24) * options.days, .projects = {}, .jobs = {}};
  double asked = 0;
  for (const Demand& demand : Demands()) asked += demand.of_quota * demand.project.nominal;
  const double all = options.load * kMonthSlots * absl::ToDoubleSeconds(month.length);
  uint32_t users = 0;
  for (const Demand& demand : Demands()) {
    double left = all * demand.of_quota * demand.project.nominal / asked;
    while (left > 0) {
      MonthJob& job = month.jobs.emplace_back();
      job.project = static_cast<uint32_t>(month.projects.size());
      job.user = users + draw.User(demand.project.users);
      do job.ranks = draw.Ranks();
      while (job.ranks > 2 * demand.project.nominal);
      job.runs = draw.RunTime(job.ranks);
      job.time_limit = draw.TimeLimit(job.runs);
      job.submitted = draw.Time(month.length, demand.in_third_week);
      left -= job.ranks * absl::ToDoubleSeconds(job.runs);
    }
    users += demand.project.users;
    month.projects.push_back(demand.project);
  }
  std::stable_sort(month.jobs.begin(), month.jobs.end(),
                   [](const MonthJob& a, const MonthJob& b) { return a.submitted < b.submitted; });
  return month;
}

}  // namespace muster::simulate
