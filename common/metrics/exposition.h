// A daemon's metrics and their page for Prometheus (text format, version 0.0.4).
//
//   Exposition page;
//   page.Begin("muster_jobs", Kind::kGauge, "Jobs by state.");
//   page.Add({{"state", "queued"}}, 3);
//   return page.Take();
//
// Not prometheus-cpp (1.0.1 in Debian): it comes as shared libraries only, and release binaries need nothing but the C
// and C++ runtime. Its TextSerializer writes a newline in a help text as it is, which breaks the page.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace muster {

// The value of a series in a page, as text ("muster_jobs{state=\"queued\"}" gives "3"); empty: no such series.
std::string SeriesValue(const std::string& page, const std::string& series);

using Labels = std::vector<std::pair<std::string, std::string>>;

// A histogram: counts of values below each of a few bounds. Thread-safe.
class Histogram {
 public:
  // `bounds`: ascending.
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void Observe(double value);

  struct Values {
    std::vector<std::pair<double, uint64_t>> at_most;  // bound and how many up to it
    uint64_t count = 0;
    double sum = 0;
  };
  Values Read() const;

 private:
  const std::vector<double> bounds_;
  mutable Mutex mutex_;
  std::vector<uint64_t> counts_ ABSL_GUARDED_BY(mutex_);
  double sum_ ABSL_GUARDED_BY(mutex_) = 0;
};

enum class Kind { kGauge, kCounter, kHistogram };

// Not thread-safe.
class Exposition {
 public:
  // Starts a metric; Add adds its series. `name`: muster_..., base units, _total for counters.
  void Begin(const std::string& name, Kind kind, const std::string& help);
  void Add(const Labels& labels, double value);
  void Add(double value) { Add({}, value); }
  void Add(const Histogram::Values& values);

  // A metric with one value.
  void Gauge(const std::string& name, const std::string& help, double value);
  void Counter(const std::string& name, const std::string& help, double value);

  std::string Take() { return std::move(text_); }

 private:
  void Line(const std::string& name, const Labels& labels, double value);

  std::string name_;
  std::string text_;
};

}  // namespace muster
