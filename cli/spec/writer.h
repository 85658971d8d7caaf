// Messages as YAML and JSON, by the same rules as the reader's.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "proto/spec.pb.h"

namespace muster::cli {

// A spec, or a message inside one: keys in the order of the .proto, oneofs as their own key next to the member's
// fields, absent fields omitted. ReadSpec(ToYaml(SpecTree(s))) == s for every s whose present messages have each oneof
// set, which holds for every s that the reader returns.
nlohmann::ordered_json SpecTree(const google::protobuf::Message& spec);

// Any other message: field names as in the .proto, enums as in specs, times as RFC 3339 in UTC, durations as "1.5s".
// Always writes scalars without presence (0, "", [] or null for an enum that is not set); a spec inside is a SpecTree.
nlohmann::ordered_json MessageTree(const google::protobuf::Message& message);

// Block style, two spaces, ends with a newline. Quotes a string that would read as something else if it were plain.
std::string ToYaml(const nlohmann::ordered_json& tree);

// A whole spec as YAML: its SpecTree without `template`, since what that says is in it.
std::string WriteSpec(v1::JobSpec spec);

}  // namespace muster::cli
