#include "common/metrics/exposition.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace muster {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

// 0.005, not 0.0050000000000000001: bounds are decimal literals.
std::string Bound(double value) { return absl::StrFormat("%g", value); }

}  // namespace

void Histogram::Observe(double value) {
  const size_t place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  const MutexLock lock(mutex_);
  ++counts_[place];
  sum_ += value;
}

Histogram::Values Histogram::Read() const {
  const MutexLock lock(mutex_);
  Values values;
  for (size_t i = 0; i < counts_.size(); ++i) {
    values.count += counts_[i];
    if (i < bounds_.size()) values.at_most.emplace_back(bounds_[i], values.count);
  }
  values.sum = sum_;
  return values;
}

void Exposition::Begin(const std::string& name, Kind kind, const std::string& help) {
  name_ = name;
  const char* const type = kind == Kind::kGauge ? "gauge" : kind == Kind::kCounter ? "counter" : "histogram";
  absl::StrAppend(&text_, "# HELP ", name, " ", absl::StrReplaceAll(help, {{"\\", "\\\\"}, {"\n", "\\n"}}), "\n# TYPE ",
                  name, " ", type, "\n");
}

void Exposition::Line(const std::string& name, const Labels& labels, double value) {
  absl::StrAppend(&text_, name);
  const char* separator = "{";
  for (const auto& [label, text] : labels) {
    absl::StrAppend(&text_, separator, label, "=\"",
                    absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
    separator = ",";
  }
  absl::StrAppend(&text_, labels.empty() ? " " : "} ", Number(value), "\n");
}

void Exposition::Add(const Labels& labels, double value) { Line(name_, labels, value); }

void Exposition::Add(const Histogram::Values& values) {
  for (const auto& [bound, count] : values.at_most) {
    Line(name_ + "_bucket", {{"le", Bound(bound)}}, static_cast<double>(count));
  }
  Line(name_ + "_bucket", {{"le", "+Inf"}}, static_cast<double>(values.count));
  Line(name_ + "_sum", {}, values.sum);
  Line(name_ + "_count", {}, static_cast<double>(values.count));
}

void Exposition::Gauge(const std::string& name, const std::string& help, double value) {
  Begin(name, Kind::kGauge, help);
  Add(value);
}

void Exposition::Counter(const std::string& name, const std::string& help, double value) {
  Begin(name, Kind::kCounter, help);
  Add(value);
}

std::string SeriesValue(const std::string& page, const std::string& series) {
  const size_t at = absl::StrCat("\n", page).find(absl::StrCat("\n", series, " "));
  if (at == std::string::npos) return "";
  const size_t value = at + series.size() + 1;
  return page.substr(value, page.find('\n', value) - value);
}

}  // namespace muster
