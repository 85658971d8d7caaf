#include "common/node/node_selector.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

constexpr size_t kLongestKey = 63, kLongestValue = 128;
constexpr int kMostLabels = 64;
constexpr char kRule[] = "a key is letters, digits, -, _, . and /, at most ";

struct Requirement {
  absl::string_view key;
  absl::string_view value;
  bool unequal = false;
};

Requirement Parse(absl::string_view text) {
  const size_t equals = std::min(text.find('='), text.size());
  Requirement parsed{text.substr(0, equals), text.substr(std::min(equals + 1, text.size()))};
  parsed.unequal = absl::ConsumeSuffix(&parsed.key, "!");
  return parsed;
}

bool IsKey(absl::string_view key) {
  return !key.empty() && key.size() <= kLongestKey && absl::ascii_isalnum(static_cast<unsigned char>(key[0])) &&
         std::all_of(key.begin(), key.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
         });
}

bool IsValue(absl::string_view value) {
  return !value.empty() && value.size() <= kLongestValue &&
         std::all_of(value.begin(), value.end(), [](unsigned char c) { return c >= ' ' && c < 0x7f && c != ','; });
}

bool IsOwn(absl::string_view key) { return key == "node" || key == "hostname" || key == "device_model"; }

absl::Status CheckRequirement(const std::string& requirement, const char* example) {
  const Requirement parsed = Parse(requirement);
  if (IsKey(parsed.key) && IsValue(parsed.value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected KEY=VALUE or KEY!=VALUE, as ", example, ", got \"",
                                                 requirement, "\": ", kRule, kLongestKey,
                                                 "; a value printable ASCII without commas, at most ", kLongestValue));
}

bool HasLabel(const google::protobuf::RepeatedPtrField<std::string>& labels, absl::string_view key,
              absl::string_view value) {
  return std::any_of(labels.begin(), labels.end(), [&](absl::string_view label) {
    return absl::ConsumePrefix(&label, key) && absl::ConsumePrefix(&label, "=") && label == value;
  });
}

// Null: there is none.
const std::string* Labelled(const google::protobuf::RepeatedPtrField<std::string>& labels, absl::string_view key) {
  const auto found = std::find_if(labels.begin(), labels.end(), [&](absl::string_view label) {
    return absl::ConsumePrefix(&label, key) && absl::StartsWith(label, "=");
  });
  return found == labels.end() ? nullptr : &*found;
}

bool Has(const Node& node, absl::string_view key, absl::string_view value) {
  if (key == "node") return node.id() == value;
  if (key == "hostname") return node.hostname() == value;
  if (key == "device_model") return node.slots_size() > 0 && node.slots(0).model() == value;
  return HasLabel(node.labels(), key, value);
}

}  // namespace

absl::Status CheckNodeRequirement(const std::string& requirement) {
  return CheckRequirement(requirement, "rack=a or node!=gpu-7");
}

absl::Status CheckLabelRequirement(const std::string& requirement) {
  return CheckRequirement(requirement, "team=nlp or stage!=test");
}

absl::Status CheckNodeLabels(const google::protobuf::RepeatedPtrField<std::string>& labels) {
  if (labels.size() > kMostLabels) {
    return absl::InvalidArgumentError(absl::StrCat("at most ", kMostLabels, " labels are possible"));
  }
  for (const std::string& label : labels) {
    const Requirement parsed = Parse(label);
    if (IsOwn(parsed.key)) {
      return absl::InvalidArgumentError(absl::StrCat("every node has its own \"", parsed.key, "\" already"));
    }
    if (parsed.unequal || !IsKey(parsed.key) || !IsValue(parsed.value)) {
      return absl::InvalidArgumentError(absl::StrCat("expected KEY=VALUE, as rack=a, got \"", label, "\""));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLabel(const std::string& label) {
  const Requirement parsed = Parse(label);
  if (!parsed.unequal && IsKey(parsed.key) && IsValue(parsed.value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected KEY=VALUE, as team=nlp, got \"", label, "\": ", kRule,
                                                 kLongestKey, "; a value printable ASCII without commas, at most ",
                                                 kLongestValue));
}

std::string LabelKey(const std::string& label) { return std::string(Parse(label).key); }

LabelSelector::LabelSelector(const google::protobuf::RepeatedPtrField<std::string>& requirements) {
  for (const std::string& text : requirements) {
    const muster::Requirement parsed = Parse(text);
    requirements_.push_back({absl::StrCat(parsed.key, "=", parsed.value), parsed.unequal});
  }
}

bool LabelSelector::Selects(const google::protobuf::RepeatedPtrField<std::string>& labels) const {
  return std::all_of(requirements_.begin(), requirements_.end(), [&](const Requirement& requirement) {
    return (std::find(labels.begin(), labels.end(), requirement.label) != labels.end()) != requirement.unequal;
  });
}

absl::Status CheckNodeLabelKey(const std::string& key) {
  if (IsKey(key)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected the key of a label, as rack, got \"", key, "\": ", kRule, kLongestKey));
}

std::optional<std::string> NodeLabel(const Node& node, const std::string& key) {
  if (key == "node") return node.id();
  if (key == "hostname") return node.hostname();
  if (key == "device_model") return node.slots_size() > 0 ? std::optional(node.slots(0).model()) : std::nullopt;
  const std::string* const label = Labelled(node.labels(), key);
  return label == nullptr ? std::nullopt : std::optional(label->substr(key.size() + 1));
}

bool Selects(const google::protobuf::RepeatedPtrField<std::string>& selector, const Node& node) {
  return std::all_of(selector.begin(), selector.end(), [&](const std::string& text) {
    const Requirement parsed = Parse(text);
    return Has(node, parsed.key, parsed.value) != parsed.unequal;
  });
}

}  // namespace muster
