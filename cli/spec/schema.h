// JSON Schema (draft 2020-12) of what the reader accepts, by protobuf reflection; descriptions are the comments of the
// .proto. Editors complete and check job files with it. Pure.
#pragma once

#include <google/protobuf/descriptor.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace muster::cli {

// The comment beside or above a field, message, oneof or enum value of the proto files of a job spec, on one line;
// empty: none.
std::string CommentOf(const google::protobuf::FieldDescriptor& field);
std::string CommentOf(const google::protobuf::Descriptor& message);
std::string CommentOf(const google::protobuf::OneofDescriptor& oneof);
std::string CommentOf(const google::protobuf::EnumValueDescriptor& value);

// The schema of a job file.
nlohmann::ordered_json SpecSchema();

}  // namespace muster::cli
