#include "cli/output/scaling.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/output/format.h"
#include "common/bytes.h"

namespace muster::cli {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double SpeedUp(const Scaling& row, const Scaling& first) { return row.samples_per_second / first.samples_per_second; }
double Efficiency(const Scaling& row, const Scaling& first) { return SpeedUp(row, first) * first.ranks / row.ranks; }

}  // namespace

std::optional<Scaling> Summarise(const std::vector<v1::MetricPoint>& points, uint64_t warm_up, uint32_t ranks,
                                 uint32_t sequences) {
  Scaling row{.ranks = ranks, .sequences = sequences};
  std::vector<double> seconds, shares;
  double tokens = 0;  // a step
  for (const v1::MetricPoint& point : points) {
    row.peak_memory_bytes = std::max(row.peak_memory_bytes, point.peak_memory_bytes());
    if (point.step() <= warm_up || point.step_seconds() <= 0) continue;
    seconds.push_back(point.step_seconds());
    tokens = point.tokens_per_second() * point.step_seconds();
    if (point.has_communication_seconds()) shares.push_back(point.communication_seconds() / point.step_seconds());
  }
  if (seconds.empty()) return std::nullopt;
  row.steps = seconds.size();
  row.step_seconds = Median(seconds);
  row.least_seconds = *std::min_element(seconds.begin(), seconds.end());
  row.tokens_per_second = tokens / row.step_seconds;
  row.samples_per_second = sequences / row.step_seconds;
  if (!shares.empty()) row.communication = Median(shares);
  return row;
}

Scaling Predicted(const v1::PlanReply& plan, uint32_t ranks) {
  const v1::Simulated& times = plan.simulated();
  Scaling row{.ranks = ranks,
              .sequences = static_cast<uint32_t>(plan.samples_per_step()),
              .step_seconds = times.step_seconds(),
              .least_seconds = times.step_seconds(),
              .tokens_per_second = static_cast<double>(plan.tokens_per_step()) / times.step_seconds(),
              .samples_per_second = static_cast<double>(plan.samples_per_step()) / times.step_seconds(),
              .communication = times.exposed_seconds() / times.step_seconds(),
              .predicted_seconds = times.step_seconds()};
  for (const v1::RankPlan& rank : plan.ranks())
    row.peak_memory_bytes = std::max(row.peak_memory_bytes, rank.peak_bytes());
  return row;
}

Table ScalingTable(const std::vector<Scaling>& rows) {
  const bool strategies = absl::c_any_of(rows, [](const Scaling& row) { return !row.strategy.empty(); });
  const bool tokens = absl::c_any_of(rows, [](const Scaling& row) { return row.tokens_per_second > 0; });
  std::vector<Column> columns = {{"RANKS", true},
                                 {"SAMPLES/S", true, /*optional=*/tokens ? 1 : 0},
                                 {"TOKENS/S", true, /*optional=*/tokens ? 0 : 3},
                                 {"STEP", true},
                                 {"LEAST", true, /*optional=*/3},
                                 {"MEMORY", true, /*optional=*/2},
                                 {"COMMUNICATION", true, /*optional=*/2},
                                 {"SPEED-UP", true, /*optional=*/1},
                                 {"EFFICIENCY", true}};
  // Beside what was measured.
  const bool predicted =
      absl::c_any_of(rows, [](const Scaling& row) { return row.steps > 0 && row.predicted_seconds > 0; });
  if (predicted) columns.push_back({"PREDICTED", true});
  if (strategies) columns.insert(columns.begin(), {"STRATEGY"});
  Table table(columns);
  for (const Scaling& row : rows) {
    std::vector<Cell> cells = {absl::StrCat(row.ranks),
                               absl::StrFormat("%.1f", row.samples_per_second),
                               row.tokens_per_second > 0 ? Count(row.tokens_per_second) : "",
                               absl::StrFormat("%.1fms", row.step_seconds * 1e3),
                               absl::StrFormat("%.1fms", row.least_seconds * 1e3),
                               FormatBytes(row.peak_memory_bytes),
                               row.communication.has_value() ? absl::StrFormat("%.1f%%", *row.communication * 100) : "",
                               absl::StrFormat("%.2f", SpeedUp(row, rows[0])),
                               absl::StrFormat("%.0f%%", Efficiency(row, rows[0]) * 100)};
    if (predicted) {
      cells.emplace_back(row.predicted_seconds > 0 ? absl::StrFormat("%.1fms", row.predicted_seconds * 1e3) : "");
    }
    if (strategies) cells.insert(cells.begin(), row.strategy);
    table.Add(std::move(cells));
  }
  return table;
}

nlohmann::ordered_json ScalingTree(const std::vector<Scaling>& rows) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Scaling& row : rows) {
    nlohmann::ordered_json one = {{"ranks", row.ranks},
                                  {"sequences", row.sequences},
                                  {"steps", row.steps},
                                  {"step_seconds", row.step_seconds},
                                  {"least_step_seconds", row.least_seconds},
                                  {"tokens_per_second", row.tokens_per_second},
                                  {"samples_per_second", row.samples_per_second},
                                  {"peak_memory_bytes", row.peak_memory_bytes}};
    if (!row.strategy.empty()) one["strategy"] = row.strategy;
    if (row.communication.has_value()) one["communication_share"] = *row.communication;
    if (row.predicted_seconds > 0) one["predicted_step_seconds"] = row.predicted_seconds;
    one["speed_up"] = SpeedUp(row, rows[0]);
    one["efficiency"] = Efficiency(row, rows[0]);
    list.push_back(std::move(one));
  }
  return list;
}

}  // namespace muster::cli
