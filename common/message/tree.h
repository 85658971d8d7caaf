// Messages as trees of JSON: the rules of proto/options.proto, by which job files are read, too.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>

namespace muster {

// A spec, or a message inside one: keys in the order of the .proto, oneofs as their own key next to the member's
// fields, absent fields omitted. The CLI reads the YAML of SpecTree(s) as s, for every s whose present messages have
// each oneof set, which holds for every s that the reader returns.
nlohmann::ordered_json SpecTree(const google::protobuf::Message& spec);

// Any other message: field names as in the .proto, enums as in specs, times as RFC 3339 in UTC, durations as "1.5s".
// Always writes scalars without presence (0, "", [] or null for an enum that is not set); a spec inside is a SpecTree.
nlohmann::ordered_json MessageTree(const google::protobuf::Message& message);

}  // namespace muster
