// What was decided, without the wall clock's times.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/simulate/hash.h"
#include "coordinator/simulate/judge.h"

namespace muster::simulate {
namespace {

std::unique_ptr<google::protobuf::Message> RowOf(const std::string& key) {
  if (absl::StartsWith(key, "job/")) return std::make_unique<Job>();
  if (absl::StartsWith(key, "generation/")) return std::make_unique<Generation>();
  if (absl::StartsWith(key, "node/")) return std::make_unique<Node>();
  if (absl::StartsWith(key, "event/")) return std::make_unique<StateEvent>();
  return nullptr;
}

void ClearTimes(google::protobuf::Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (field->message_type()->full_name() == "google.protobuf.Timestamp") {
      reflection.ClearField(&message, field);
    } else if (!field->is_repeated()) {
      ClearTimes(*reflection.MutableMessage(&message, field));
    } else {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        ClearTimes(*reflection.MutableRepeatedMessage(&message, field, i));
      }
    }
  }
}

}  // namespace

void Judge::AddDecision(const store::Change& change) {
  std::string value = change.value.value_or("");
  const std::unique_ptr<google::protobuf::Message> row = RowOf(change.key);
  if (change.value.has_value() && row != nullptr && row->ParseFromString(value)) {
    ClearTimes(*row);
    value = row->SerializeAsString();
  }
  AddToHash(absl::StrCat(clock_->Read().steady.nanoseconds(), " ", change.key, " "), *decisions_);
  AddToHash(value, *decisions_);
}

}  // namespace muster::simulate
