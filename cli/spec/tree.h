// YAML text as a tree of nodes with their locations. Nothing is typed here.
//
// yaml-cpp 0.7 parses the syntax; what it accepts wrongly is checked on top: duplicate keys, several documents,
// unclosed quotes, text that is not UTF-8, control characters (it takes U+0004 for the end of the file). Anchors,
// aliases, merge keys and foreign tags are refused, so that every value of a spec is written where it applies.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/spec/problem.h"

namespace muster::cli {

struct Entry;

struct Node {
  enum class Kind { kNull, kScalar, kMap, kList };
  Kind kind = Kind::kNull;
  Location where;
  std::string text;            // kScalar
  bool quoted = false;         // kScalar: text is a string whatever it looks like
  bool from_flag = false;      // kScalar: bare text of a command line, which has no quotes: fits strings too
  std::vector<Entry> entries;  // kMap: keys are unique
  std::vector<Node> items;     // kList
};

struct Entry {
  std::string key;
  Location where;  // of the key
  Node value;
};

// "the number 12", "a map", "nothing".
std::string Describe(const Node& node);

struct ParsedYaml {
  Node root;
  std::vector<Problem> problems;
  bool complete = true;  // false: the syntax is broken, and what comes after that point is missing
};

inline constexpr size_t kMaxYamlBytes = 256 << 10;
inline constexpr int kMaxYamlDepth = 32;

// `name` is the file's name in locations. If the syntax is broken, the root has what was read before that point.
ParsedYaml ParseYaml(absl::string_view text, const std::string& name);

// `text` as the value of a flag: a map, list or quoted string if it starts like one ({ [ " '), else bare text. Every
// node's location is `where`.
ParsedYaml ParseFlagValue(absl::string_view text, const Location& where);

}  // namespace muster::cli
