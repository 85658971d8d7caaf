// YAML text as a tree of nodes that know where they were written. Nothing is typed here.
//
// yaml-cpp 0.7 does the syntax; what it lets pass is checked on top: duplicate keys, several documents, quotes that are
// never closed, text that is not UTF-8, control characters (it takes U+0004 for the end of the file). Anchors, aliases,
// merge keys and foreign tags are refused: a spec says what it means where it means it.
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
};

inline constexpr size_t kMaxYamlBytes = 256 << 10;
inline constexpr int kMaxYamlDepth = 32;

// `name` is the file's name in locations. When the syntax is broken, the root is what was read before that place.
ParsedYaml ParseYaml(absl::string_view text, const std::string& name);

// `text` as the value of a flag: a map, list or quoted string when it begins like one ({ [ " '), else bare text.
// Every node's location is `where`.
ParsedYaml ParseFlagValue(absl::string_view text, const Location& where);

}  // namespace muster::cli
