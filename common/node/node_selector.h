// Labels of nodes and jobs, and requirements that they must all satisfy, as kubectl's equality-based selectors. Pure.
//
//   rack=a         the node has this label (muster-worker --label rack=a)
//   rack!=a        it has not; a node without a label `rack` satisfies it, too
//   node!=gpu-7    `node` is the node's id, `hostname` its host's name, `device_model` the model of its first slot
#pragma once

#include <google/protobuf/repeated_field.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace muster {

// INVALID_ARGUMENT says what a requirement may be.
absl::Status CheckNodeRequirement(const std::string& requirement);
// INVALID_ARGUMENT says what a worker's labels may be, and how many.
absl::Status CheckNodeLabels(const google::protobuf::RepeatedPtrField<std::string>& labels);
// Likewise of jobs: their labels (spec.labels) and what selects jobs by them.
absl::Status CheckLabel(const std::string& label);
absl::Status CheckLabelRequirement(const std::string& requirement);
// "team" of "team=nlp".
std::string LabelKey(const std::string& label);

// Requirements of labels, parsed once to look at many jobs.
class LabelSelector {
 public:
  // REQUIRES: checked requirements.
  explicit LabelSelector(const google::protobuf::RepeatedPtrField<std::string>& requirements);
  bool Selects(const google::protobuf::RepeatedPtrField<std::string>& labels) const;

 private:
  struct Requirement {
    std::string label;  // "team=nlp"
    bool unequal;
  };
  std::vector<Requirement> requirements_;
};

// INVALID_ARGUMENT says what the key of a node's label may be.
absl::Status CheckNodeLabelKey(const std::string& key);
// The value of the node's label, or of what each node has: `node`, `hostname`, `device_model`. None: it has no such
// label.
std::optional<std::string> NodeLabel(const Node& node, const std::string& key);

// REQUIRES: checked requirements.
bool Selects(const google::protobuf::RepeatedPtrField<std::string>& selector, const Node& node);

}  // namespace muster
