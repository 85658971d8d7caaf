#include "cli/spec/set.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace muster::cli {

absl::StatusOr<Assignment> ParseAssignment(absl::string_view text, absl::string_view flag) {
  const size_t equals = text.find('=');
  const std::string path(text.substr(0, equals));
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  if (equals == absl::string_view::npos || std::any_of(parts.begin(), parts.end(), [](const std::string& part) {
        return part.empty() || part.find_first_of(" \t[]{}:") != std::string::npos;
      })) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", text, ": expected key=value with a key such as optimizer.lr"));
  }
  return Assignment{absl::StrCat(flag, " ", path), path, std::string(text.substr(equals + 1))};
}

void Assign(const Assignment& assignment, Node& root, std::vector<Problem>& problems) {
  const Location where{std::make_shared<const std::string>(assignment.flag), 0, 0, assignment.path};
  ParsedYaml value = ParseFlagValue(assignment.value, where);
  for (Problem& problem : value.problems) {
    problem.path = assignment.path;
    problems.push_back(std::move(problem));
  }
  // What was read up to a syntax error has another type than what was meant.
  if (!value.complete) return;
  const std::vector<std::string> parts = absl::StrSplit(assignment.path, '.');
  Node* node = &root;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (node->kind == Node::Kind::kNull) node->kind = Node::Kind::kMap;
    if (node->kind != Node::Kind::kMap) {
      const std::string parent = absl::StrJoin(parts.begin(), parts.begin() + i, ".");
      problems.push_back(Problem{where, assignment.path,
                                 absl::StrCat("cannot be set: ", i == 0 ? "the spec" : parent, " is ", Describe(*node)),
                                 ""});
      return;
    }
    auto entry =
        std::find_if(node->entries.begin(), node->entries.end(), [&](const Entry& e) { return e.key == parts[i]; });
    if (entry == node->entries.end()) {
      node->entries.push_back(Entry{parts[i], where, Node{.kind = Node::Kind::kNull, .where = where}});
      entry = node->entries.end() - 1;
    }
    node = &entry->value;
    if (i + 1 == parts.size()) entry->where = where;
  }
  *node = std::move(value.root);
}

}  // namespace muster::cli
