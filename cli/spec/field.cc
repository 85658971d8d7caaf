#include "cli/spec/field.h"

#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/spec/scalar.h"
#include "cli/spec/source_text.h"
#include "common/flags/suggest.h"
#include "common/message/fields.h"

namespace muster::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

template <typename Set, typename Add, typename Value>
void Store(const FieldDescriptor& field, Message& owner, Set set, Add add, const Value& value) {
  const google::protobuf::Reflection& reflection = *owner.GetReflection();
  if (field.is_repeated()) {
    (reflection.*add)(&owner, &field, value);
  } else {
    (reflection.*set)(&owner, &field, value);
  }
}

FieldProblem WrongType(const char* expected, const Node& node, std::string suggestion = "") {
  return {absl::StrCat("expected ", expected, ", got ", Describe(node)), std::move(suggestion)};
}

bool Is(const Node& node, ScalarType type) {
  return node.kind == Node::Kind::kScalar && !node.quoted && CoreType(node.text) == type;
}

std::optional<FieldProblem> SetString(const Node& node, const FieldDescriptor& field, Message& owner) {
  if (node.kind != Node::Kind::kScalar) return WrongType("a string", node);
  if (!node.quoted && !node.from_flag && CoreType(node.text) != ScalarType::kString) {
    return WrongType("a string", node, absl::StrCat("\"", node.text, "\""));
  }
  // An optional string may be empty on purpose, which then is not the default.
  if (node.text.empty() && !field.has_presence()) {
    return FieldProblem{"must not be empty: leave the key out instead", ""};
  }
  if (node.text.find('\0') != std::string::npos) return FieldProblem{"contains a NUL character", ""};
  // yaml-cpp turns the escapes \_ and \N into single bytes.
  if (!IsUtf8(node.text)) return FieldProblem{"is not UTF-8: write the character itself, or \\u and its number", ""};
  Store(field, owner, &google::protobuf::Reflection::SetString, &google::protobuf::Reflection::AddString, node.text);
  return std::nullopt;
}

std::optional<FieldProblem> SetBool(const Node& node, const FieldDescriptor& field, Message& owner) {
  if (!Is(node, ScalarType::kBool)) {
    std::string suggestion;
    const std::string word = absl::AsciiStrToLower(node.text);
    for (const char* yes : {"yes", "y", "on", "1", "true"}) suggestion = word == yes ? "true" : suggestion;
    for (const char* no : {"no", "n", "off", "0", "false"}) suggestion = word == no ? "false" : suggestion;
    return WrongType("true or false", node, suggestion);
  }
  Store(field, owner, &google::protobuf::Reflection::SetBool, &google::protobuf::Reflection::AddBool,
        node.text[0] == 't' || node.text[0] == 'T');
  return std::nullopt;
}

std::optional<FieldProblem> SetDouble(const Node& node, const FieldDescriptor& field, Message& owner) {
  const bool number = Is(node, ScalarType::kInteger) || Is(node, ScalarType::kFloat);
  if (!number) {
    const bool hidden =
        node.quoted && (CoreType(node.text) == ScalarType::kInteger || CoreType(node.text) == ScalarType::kFloat);
    return WrongType("a number", node, hidden ? node.text : "");
  }
  const absl::StatusOr<double> value = ParseDouble(node.text);
  const bool single = field.cpp_type() == FieldDescriptor::CPPTYPE_FLOAT;
  if (!value.ok() && absl::IsInvalidArgument(value.status())) return WrongType("a finite number", node);
  if (!value.ok() || (single && std::fabs(*value) > std::numeric_limits<float>::max())) {
    return FieldProblem{absl::StrCat("is out of range, got ", Describe(node)), ""};
  }
  if (single) {
    Store(field, owner, &google::protobuf::Reflection::SetFloat, &google::protobuf::Reflection::AddFloat,
          static_cast<float>(*value));
  } else {
    Store(field, owner, &google::protobuf::Reflection::SetDouble, &google::protobuf::Reflection::AddDouble, *value);
  }
  return std::nullopt;
}

// The integer that 1e6, 100.0 or "8" stands for; empty if there is none.
std::string MeantInteger(const Node& node) {
  if (node.kind != Node::Kind::kScalar) return "";
  if (CoreType(node.text) == ScalarType::kInteger) return node.text;
  if (CoreType(node.text) != ScalarType::kFloat) return "";
  const absl::StatusOr<double> value = ParseDouble(node.text);
  if (!value.ok() || std::fabs(*value) >= 1e15 || *value != std::floor(*value)) return "";
  return absl::StrCat(static_cast<int64_t>(*value));
}

FieldProblem OutOfRange(const Node& node, const std::string& least, const std::string& most) {
  return {absl::StrCat("is out of range: from ", least, " to ", most, ", got ", Describe(node)), ""};
}

template <typename T, typename Set, typename Add>
std::optional<FieldProblem> SetInteger(const Node& node, const FieldDescriptor& field, Message& owner, Set set,
                                       Add add) {
  if (!Is(node, ScalarType::kInteger)) return WrongType("an integer", node, MeantInteger(node));
  if constexpr (std::numeric_limits<T>::is_signed) {
    const absl::StatusOr<int64_t> value = ParseSigned(node.text);
    if (!value.ok() || *value < std::numeric_limits<T>::min() || *value > std::numeric_limits<T>::max()) {
      return OutOfRange(node, absl::StrCat(std::numeric_limits<T>::min()), absl::StrCat(std::numeric_limits<T>::max()));
    }
    Store(field, owner, set, add, static_cast<T>(*value));
  } else {
    const absl::StatusOr<uint64_t> value = ParseUnsigned(node.text);
    if (!value.ok() && node.text[0] == '-') {
      return FieldProblem{absl::StrCat("must not be negative, got ", Describe(node)), ""};
    }
    if (!value.ok() || *value > std::numeric_limits<T>::max()) {
      return OutOfRange(node, "0", absl::StrCat(std::numeric_limits<T>::max()));
    }
    Store(field, owner, set, add, static_cast<T>(*value));
  }
  return std::nullopt;
}

std::optional<FieldProblem> SetEnum(const Node& node, const FieldDescriptor& field, Message& owner) {
  const std::vector<std::string> words = OfferedTexts(field);
  const auto* value = node.kind == Node::Kind::kScalar ? EnumValue(*field.enum_type(), node.text) : nullptr;
  if (value == nullptr) {
    return FieldProblem{absl::StrCat("expected ", ListWords(words), ", got ", Describe(node)),
                        node.kind == Node::Kind::kScalar ? Nearest(node.text, words) : ""};
  }
  Store(field, owner, &google::protobuf::Reflection::SetEnum, &google::protobuf::Reflection::AddEnum, value);
  return std::nullopt;
}

}  // namespace

std::string ListWords(const std::vector<std::string>& words) {
  if (words.size() < 2) return absl::StrJoin(words, "");
  return absl::StrCat(absl::StrJoin(words.begin(), words.end() - 1, ", "), " or ", words.back());
}

std::optional<FieldProblem> SetScalar(const Node& node, const FieldDescriptor& field, Message& owner) {
  using google::protobuf::Reflection;
  if (node.kind == Node::Kind::kNull || (node.kind == Node::Kind::kScalar && !node.quoted && !node.from_flag &&
                                         CoreType(node.text) == ScalarType::kNull)) {
    return FieldProblem{"is empty: give it a value or leave the key out", ""};
  }
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return SetInteger<int32_t>(node, field, owner, &Reflection::SetInt32, &Reflection::AddInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return SetInteger<int64_t>(node, field, owner, &Reflection::SetInt64, &Reflection::AddInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return SetInteger<uint32_t>(node, field, owner, &Reflection::SetUInt32, &Reflection::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return SetInteger<uint64_t>(node, field, owner, &Reflection::SetUInt64, &Reflection::AddUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      return SetDouble(node, field, owner);
    case FieldDescriptor::CPPTYPE_BOOL:
      return SetBool(node, field, owner);
    case FieldDescriptor::CPPTYPE_ENUM:
      return SetEnum(node, field, owner);
    case FieldDescriptor::CPPTYPE_STRING:
      return SetString(node, field, owner);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return FieldProblem{"is not a scalar", ""};
}

}  // namespace muster::cli
