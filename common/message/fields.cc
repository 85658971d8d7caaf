#include "common/message/fields.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/options.pb.h"

namespace muster {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;

// Specs are trees; this bounds the recursion for a message type that contains itself.
constexpr int kMaxDepth = 16;

void CollectPaths(const Descriptor& type, absl::string_view key, const std::string& prefix, int depth,
                  std::vector<std::string>& out) {
  if (depth > kMaxDepth) return;
  for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
    if (type.oneof_decl(i)->name() == key) out.push_back(absl::StrCat(prefix, key));
  }
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.real_containing_oneof() != nullptr) {
      if (field.message_type() != nullptr) CollectPaths(*field.message_type(), key, prefix, depth + 1, out);
      continue;
    }
    const std::string path = absl::StrCat(prefix, KeyOf(field));
    if (KeyOf(field) == key) out.push_back(path);
    if (field.message_type() != nullptr && !field.is_repeated()) {
      CollectPaths(*field.message_type(), key, path + ".", depth + 1, out);
    }
  }
}

void CollectValues(const Descriptor& type, const std::string& prefix, int depth,
                   std::map<std::string, std::vector<std::string>>& out) {
  if (depth > kMaxDepth) return;
  for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
    out.emplace(absl::StrCat(prefix, type.oneof_decl(i)->name()), MemberNames(*type.oneof_decl(i)));
  }
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const Descriptor* message = field.is_repeated() ? nullptr : field.message_type();
    if (field.real_containing_oneof() != nullptr) {
      if (message != nullptr) CollectValues(*message, prefix, depth + 1, out);
      continue;
    }
    const std::string path = absl::StrCat(prefix, KeyOf(field));
    std::vector<std::string> words;
    if (message != nullptr) {
      words = WordsFor(*message);
      CollectValues(*message, path + ".", depth + 1, out);
      if (words.empty()) continue;
    } else if (IsListOrAuto(field)) {
      words = {"auto"};
    } else if (field.enum_type() != nullptr) {
      words = OfferedTexts(field);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      words = {"true", "false"};
    }
    out.emplace(path, std::move(words));
  }
}

}  // namespace

std::string KeyOf(const FieldDescriptor& field) { return field.has_json_name() ? field.json_name() : field.name(); }

const FieldDescriptor* AutoField(const Descriptor& type) {
  const FieldDescriptor* field = type.FindFieldByName("auto");
  return field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL ? field : nullptr;
}

bool IsListOrAuto(const FieldDescriptor& field) {
  return field.is_repeated() && field.options().GetExtension(v1::list_or_auto);
}

std::vector<std::string> WordsFor(const Descriptor& type) {
  std::vector<std::string> words;
  if (const OneofDescriptor* oneof = NamedByAWord(type); oneof != nullptr) words = MemberNames(*oneof);
  if (AutoField(type) != nullptr) words.emplace_back("auto");
  return words;
}

const OneofDescriptor* NamedByAWord(const Descriptor& type) {
  const bool one = type.real_oneof_decl_count() == 1;
  return one && DefaultMember(*type.oneof_decl(0)) != nullptr ? type.oneof_decl(0) : nullptr;
}

std::string EnumText(const EnumValueDescriptor& value) {
  absl::string_view prefix = value.type()->FindValueByNumber(0)->name();
  absl::string_view text = value.name();
  if (absl::ConsumeSuffix(&prefix, "UNSPECIFIED")) absl::ConsumePrefix(&text, prefix);
  return absl::AsciiStrToLower(text);
}

std::vector<std::string> EnumTexts(const EnumDescriptor& type) {
  std::vector<std::string> texts;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) texts.push_back(EnumText(*type.value(i)));
  }
  return texts;
}

std::vector<std::string> OfferedTexts(const FieldDescriptor& field) {
  std::vector<std::string> texts = EnumTexts(*field.enum_type());
  // The range of fp16 is too small to keep weights in (coordinator/spec/resolve.cc).
  if (field.full_name() == "muster.v1.Precision.params") std::erase(texts, "fp16");
  return texts;
}

const EnumValueDescriptor* EnumValue(const EnumDescriptor& type, absl::string_view text) {
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0 && EnumText(*type.value(i)) == text) return type.value(i);
  }
  return nullptr;
}

const FieldDescriptor* DefaultMember(const OneofDescriptor& oneof) {
  const std::string& name = oneof.options().GetExtension(v1::default_member);
  return name.empty() ? nullptr : Member(oneof, name);
}

std::vector<std::string> MemberNames(const OneofDescriptor& oneof) {
  std::vector<std::string> names;
  for (int i = 0; i < oneof.field_count(); ++i) names.push_back(KeyOf(*oneof.field(i)));
  return names;
}

const FieldDescriptor* Member(const OneofDescriptor& oneof, absl::string_view name) {
  for (int i = 0; i < oneof.field_count(); ++i) {
    if (KeyOf(*oneof.field(i)) == name) return oneof.field(i);
  }
  return nullptr;
}

std::vector<std::string> AllKeys(const Descriptor& type) {
  std::vector<std::string> keys;
  for (int i = 0; i < type.real_oneof_decl_count(); ++i) keys.push_back(type.oneof_decl(i)->name());
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.real_containing_oneof() == nullptr) {
      keys.push_back(KeyOf(field));
    } else if (field.message_type() != nullptr) {
      for (std::string& key : AllKeys(*field.message_type())) keys.push_back(std::move(key));
    }
  }
  return keys;
}

std::vector<PathAndWords> AllPaths(const Descriptor& type) {
  std::map<std::string, std::vector<std::string>> found;
  CollectValues(type, "", 0, found);
  std::vector<PathAndWords> paths;
  for (auto& [path, words] : found) paths.push_back({path, std::move(words)});
  return paths;
}

std::vector<std::string> PathsEndingIn(const Descriptor& type, absl::string_view key) {
  std::vector<std::string> paths;
  CollectPaths(type, key, "", 0, paths);
  return paths;
}

}  // namespace muster
