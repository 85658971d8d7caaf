// Thins series of metrics for a chart while they stream by: neighboring steps share a bin that keeps the lowest, the
// highest and the last value, so a spike stays visible. Pure; memory is bounded by the number of bins.
//
//   SeriesThinner thin(500);
//   thin.Add(point);          // in order of arrival
//   std::string json = thin.Json();
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace muster::web {

class SeriesThinner {
 public:
  struct Value {
    double min = 0, max = 0, last = 0;
    bool operator==(const Value&) const = default;
  };
  struct Bin {
    uint64_t first_step = 0, last_step = 0;
    double last_seconds = 0;              // time of the newest point, since 1970
    std::map<std::string, Value> values;  // by the series' name: "loss", "reported.reward"
  };

  // At most `most` bins, at least half as many once there were more points. REQUIRES: most >= 2.
  explicit SeriesThinner(size_t most) : most_(most) {}

  // A step that comes again, since a restart computes it again, counts with its last value where a bin is a single
  // step.
  void Add(const MetricPoint& point);

  uint64_t width() const { return width_; }  // steps of a bin
  // By step.
  std::vector<Bin> bins() const;

  // {"width":1,"points":30,"steps":[...],"times":[...],"series":{"loss":{"min":[...],"max":[...],"last":[...]}}}; null
  // where a bin has no value; what is not finite is a string, as in protobuf's JSON: "NaN", "Infinity".
  std::string Json() const;

 private:
  void Double();

  static constexpr size_t kMostSeries = 256;  // a script may report under a new name in each step

  const size_t most_;
  std::set<std::string> names_;
  uint64_t width_ = 1;
  uint64_t points_ = 0;
  std::map<uint64_t, Bin> bins_;  // by (step - 1) / width_
};

}  // namespace muster::web
