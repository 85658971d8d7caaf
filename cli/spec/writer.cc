#include "cli/spec/writer.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/spec/scalar.h"
#include "common/format_double.h"
#include "common/message/tree.h"

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

// The number of bytes, at the start of the UTF-8 `text`, of a character beyond ASCII that YAML text may not contain
// unescaped (YAML 1.2.2, production 1), or that ends a line: U+0080 to U+009F, U+FFFE, U+FFFF. 0: none.
size_t UnprintableBytes(absl::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  if (byte(0) == 0xC2 && byte(1) < 0xA0) return 2;
  if (byte(0) == 0xEF && byte(1) == 0xBF && byte(2) >= 0xBE) return 3;
  return 0;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const unsigned char byte = static_cast<unsigned char>(c);
    if (const size_t bytes = UnprintableBytes(absl::string_view(text).substr(i)); bytes > 0) {
      const unsigned char last = static_cast<unsigned char>(text[i += bytes - 1]);
      if (bytes == 2) {
        absl::StrAppendFormat(&out, "\\u%04X", last);
      } else {
        absl::StrAppendFormat(&out, "\\uFF%02X", last | 0x40);
      }
    } else if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      absl::StrAppendFormat(&out, "\\x%02X", byte);
    } else {
      out += c;
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
