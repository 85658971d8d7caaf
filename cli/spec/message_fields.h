// How a message's fields are called in YAML: the rules of proto/options.proto, for any descriptor.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::cli {

// The field's name, or the json_name that the .proto states.
std::string KeyOf(const google::protobuf::FieldDescriptor& field);

// "full_shard" of RESHARD_FULL_SHARD: lower case, without the prefix that the enum's zero value shows.
std::string EnumText(const google::protobuf::EnumValueDescriptor& value);
// Of every value but zero, which means "not set".
std::vector<std::string> EnumTexts(const google::protobuf::EnumDescriptor& type);
// Null: no such value, or the zero value.
const google::protobuf::EnumValueDescriptor* EnumValue(const google::protobuf::EnumDescriptor& type,
                                                       absl::string_view text);

// The member that is taken when the oneof's key is left out; null: the key is required.
const google::protobuf::FieldDescriptor* DefaultMember(const google::protobuf::OneofDescriptor& oneof);
std::vector<std::string> MemberNames(const google::protobuf::OneofDescriptor& oneof);
const google::protobuf::FieldDescriptor* Member(const google::protobuf::OneofDescriptor& oneof, absl::string_view name);

// Every key that can stand in a map of this type, those of each member of its oneofs included.
std::vector<std::string> AllKeys(const google::protobuf::Descriptor& type);

// Every path whose last part is `key`, in a map of this type ("optimizer.lr" for "lr").
std::vector<std::string> PathsEndingIn(const google::protobuf::Descriptor& type, absl::string_view key);

}  // namespace muster::cli
