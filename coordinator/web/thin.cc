#include "coordinator/web/thin.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/proto_time.h"

namespace muster::web {
namespace {

std::vector<std::pair<std::string, double>> ValuesOf(const MetricPoint& point) {
  std::vector<std::pair<std::string, double>> values;
  const auto add = [&](const char* name, bool has, double value) {
    if (has) values.emplace_back(name, value);
  };
  add("loss", point.has_loss(), point.loss());
  add("gradient_norm", point.has_gradient_norm(), point.gradient_norm());
  add("learning_rate", point.has_learning_rate(), point.learning_rate());
  add("tokens_per_second", point.has_tokens_per_second(), point.tokens_per_second());
  add("samples_per_second", point.has_samples_per_second(), point.samples_per_second());
  add("model_flops_per_second", point.has_model_flops_per_second(), point.model_flops_per_second());
  add("step_seconds", point.has_step_seconds(), point.step_seconds());
  add("communication_seconds", point.has_communication_seconds(), point.communication_seconds());
  add("peak_memory_bytes", point.has_peak_memory_bytes(), static_cast<double>(point.peak_memory_bytes()));
  add("validation_loss", point.has_validation_loss(), point.validation_loss());
  add("skipped_steps", point.has_skipped_steps(), static_cast<double>(point.skipped_steps()));
  add("loss_scale", point.has_loss_scale(), point.loss_scale());
  for (const NamedMetric& metric : point.validation()) {
    values.emplace_back(absl::StrCat("validation.", metric.name()), metric.value());
  }
  for (const NamedMetric& metric : point.reported()) {
    values.emplace_back(absl::StrCat("reported.", metric.name()), metric.value());
  }
  return values;
}

// NaN is kept as the last value, and beside numbers it is neither lowest nor highest.
void Merge(SeriesThinner::Value& into, const SeriesThinner::Value& later) {
  into.min = std::fmin(into.min, later.min);
  into.max = std::fmax(into.max, later.max);
  into.last = later.last;
}

std::string Number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return absl::StrFormat("%.17g", value);
}

// A name inside quotes: [A-Za-z0-9_./-] by its definition, all else is dropped.
std::string Quoted(const std::string& name) {
  std::string out;
  for (const char c : name) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/' || c == '-') out += c;
  }
  return absl::StrCat("\"", out, "\"");
}

}  // namespace

void SeriesThinner::Add(const MetricPoint& point) {
  if (point.step() == 0) return;
  ++points_;
  const auto [at, is_new] = bins_.try_emplace((point.step() - 1) / width_);
  Bin& bin = at->second;
  bin.first_step = is_new ? point.step() : std::min(bin.first_step, point.step());
  bin.last_step = std::max(bin.last_step, point.step());
  bin.last_seconds = absl::ToDoubleSeconds(FromProto(point.time()) - absl::UnixEpoch());
  for (const auto& [name, number] : ValuesOf(point)) {
    if (names_.size() < kMostSeries) names_.insert(name);
    if (!names_.contains(name)) continue;
    const Value value{number, number, number};
    const auto [entry, first] = bin.values.try_emplace(name, value);
    if (first) continue;
    if (width_ == 1) {
      entry->second = value;
    } else {
      Merge(entry->second, value);
    }
  }
  while (bins_.size() > most_) Double();
}

void SeriesThinner::Double() {
  std::map<uint64_t, Bin> merged;
  for (auto& [index, bin] : bins_) {
    const auto [at, is_new] = merged.try_emplace(index / 2, std::move(bin));
    if (is_new) continue;
    Bin& into = at->second;
    into.last_step = bin.last_step;
    into.last_seconds = bin.last_seconds;
    for (const auto& [name, value] : bin.values) {
      const auto [entry, first] = into.values.try_emplace(name, value);
      if (!first) Merge(entry->second, value);
    }
  }
  bins_ = std::move(merged);
  width_ *= 2;
}

std::vector<SeriesThinner::Bin> SeriesThinner::bins() const {
  std::vector<Bin> bins;
  for (const auto& [index, bin] : bins_) bins.push_back(bin);
  return bins;
}

std::string SeriesThinner::Json() const {
  std::string steps, times;
  for (const auto& [index, bin] : bins_) {
    const char* comma = steps.empty() ? "" : ",";
    absl::StrAppend(&steps, comma, bin.last_step);
    absl::StrAppend(&times, comma, absl::StrFormat("%.6f", bin.last_seconds));
  }
  std::string series;
  for (const std::string& name : names_) {
    std::string low, high, last;
    for (const auto& [index, bin] : bins_) {
      const char* comma = low.empty() ? "" : ",";
      const auto found = bin.values.find(name);
      const bool has = found != bin.values.end();
      absl::StrAppend(&low, comma, has ? Number(found->second.min) : "null");
      absl::StrAppend(&high, comma, has ? Number(found->second.max) : "null");
      absl::StrAppend(&last, comma, has ? Number(found->second.last) : "null");
    }
    absl::StrAppend(&series, series.empty() ? "" : ",", Quoted(name), ":{\"min\":[", low, "],\"max\":[", high,
                    "],\"last\":[", last, "]}");
  }
  return absl::StrCat("{\"width\":", width_, ",\"points\":", points_, ",\"steps\":[", steps, "],\"times\":[", times,
                      "],\"series\":{", series, "}}");
}

}  // namespace muster::web
