// Strong types for ids: protos carry scalars, which become these at the border.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster {

template <typename Tag>
class StringId {
 public:
  StringId() = default;
  explicit StringId(std::string value) : value_(std::move(value)) {}
  const std::string& value() const { return value_; }
  bool empty() const { return value_.empty(); }
  friend auto operator<=>(const StringId&, const StringId&) = default;

 private:
  std::string value_;
};

using JobId = StringId<struct JobIdTag>;
using NodeId = StringId<struct NodeIdTag>;
// Identifies one run of a worker daemon: random at each start, so that a restart differs from a retry.
using Incarnation = StringId<struct IncarnationTag>;

// One rank of one generation of a job.
struct RankId {
  JobId job;
  uint64_t generation = 0;
  uint32_t rank = 0;
  friend auto operator<=>(const RankId&, const RankId&) = default;
  // "gpt2-tiny-x7f2/3/0"
  std::string ToString() const { return absl::StrCat(job.value(), "/", generation, "/", rank); }
};

}  // namespace muster
