#include "cli/spec/schema.h"

#include <google/protobuf/descriptor.pb.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/spec/comments.h"
#include "cli/spec/reader.h"
#include "common/message/fields.h"
#include "proto/spec.pb.h"

namespace muster::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;
using google::protobuf::SourceLocation;
using nlohmann::ordered_json;

// The generated descriptors have no comments; these have.
const DescriptorPool& Commented() {
  static const DescriptorPool* const pool = [] {
    auto* const built = new DescriptorPool();
    google::protobuf::FileDescriptorSet files;
    files.ParseFromArray(kCommentedDescriptors, static_cast<int>(kCommentedDescriptorsSize));
    for (const auto& file : files.file()) built->BuildFile(file);
    return built;
  }();
  return *pool;
}

std::string OneLineOf(const SourceLocation& location) {
  const std::string& text = location.leading_comments.empty() ? location.trailing_comments : location.leading_comments;
  return absl::StrJoin(absl::StrSplit(text, absl::ByAnyChar(" \n\t"), absl::SkipEmpty()), " ");
}

class SchemaWriter {
 public:
  ordered_json Write(const Descriptor& root) {
    ordered_json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                           {"title", "Muster job"},
                           {"description", CommentOf(root)}};
    schema.update(MapOf(root));
    schema["properties"]["apiVersion"] = {{"const", kApiVersion}};
    schema["properties"]["kind"] = {{"const", kJobKind}};
    schema["required"] = {"apiVersion", "kind"};
    ordered_json definitions = ordered_json::object();
    // Writing one schema may add further ones.
    while (!waiting_.empty()) {
      const Descriptor* const type = waiting_.back();
      waiting_.pop_back();
      ordered_json definition = ordered_json::object();
      if (std::string comment = CommentOf(*type); !comment.empty()) definition["description"] = std::move(comment);
      definition.update(MapOf(*type));
      definitions[type->name()] = std::move(definition);
    }
    schema["$defs"] = std::move(definitions);
    return schema;
  }

 private:
  // Every key that the map may contain, and what a oneof's choice implies for its members' keys.
  struct Keys {
    std::map<std::string, ordered_json> schemas;
    std::vector<std::string> order;
    ordered_json conditions = ordered_json::array();
    std::vector<std::string> required;
  };

  ordered_json MapOf(const Descriptor& type) {
    Keys keys;
    Collect(type, keys);
    ordered_json properties = ordered_json::object();
    for (const std::string& key : keys.order) properties[key] = keys.schemas[key];
    ordered_json map = {{"type", "object"}, {"properties", properties}, {"additionalProperties", false}};
    if (!keys.required.empty()) map["required"] = keys.required;
    if (!keys.conditions.empty()) map["allOf"] = keys.conditions;
    return map;
  }

  void Collect(const Descriptor& type, Keys& keys) {
    for (int i = 0; i < type.field_count(); ++i) {
      if (const FieldDescriptor& field = *type.field(i); field.real_containing_oneof() == nullptr) {
        Add(KeyOf(field), ValueOf(field), keys);
      } else if (const OneofDescriptor& oneof = *field.containing_oneof(); oneof.field(0) == &field) {
        CollectOneof(oneof, keys);
      }
    }
  }

  static void Add(const std::string& key, ordered_json schema, Keys& keys) {
    const auto [place, added] = keys.schemas.emplace(key, schema);
    if (added) {
      keys.order.push_back(key);
    } else if (place->second != schema) {
      // Two members have this key; their conditions decide which one is meant.
      place->second = {{"anyOf", {place->second, std::move(schema)}}};
    }
  }

  void CollectOneof(const OneofDescriptor& oneof, Keys& keys) {
    const FieldDescriptor* const by_default = DefaultMember(oneof);
    ordered_json choice = {{"enum", MemberNames(oneof)}};
    if (by_default != nullptr) choice["default"] = KeyOf(*by_default);
    Add(oneof.name(), std::move(choice), keys);
    if (by_default == nullptr) keys.required.push_back(oneof.name());
    std::vector<Keys> members(oneof.field_count());
    std::set<std::string> all;
    for (int m = 0; m < oneof.field_count(); ++m) {
      Collect(*oneof.field(m)->message_type(), members[m]);
      for (const std::string& key : members[m].order) {
        Add(key, members[m].schemas[key], keys);
        all.insert(key);
      }
    }
    for (int m = 0; m < oneof.field_count(); ++m) {
      const FieldDescriptor& member = *oneof.field(m);
      ordered_json chosen = {{"properties", {{oneof.name(), {{"const", KeyOf(member)}}}}}};
      if (&member != by_default) chosen["required"] = {oneof.name()};
      ordered_json then = ordered_json::object();
      for (const std::string& key : all) {
        const auto own = members[m].schemas.find(key);
        if (own == members[m].schemas.end()) {
          then["properties"][key] = false;
        } else if (own->second != keys.schemas[key]) {
          then["properties"][key] = own->second;
        }
      }
      if (!members[m].required.empty()) then["required"] = members[m].required;
      if (!members[m].conditions.empty()) then["allOf"] = members[m].conditions;
      if (!then.empty()) keys.conditions.push_back({{"if", std::move(chosen)}, {"then", std::move(then)}});
    }
  }

  ordered_json ValueOf(const FieldDescriptor& field) {
    ordered_json value = ordered_json::object();
    if (std::string comment = CommentOf(field); !comment.empty()) value["description"] = std::move(comment);
    if (!field.is_repeated()) {
      value.update(ItemOf(field));
    } else {
      const ordered_json list = {{"type", "array"}, {"items", ItemOf(field)}};
      if (field.options().GetExtension(v1::pairs)) {
        const ordered_json values = {{"type", {"string", "number", "boolean"}}};
        value["anyOf"] = {list, {{"type", "object"}, {"additionalProperties", values}}};
      } else if (IsListOrAuto(field)) {
        value["anyOf"] = {{{"const", "auto"}}, list};
      } else {
        value.update(list);
      }
    }
    return value;
  }

  ordered_json ItemOf(const FieldDescriptor& field) {
    const auto whole = [](auto limits) -> ordered_json {
      return {{"type", "integer"}, {"minimum", limits.min()}, {"maximum", limits.max()}};
    };
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return whole(std::numeric_limits<int32_t>());
      case FieldDescriptor::CPPTYPE_INT64:
        return whole(std::numeric_limits<int64_t>());
      case FieldDescriptor::CPPTYPE_UINT32:
        return whole(std::numeric_limits<uint32_t>());
      case FieldDescriptor::CPPTYPE_UINT64:
        return whole(std::numeric_limits<uint64_t>());
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        return {{"type", "number"}};
      case FieldDescriptor::CPPTYPE_BOOL:
        return {{"type", "boolean"}};
      case FieldDescriptor::CPPTYPE_ENUM:
        return {{"enum", OfferedTexts(field)}};
      case FieldDescriptor::CPPTYPE_STRING:
        return {{"type", "string"}};
      case FieldDescriptor::CPPTYPE_MESSAGE:
        break;
    }
    const Descriptor* const type = field.message_type();
    if (named_.insert(type).second) waiting_.push_back(type);
    const ordered_json map = {{"$ref", absl::StrCat("#/$defs/", type->name())}};
    if (AutoField(*type) != nullptr) return {{"anyOf", {{{"const", "auto"}}, map}}};
    if (const OneofDescriptor* kinds = NamedByAWord(*type)) return {{"anyOf", {{{"enum", MemberNames(*kinds)}}, map}}};
    return map;
  }

  std::set<const Descriptor*> named_;
  std::vector<const Descriptor*> waiting_;
};

}  // namespace

std::string CommentOf(const FieldDescriptor& field) {
  const FieldDescriptor* const commented = Commented().FindFieldByName(field.full_name());
  SourceLocation location;
  return commented != nullptr && commented->GetSourceLocation(&location) ? OneLineOf(location) : "";
}

std::string CommentOf(const Descriptor& message) {
  const Descriptor* const commented = Commented().FindMessageTypeByName(message.full_name());
  SourceLocation location;
  return commented != nullptr && commented->GetSourceLocation(&location) ? OneLineOf(location) : "";
}

std::string CommentOf(const OneofDescriptor& oneof) {
  const Descriptor* const type = Commented().FindMessageTypeByName(oneof.containing_type()->full_name());
  const OneofDescriptor* const commented = type == nullptr ? nullptr : type->FindOneofByName(oneof.name());
  SourceLocation location;
  return commented != nullptr && commented->GetSourceLocation(&location) ? OneLineOf(location) : "";
}

std::string CommentOf(const EnumValueDescriptor& value) {
  // A value's name is in the scope around its enum.
  const EnumDescriptor* const type = Commented().FindEnumTypeByName(value.type()->full_name());
  const EnumValueDescriptor* const commented = type == nullptr ? nullptr : type->FindValueByNumber(value.number());
  SourceLocation location;
  return commented != nullptr && commented->GetSourceLocation(&location) ? OneLineOf(location) : "";
}

ordered_json SpecSchema() { return SchemaWriter().Write(*v1::JobSpec::descriptor()); }

}  // namespace muster::cli
