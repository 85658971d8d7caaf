#include "cli/spec/writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/spec/scalar.h"
#include "common/format_double.h"
#include "common/message/tree.h"
#include "common/unprintable.h"
#include "common/utf8.h"

namespace muster::cli {
namespace {

using nlohmann::ordered_json;

// Whether a reader takes the bare text for the same string.
bool Plain(const std::string& text) {
  if (CoreType(text) != ScalarType::kString) return false;
  const auto fine = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '/' ||
           c == '.' || c == '-' || c == '+' || c == '(' || c == ')';
  };
  const char first = text[0];
  if (first == '-' || first == '.' || first == '+' || first == '(' || first == ')') {
    if (text.size() < 2 || first == '-' || text.substr(0, 3) == "...") return false;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const bool inner_space = text[i] == ' ' && i > 0 && i + 1 < text.size() && text[i - 1] != ' ';
    if (!fine(text[i]) && !inner_space) return false;
  }
  return true;
}

// Whether text may contain the character only escaped: it steers terminals, or YAML forbids it (YAML 1.2.2,
// production 1).
bool IsEscaped(char32_t c) { return IsUnprintable(c) || c == 0xFFFE || c == 0xFFFF; }

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const auto [length, character] = DecodeUtf8(text);
    const absl::string_view bytes = text.substr(0, std::max<size_t>(length, 1));
    text.remove_prefix(bytes.size());
    if (length == 0) {
      out += "\\uFFFD";
    } else if (character == '"' || character == '\\') {
      absl::StrAppend(&out, "\\", bytes);
    } else if (character == '\n') {
      out += "\\n";
    } else if (character == '\t') {
      out += "\\t";
    } else if (IsEscaped(character) && character < 0x80) {
      absl::StrAppendFormat(&out, "\\x%02X", static_cast<uint32_t>(character));
    } else if (IsEscaped(character)) {
      absl::StrAppendFormat(&out, "\\u%04X", static_cast<uint32_t>(character));
    } else {
      absl::StrAppend(&out, bytes);
    }
  }
  return out + "\"";
}

std::string ScalarText(const ordered_json& value) {
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    return Plain(text) ? text : Quoted(text);
  }
  if (value.is_number_float()) return FormatDouble(value.get<double>());
  return value.dump();
}

void Emit(const ordered_json& value, int indent, bool in_list, std::string& out);

void EmitEntries(const ordered_json& map, int indent, bool in_list, std::string& out) {
  bool first = true;
  for (const auto& [key, value] : map.items()) {
    // The first key of a map in a list follows the dash.
    if (!(first && in_list)) out.append(indent, ' ');
    first = false;
    absl::StrAppend(&out, ScalarText(key), ":");
    Emit(value, indent, false, out);
  }
}

void Emit(const ordered_json& value, int indent, bool in_list, std::string& out) {
  if (value.is_object() && !value.empty()) {
    if (!in_list) out += "\n";
    EmitEntries(value, in_list ? indent : indent + 2, in_list, out);
  } else if (value.is_array() && !value.empty()) {
    out += "\n";
    for (const ordered_json& item : value) {
      absl::StrAppend(&out, std::string(indent + 2, ' '), "- ");
      Emit(item, indent + 4, true, out);
    }
  } else {
    absl::StrAppend(&out, in_list ? "" : " ", ScalarText(value), "\n");
  }
}

}  // namespace

std::string ToYaml(const ordered_json& tree) {
  if (!tree.is_structured() || tree.empty()) return ScalarText(tree) + "\n";
  std::string out;
  if (tree.is_object()) {
    EmitEntries(tree, 0, false, out);
  } else {
    for (const ordered_json& item : tree) {
      out += "- ";
      Emit(item, 2, true, out);
    }
  }
  return out;
}

std::string WriteSpec(v1::JobSpec spec) {
  spec.clear_template_();
  return ToYaml(SpecTree(spec));
}

}  // namespace muster::cli
