#include "worker/exec/report_line.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace muster::exec {
namespace {

using nlohmann::json;

std::optional<double> NumberOf(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

absl::StatusOr<uint64_t> StepOf(const json& object) {
  const auto found = object.find("step");
  if (found == object.end() || !found->is_number()) return absl::InvalidArgumentError("it has no number \"step\"");
  const double step = found->get<double>();
  if (!(step >= 0) || step > static_cast<double>(kMaxReportedStep) || step != std::floor(step)) {
    return absl::InvalidArgumentError(absl::StrCat("\"step\" must be a whole number from 0 to ", kMaxReportedStep));
  }
  return static_cast<uint64_t>(step);
}

bool IsMetricName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxMetricName && std::all_of(name.begin(), name.end(), IsMetricCharacter);
}

// False: no field of MetricPoint has this name.
bool SetKnown(const std::string& name, double value, MetricPoint& point) {
  if (name == "loss") {
    point.set_loss(value);
  } else if (name == "lr" || name == "learning_rate") {
    point.set_learning_rate(value);
  } else if (name == "grad_norm" || name == "gradient_norm") {
    point.set_gradient_norm(value);
  } else if (name == "val_loss" || name == "validation_loss") {
    point.set_validation_loss(value);
  } else if (name == "step_seconds") {
    point.set_step_seconds(value);
  } else if (name == "tokens_per_second") {
    point.set_tokens_per_second(value);
  } else if (name == "samples_per_second") {
    point.set_samples_per_second(value);
  } else {
    return false;
  }
  return true;
}

absl::StatusOr<Report> CheckpointOf(const json& name, uint64_t step) {
  if (!name.is_string() || name.get_ref<const std::string&>().empty() ||
      name.get_ref<const std::string&>().size() > kMaxCheckpointName) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"checkpoint\" must be a path of 1 to ", kMaxCheckpointName, " bytes"));
  }
  CheckpointWritten written;
  written.set_step(step);
  written.set_directory(name.get<std::string>());
  return written;
}

}  // namespace

bool IsMetricCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/' || c == '-';
}

bool SetMetric(const std::string& name, double value, MetricPoint& point) {
  if (SetKnown(name, value, point)) return true;
  for (NamedMetric& metric : *point.mutable_reported()) {
    if (metric.name() == name) return metric.set_value(value), true;
  }
  if (point.reported_size() == kMaxReportedMetrics) return false;
  NamedMetric& metric = *point.add_reported();
  metric.set_name(name);
  metric.set_value(value);
  return true;
}

absl::StatusOr<Report> ParseReport(absl::string_view line) {
  if (line.size() > kMaxReportLine) {
    return absl::InvalidArgumentError(absl::StrCat("it has more than ", kMaxReportLine, " bytes"));
  }
  const json object = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  const absl::StatusOr<uint64_t> step = StepOf(object);
  if (!step.ok()) return step.status();
  if (const auto checkpoint = object.find("checkpoint"); checkpoint != object.end()) {
    return CheckpointOf(*checkpoint, *step);
  }
  MetricPoint point;
  point.set_step(*step);
  for (const auto& [name, value] : object.items()) {
    const std::optional<double> number = NumberOf(value);
    if (name == "step" || !number.has_value() || !IsMetricName(name)) continue;
    if (!SetMetric(name, *number, point)) {
      return absl::InvalidArgumentError(absl::StrCat("it has more than ", kMaxReportedMetrics, " metrics"));
    }
  }
  return point;
}

}  // namespace muster::exec
