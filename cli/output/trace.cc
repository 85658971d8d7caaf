#include "cli/output/trace.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/output/format.h"
#include "common/proto_time.h"
#include "common/wrapped.h"

namespace muster::cli {
namespace {

using Interval = std::pair<uint64_t, uint64_t>;  // begin, end

constexpr char kBetween[] = "(between)";
constexpr char kWait[] = "Wait";
constexpr char kExchange[] = "Exchange";

std::string NameOf(const v1::StepTrace& step, const v1::Span& span) {
  return span.name() < static_cast<uint32_t>(step.names_size()) ? step.names(static_cast<int>(span.name())) : "?";
}

const char* LaneName(v1::Lane lane) {
  switch (lane) {
    case v1::LANE_HOST:
      return "host";
    case v1::LANE_COMPUTE:
      return "compute";
    case v1::LANE_GATHER:
      return "gather";
    case v1::LANE_REDUCE:
      return "reduce";
    case v1::LANE_TRANSFER:
      return "transfer";
    case v1::LANE_FETCH:
      return "fetch";
    case v1::LANE_SEND_ACTIVATIONS:
      return "send activations";
    case v1::LANE_RECEIVE_ACTIVATIONS:
      return "receive activations";
    case v1::LANE_SEND_GRADIENTS:
      return "send gradients";
    case v1::LANE_RECEIVE_GRADIENTS:
      return "receive gradients";
    case v1::LANE_GATHER_BETWEEN:
      return "gather between nodes";
    case v1::LANE_REDUCE_BETWEEN:
      return "reduce between nodes";
    case v1::LANE_EXCHANGE:
      return "exchange";
    default:
      return "other";
  }
}

// Whether an op's name goes on with its unit: "Backward h.3 m0". What an op of the whole step may have there instead:
// "GradientNorm in world even after 7". A unit may have one of these names, and then its microbatch comes next.
bool NamesUnit(const std::vector<std::string>& words) {
  constexpr absl::string_view kOthers[] = {"on", "in", "slot", "even", "after"};
  if (words.size() < 2) return false;
  if (std::find(std::begin(kOthers), std::end(kOthers), words[1]) == std::end(kOthers)) return true;
  return words.size() > 2 && words[2].size() > 1 && words[2][0] == 'm' && absl::ascii_isdigit(words[2][1]);
}

// "Backward h.3 m0" by kind is "Backward", by unit "h.3", by op the op without its waits. What is no op is a sentence
// ("the step's result") and has its row as it is.
std::string RowOf(const std::string& name, v1::Lane lane, TraceRows by) {
  if (lane == v1::LANE_COMPUTE && !name.empty() && !absl::ascii_isupper(name[0])) return name;
  const std::vector<std::string> words = absl::StrSplit(name, ' ');
  if (by == TraceRows::kKind || lane != v1::LANE_COMPUTE || !NamesUnit(words)) return words[0];
  if (by == TraceRows::kUnit) return words[1];
  const size_t after = name.find(" after ");
  return name.substr(0, after);
}

// Ascending, whatever the worker sent.
Interval IntervalOf(const v1::Span& span) {
  const uint64_t begin = span.begin(), end = begin + span.nanoseconds();
  return {begin, std::max(begin, end)};
}

// Merges overlapping intervals; ascending.
std::vector<Interval> Union(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> merged;
  for (const Interval& i : intervals) {
    if (!merged.empty() && i.first <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, i.second);
    } else {
      merged.push_back(i);
    }
  }
  return merged;
}

double Milliseconds(const std::vector<Interval>& merged) {
  double sum = 0;
  for (const Interval& i : merged) sum += static_cast<double>(i.second - i.first);
  return sum / 1e6;
}

// Both lists are merged already.
std::vector<Interval> Common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> common;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint64_t begin = std::max(a[i].first, b[j].first), end = std::min(a[i].second, b[j].second);
    if (begin < end) common.emplace_back(begin, end);
    (a[i].second < b[j].second ? i : j)++;
  }
  return common;
}

// What is in `a` and not in `b`; both are merged already.
std::vector<Interval> Without(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> rest;
  auto cut = b.begin();
  for (auto [begin, end] : a) {
    while (cut != b.end() && cut->second <= begin) ++cut;
    for (auto inside = cut; inside != b.end() && inside->first < end; ++inside) {
      if (begin < inside->first) rest.emplace_back(begin, inside->first);
      begin = std::max(begin, inside->second);
    }
    if (begin < end) rest.emplace_back(begin, end);
  }
  return rest;
}

// Nanoseconds of `merged` within `all`.
uint64_t Within(const Interval& all, const std::vector<Interval>& merged) {
  uint64_t sum = 0;
  auto at = std::upper_bound(merged.begin(), merged.end(), all.first,
                             [](uint64_t begin, const Interval& i) { return begin < i.second; });
  for (; at != merged.end() && at->first < all.second; ++at) {
    sum += std::min(all.second, at->second) - std::max(all.first, at->first);
  }
  return sum;
}

nlohmann::ordered_json Metadata(const char* what, uint32_t rank, int lane, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

void AddRank(const v1::RankTrace& rank, absl::Time origin, nlohmann::ordered_json& events) {
  events.push_back(Metadata("process_name", rank.rank(), 0, RankLabel(rank)));
  events.push_back(Metadata("thread_name", rank.rank(), 0, "steps"));
  std::map<v1::Lane, bool> named;
  for (const v1::StepTrace& step : rank.steps()) {
    const double begin = absl::ToDoubleMicroseconds(FromProto(step.begin()) - origin);
    events.push_back({{"name", absl::StrCat("step ", step.step())},
                      {"ph", "X"},
                      {"pid", rank.rank()},
                      {"tid", 0},
                      {"ts", begin},
                      {"dur", static_cast<double>(step.nanoseconds()) / 1e3}});
    for (const v1::Span& span : step.spans()) {
      if (!std::exchange(named[span.lane()], true)) {
        events.push_back(Metadata("thread_name", rank.rank(), span.lane(), LaneName(span.lane())));
      }
      events.push_back({{"name", NameOf(step, span)},
                        {"cat", LaneName(span.lane())},
                        {"ph", "X"},
                        {"pid", rank.rank()},
                        {"tid", static_cast<int>(span.lane())},
                        {"ts", begin + static_cast<double>(span.begin()) / 1e3},
                        {"dur", static_cast<double>(span.nanoseconds()) / 1e3},
                        {"args", {{"step", step.step()}}}});
    }
  }
}

}  // namespace

// A coordinator of an older build sends no name.
std::string RankLabel(const v1::RankTrace& rank) {
  return absl::StrCat(rank.name().empty() ? absl::StrCat("rank ", rank.rank()) : rank.name(), " on ", rank.node());
}

nlohmann::ordered_json ChromeTrace(const std::vector<v1::RankTrace>& ranks) {
  absl::Time origin = absl::InfiniteFuture();
  for (const v1::RankTrace& rank : ranks) {
    for (const v1::StepTrace& step : rank.steps()) origin = std::min(origin, FromProto(step.begin()));
  }
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (const v1::RankTrace& rank : ranks) AddRank(rank, origin, events);
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

StepProfile Profile(const v1::RankTrace& rank, TraceRows by) {
  StepProfile profile{.first_step = rank.steps(0).step(), .last_step = rank.steps().rbegin()->step()};
  const double steps = rank.steps_size();
  std::map<std::string, std::vector<double>> rows;
  double covered = 0;
  for (const v1::StepTrace& step : rank.steps()) {
    std::vector<Interval> own, busy, collectives, waits;
    for (const v1::Span& span : step.spans()) {
      if (span.lane() == v1::LANE_HOST || span.lane() == v1::LANE_COMPUTE) continue;
      const Interval interval = IntervalOf(span);
      collectives.push_back(interval);
      if (span.lane() != v1::LANE_EXCHANGE || NameOf(step, span) != kWait) continue;
      own.push_back(interval);
      waits.push_back(interval);
      rows[kExchange].push_back(static_cast<double>(span.nanoseconds()) / 1e6);
    }
    waits = Union(std::move(waits));
    for (const v1::Span& span : step.spans()) {
      if (span.lane() != v1::LANE_HOST && span.lane() != v1::LANE_COMPUTE) continue;
      const Interval interval = IntervalOf(span);
      const std::string name = NameOf(step, span);
      own.push_back(interval);
      if (name != kWait && span.lane() == v1::LANE_COMPUTE) busy.push_back(interval);
      const uint64_t waited = std::min<uint64_t>(span.nanoseconds(), Within(interval, waits));
      rows[RowOf(name, span.lane(), by)].push_back(static_cast<double>(span.nanoseconds() - waited) / 1e6);
    }
    profile.milliseconds += static_cast<double>(step.nanoseconds()) / 1e6 / steps;
    covered += Milliseconds(Union(own)) / steps;
    const std::vector<Interval> all = Union(collectives);
    profile.collectives += Milliseconds(all) / steps;
    profile.hidden += Milliseconds(Common(all, Without(Union(busy), waits))) / steps;
  }
  for (auto& [name, times] : rows) {
    std::sort(times.begin(), times.end());
    double sum = 0;
    for (const double t : times) sum += t;
    profile.rows.push_back({name, static_cast<double>(times.size()) / steps, sum / steps, times.front(),
                            times[times.size() / 2], times.back()});
  }
  std::sort(profile.rows.begin(), profile.rows.end(),
            [](const auto& a, const auto& b) { return a.milliseconds > b.milliseconds; });
  StepProfile::Row between{.name = kBetween};
  between.milliseconds = std::max(0.0, profile.milliseconds - covered);
  profile.rows.push_back(between);
  return profile;
}

Table ProfileTable(const StepProfile& profile) {
  Table table({{"WHAT"},
               {"A STEP", true},
               {"SHARE", true},
               {"TIMES", true, /*optional=*/1},
               {"LEAST", true, /*optional=*/2},
               {"MEDIAN", true, /*optional=*/1},
               {"MOST", true, /*optional=*/2}});
  const auto ms = [](double value) { return absl::StrFormat("%.3fms", value); };
  for (const StepProfile::Row& row : profile.rows) {
    const bool spans = row.spans > 0;
    table.Add({row.name, ms(row.milliseconds), absl::StrFormat("%.1f%%", 100 * row.milliseconds / profile.milliseconds),
               spans ? absl::StrFormat("%.4g", row.spans) : "", spans ? ms(row.least) : "", spans ? ms(row.median) : "",
               spans ? ms(row.most) : ""});
  }
  return table;
}

std::string ProfileHeadline(const v1::RankTrace& rank, const StepProfile& profile, const Screen& screen) {
  std::string line = absl::StrCat(OneLine(RankLabel(rank)), ", ",
                                  profile.first_step == profile.last_step
                                      ? absl::StrCat("step ", profile.first_step)
                                      : absl::StrCat("steps ", profile.first_step, " to ", profile.last_step),
                                  absl::StrFormat(": %.2f ms a step", profile.milliseconds));
  if (profile.collectives > 0) {
    absl::StrAppend(&line, absl::StrFormat(", collectives %.2f ms, %.0f%% of them overlapped with compute",
                                           profile.collectives, 100 * profile.hidden / profile.collectives));
  }
  return Wrapped(line + "\n", screen.width, /*hang=*/2);
}

nlohmann::ordered_json ProfileTree(const v1::RankTrace& rank, const StepProfile& profile) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const StepProfile::Row& row : profile.rows) {
    rows.push_back({{"what", row.name},
                    {"milliseconds", row.milliseconds},
                    {"times", row.spans},
                    {"least", row.least},
                    {"median", row.median},
                    {"most", row.most}});
  }
  return {{"rank", rank.rank()},
          {"node", rank.node()},
          {"stage", rank.role().stage()},
          {"replica", rank.role().replica()},
          {"shard_in_stage", rank.role().shard_in_stage()},
          {"context", rank.role().context()},
          {"tensor", rank.role().tensor()},
          {"first_step", profile.first_step},
          {"last_step", profile.last_step},
          {"milliseconds", profile.milliseconds},
          {"collectives_milliseconds", profile.collectives},
          {"hidden_milliseconds", profile.hidden},
          {"rows", std::move(rows)}};
}

}  // namespace muster::cli
