// Times by kind of fault, as a table.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster::faults {

class Figures {
 public:
  void Add(const std::string& kind, const std::string& what, absl::Duration time) {
    times_[{kind, what}].push_back(time);
  }
  // Count, median, 99th percentile and maximum of each, in seconds.
  void Print() const;

 private:
  std::map<std::pair<std::string, std::string>, std::vector<absl::Duration>> times_;
};

}  // namespace muster::faults
