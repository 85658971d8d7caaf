// The keys of a message's fields in YAML: the rules of proto/options.proto, for any descriptor.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

// The field's name, or its json_name if the .proto states one.
std::string KeyOf(const google::protobuf::FieldDescriptor& field);

// "full_shard" of RESHARD_FULL_SHARD: lower case, without the prefix that the enum's zero value shows.
std::string EnumText(const google::protobuf::EnumValueDescriptor& value);
// The texts of all values but zero, which means "not set".
std::vector<std::string> EnumTexts(const google::protobuf::EnumDescriptor& type);
// Those that messages about this field offer: without values that no job may have there.
std::vector<std::string> OfferedTexts(const google::protobuf::FieldDescriptor& field);
// Null: no such value, or the zero value.
const google::protobuf::EnumValueDescriptor* EnumValue(const google::protobuf::EnumDescriptor& type,
                                                       absl::string_view text);

// The field `auto: true` of a type that may be written as the word `auto` in place of a map; null: it may not.
const google::protobuf::FieldDescriptor* AutoField(const google::protobuf::Descriptor& type);
// Whether the word `auto` may stand in place of this list, for leaving it out.
bool IsListOrAuto(const google::protobuf::FieldDescriptor& field);
// The oneof of which a member's name may stand for the whole map, as in `strategy: ddp`: that of a type which has one
// with a default member. Null: the type has none.
const google::protobuf::OneofDescriptor* NamedByAWord(const google::protobuf::Descriptor& type);

// The default member, for a map without the oneof's key; null: the key is required.
const google::protobuf::FieldDescriptor* DefaultMember(const google::protobuf::OneofDescriptor& oneof);
std::vector<std::string> MemberNames(const google::protobuf::OneofDescriptor& oneof);
const google::protobuf::FieldDescriptor* Member(const google::protobuf::OneofDescriptor& oneof, absl::string_view name);

// Every key that a map of this type may contain, including those of every member of its oneofs.
std::vector<std::string> AllKeys(const google::protobuf::Descriptor& type);

// A path below a map, and the words that its value may be: of an enum, of a bool, or in place of a map or a list.
struct PathAndWords {
  std::string path;
  std::vector<std::string> words;  // empty: any text or number
};
// What may stand for a whole map of this type; empty: only a map.
std::vector<std::string> WordsFor(const google::protobuf::Descriptor& type);

// Every path below a map of this type that takes a value ("optimizer.lr", "strategy"), each once.
std::vector<PathAndWords> AllPaths(const google::protobuf::Descriptor& type);

// Every path below a map of this type whose last part is `key` ("optimizer.lr" for "lr").
std::vector<std::string> PathsEndingIn(const google::protobuf::Descriptor& type, absl::string_view key);

}  // namespace muster
