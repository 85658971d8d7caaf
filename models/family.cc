#include "models/family.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "models/custom/custom.h"
#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "models/resnet/resnet.h"

namespace muster::models {
namespace {

using google::protobuf::FieldDescriptor;

// The message of the family, which is set.
const google::protobuf::Message& NumbersOf(const Model& model) {
  const FieldDescriptor* field =
      Model::GetReflection()->GetOneofFieldDescriptor(model, Model::descriptor()->FindOneofByName("family"));
  return Model::GetReflection()->GetMessage(model, field);
}

std::string ValueOf(const google::protobuf::Message& numbers, const FieldDescriptor& field) {
  const google::protobuf::Reflection& reflection = *numbers.GetReflection();
  if (field.is_repeated()) {
    std::vector<std::string> all;
    for (int i = 0; i < reflection.FieldSize(numbers, &field); ++i) {
      std::string value;
      google::protobuf::TextFormat::PrintFieldValueToString(numbers, &field, i, &value);
      all.push_back(value);
    }
    return absl::StrCat("[", absl::StrJoin(all, ", "), "]");
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(reflection.GetUInt32(numbers, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return absl::StrCat(reflection.GetDouble(numbers, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(numbers, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.GetEnum(numbers, &field)->name();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return absl::StrCat("{", reflection.GetMessage(numbers, &field).ShortDebugString(), "}");
    default:
      return "?";
  }
}

}  // namespace

std::string ModelFamily::Differences(const Model& theirs, const Model& ours) const {
  const google::protobuf::Message &a = NumbersOf(theirs), &b = NumbersOf(ours);
  std::vector<std::string> differing;
  for (int i = 0; i < a.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *a.GetDescriptor()->field(i);
    const std::string key = ConfigKey(field.name());
    if (key.empty() || ValueOf(a, field) == ValueOf(b, field)) continue;
    differing.push_back(
        absl::StrCat(key, " ", ValueOf(a, field), ", but model.", field.name(), " is ", ValueOf(b, field)));
  }
  return absl::StrJoin(differing, "; ");
}

absl::Status ModelFamily::CheckTensorRanks(const Model&, const TensorShare& share) const {
  if (share.whole()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("models of family ", name(), " compute each unit on one rank; use more shards or stages"));
}

absl::Status ModelFamily::CheckContextRanks(const Model&, const TensorShare& share) const {
  if (share.context_ranks == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("models of family ", name(), " do not divide sequences; use more shards or stages"));
}

absl::Status ModelFamily::CheckCompute(const Inventory&, Dtype) const { return absl::OkStatus(); }

const std::vector<const ModelFamily*>& Families() {
  static const auto& families =
      *new std::vector<const ModelFamily*>{&Gpt2Family(), &LlamaFamily(), &ResnetFamily(), &CustomFamily()};
  return families;
}

const ModelFamily* FamilyOf(const Model& model) {
  const FieldDescriptor* field =
      Model::GetReflection()->GetOneofFieldDescriptor(model, Model::descriptor()->FindOneofByName("family"));
  for (const ModelFamily* family : Families()) {
    if (field != nullptr && family->name() == field->name()) return family;
  }
  return nullptr;
}

const ModelFamily* FamilyOfConfig(const nlohmann::json& config) {
  for (const ModelFamily* family : Families()) {
    if (family->Reads(config)) return family;
  }
  return nullptr;
}

std::string FamilyNames() {
  return absl::StrJoin(Families(), ", ",
                       [](std::string* out, const ModelFamily* family) { out->append(family->name()); });
}

absl::Status CheckSame(const Model& theirs, const Model& ours) {
  const ModelFamily *their_family = FamilyOf(theirs), *family = FamilyOf(ours);
  if (family == nullptr || their_family != family) {
    return absl::FailedPreconditionError(
        absl::StrCat("family ", their_family == nullptr ? "unknown" : their_family->name(), ", but model.family is ",
                     family == nullptr ? "unknown" : family->name()));
  }
  const std::string differing = family->Differences(theirs, ours);
  return differing.empty() ? absl::OkStatus() : absl::FailedPreconditionError(differing);
}

bool HasSize(const Model& model) {
  if (FamilyOf(model) == nullptr) return false;
  const google::protobuf::Message& numbers = NumbersOf(model);
  const FieldDescriptor* size = numbers.GetDescriptor()->FindFieldByName("size");
  return size != nullptr && numbers.GetReflection()->HasField(numbers, size);
}

Model WithoutSize(const Model& resolved) {
  Model model = resolved;
  if (!HasSize(model)) return model;
  const FieldDescriptor* field =
      Model::GetReflection()->GetOneofFieldDescriptor(model, Model::descriptor()->FindOneofByName("family"));
  google::protobuf::Message& numbers = *Model::GetReflection()->MutableMessage(&model, field);
  numbers.GetReflection()->ClearField(&numbers, numbers.GetDescriptor()->FindFieldByName("size"));
  return model;
}

Model Overlaid(const Model& numbers, const Model& given) {
  Model model = numbers;
  const FieldDescriptor* family =
      Model::GetReflection()->GetOneofFieldDescriptor(model, Model::descriptor()->FindOneofByName("family"));
  if (family != nullptr && Model::GetReflection()->HasField(given, family)) {
    // Merging would append to lists.
    google::protobuf::Message& under = *Model::GetReflection()->MutableMessage(&model, family);
    std::vector<const FieldDescriptor*> fields;
    NumbersOf(given).GetReflection()->ListFields(NumbersOf(given), &fields);
    for (const FieldDescriptor* field : fields) under.GetReflection()->ClearField(&under, field);
  }
  model.MergeFrom(given);
  return model;
}

std::string Describe(const Model& model) {
  const ModelFamily* family = FamilyOf(model);
  return family == nullptr ? "-" : family->Describe(model);
}

}  // namespace muster::models
