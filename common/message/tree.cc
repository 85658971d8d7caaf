#include "common/message/tree.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/format_double.h"
#include "common/message/fields.h"
#include "proto/spec.pb.h"

namespace muster {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

ordered_json AnyTree(const Message& message);

ordered_json EnumTree(const google::protobuf::EnumValueDescriptor& value) {
  return value.number() == 0 ? ordered_json(nullptr) : ordered_json(EnumText(value));
}

// 0.219 of the float 0.219, whose double is 0.21899999678134918.
double AsWritten(float value) {
  char text[32];
  const char* end = std::to_chars(text, text + sizeof(text), value).ptr;
  double shortest = value;
  std::from_chars(text, end, shortest);
  return shortest;
}

// One value: of a singular field (index -1) or an item of a repeated one.
ordered_json Value(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r.GetInt32(message, &field) : r.GetRepeatedInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r.GetInt64(message, &field) : r.GetRepeatedInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r.GetUInt32(message, &field) : r.GetRepeatedUInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r.GetUInt64(message, &field) : r.GetRepeatedUInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r.GetDouble(message, &field) : r.GetRepeatedDouble(message, &field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return AsWritten(one ? r.GetFloat(message, &field) : r.GetRepeatedFloat(message, &field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r.GetBool(message, &field) : r.GetRepeatedBool(message, &field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumTree(one ? *r.GetEnum(message, &field) : *r.GetRepeatedEnum(message, &field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r.GetString(message, &field) : r.GetRepeatedString(message, &field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return AnyTree(one ? r.GetMessage(message, &field) : r.GetRepeatedMessage(message, &field, index));
  }
  return nullptr;
}

ordered_json List(const Message& message, const FieldDescriptor& field) {
  ordered_json list = ordered_json::array();
  const int size = message.GetReflection()->FieldSize(message, &field);
  for (int i = 0; i < size; ++i) list.push_back(Value(message, field, i));
  return list;
}

bool InSpec(const Message& message) {
  const google::protobuf::FileDescriptor* file = message.GetDescriptor()->file();
  return file == v1::JobSpec::descriptor()->file() || file == v1::Unit::descriptor()->file();
}

// Whether it says `auto` and nothing else.
bool IsAuto(const Message& message) {
  const FieldDescriptor* field = AutoField(*message.GetDescriptor());
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  return field != nullptr && set.size() == 1 && set[0] == field && message.GetReflection()->GetBool(message, field);
}

// Adds the fields of a spec's message to `out`.
void AddFields(const Message& message, bool root, ordered_json& out) {
  const Descriptor& type = *message.GetDescriptor();
  const Reflection& r = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (const auto* oneof = field.real_containing_oneof()) {
      if (!r.HasField(message, &field)) continue;
      ordered_json member = ordered_json::object();
      AddFields(r.GetMessage(message, &field), false, member);
      // At the root of a spec its fields imply it: only `train` has a field `model:`.
      if (!root || DefaultMember(*oneof) != &field || member.empty()) out[oneof->name()] = KeyOf(field);
      for (auto& [key, value] : member.items()) out[key] = value;
    } else if (field.is_repeated()) {
      if (r.FieldSize(message, &field) > 0) out[KeyOf(field)] = List(message, field);
    } else if (r.HasField(message, &field)) {
      out[KeyOf(field)] = field.message_type() == nullptr         ? Value(message, field, -1)
                          : IsAuto(r.GetMessage(message, &field)) ? ordered_json("auto")
                                                                  : SpecTree(r.GetMessage(message, &field));
    }
  }
}

std::string TimeText(absl::Time time) { return absl::FormatTime("%Y-%m-%dT%H:%M:%E*SZ", time, absl::UTCTimeZone()); }

ordered_json AnyTree(const Message& message) {
  if (InSpec(message)) return SpecTree(message);
  if (const auto* time = dynamic_cast<const google::protobuf::Timestamp*>(&message)) {
    return TimeText(absl::FromUnixSeconds(time->seconds()) + absl::Nanoseconds(time->nanos()));
  }
  if (const auto* duration = dynamic_cast<const google::protobuf::Duration*>(&message)) {
    return absl::StrCat(
        FormatDouble(static_cast<double>(duration->seconds()) + static_cast<double>(duration->nanos()) * 1e-9), "s");
  }
  ordered_json out = ordered_json::object();
  const Descriptor& type = *message.GetDescriptor();
  const Reflection& r = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_repeated()) {
      out[field.name()] = List(message, field);
    } else if (!field.has_presence() || r.HasField(message, &field)) {
      out[field.name()] = Value(message, field, -1);
    }
  }
  return out;
}

}  // namespace

ordered_json SpecTree(const Message& spec) {
  ordered_json out = ordered_json::object();
  AddFields(spec, spec.GetDescriptor() == v1::JobSpec::descriptor(), out);
  return out;
}

ordered_json MessageTree(const Message& message) { return AnyTree(message); }

}  // namespace muster
