#include "coordinator/spec/unknown_field.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::spec {
namespace {

std::string Find(const google::protobuf::Message& message, const std::string& path) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (const auto& unknown = reflection.GetUnknownFields(message); !unknown.empty()) {
    return absl::StrCat("number ", unknown.field(0).number(), path.empty() ? "" : " in ", path);
  }
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string below = absl::StrCat(path, path.empty() ? "" : ".", std::string(field->name()));
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const std::string found = Find(field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                          : reflection.GetMessage(message, field),
                                     below);
      if (!found.empty()) return found;
    }
  }
  return "";
}

}  // namespace

std::string UnknownField(const google::protobuf::Message& message) { return Find(message, ""); }

}  // namespace muster::spec
