// On which nodes a job may run: requirements that a node's labels must all satisfy, as kubectl's equality-based
// selectors. Pure.
//
//   rack=a         the node has this label (muster-worker --label rack=a)
//   rack!=a        it has not; a node without a label `rack` satisfies it, too
//   node!=gpu-7    `node` is the node's id, `hostname` its host's name, `device_model` the model of its first slot
#pragma once

#include <google/protobuf/repeated_field.h>

#include <string>

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace muster {

// INVALID_ARGUMENT says what a requirement may be.
absl::Status CheckNodeRequirement(const std::string& requirement);
// INVALID_ARGUMENT says what a worker's labels may be, and how many.
absl::Status CheckNodeLabels(const google::protobuf::RepeatedPtrField<std::string>& labels);

// REQUIRES: checked requirements.
bool Selects(const google::protobuf::RepeatedPtrField<std::string>& selector, const Node& node);

}  // namespace muster
