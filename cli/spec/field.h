// One scalar of a spec: from a node to a field of its protobuf type.
#pragma once

#include <google/protobuf/message.h>

#include <optional>
#include <string>
#include <vector>

#include "cli/spec/tree.h"

namespace muster::cli {

struct FieldProblem {
  std::string message;
  std::string suggestion;
};

// Sets `field` of `owner`, or adds to it if it is repeated. Returns nothing on success. Not for fields of message type.
std::optional<FieldProblem> SetScalar(const Node& node, const google::protobuf::FieldDescriptor& field,
                                      google::protobuf::Message& owner);

// "fp32, bf16 or fp16"
std::string ListWords(const std::vector<std::string>& words);

}  // namespace muster::cli
