// Every field of a job spec as docs/job-spec.md shows it. Names, types and meanings come from proto/spec.proto and its
// comments; defaults come from the resolver, so none can drift.
//
//   for (const SpecSection& section : SpecSections()) std::cout << section.path << "\n";
//
// Pure; safe from any thread.
#pragma once

#include <string>
#include <vector>

namespace muster::docs {

struct SpecField {
  std::string path;  // "optimizer.lr"
  std::string key;   // "lr"
  std::string type;  // "number", "list of strings", "fp32, bf16 or fp16"
  std::string unit;  // "steps"; empty: a pure number, or none
  // "0.3": the default. "required", in all jobs or where the meaning says so, "none", "depends" on other fields, or "of
  // its fields".
  std::string fallback;
  std::string example;  // YAML: "3e-4"; empty: only the coordinator sets the field
  std::string meaning;  // the comment
  std::string link;     // the path of the section that describes the field's own fields; empty: it has none
  // Of an enum with comments: the value and its comment.
  std::vector<std::pair<std::string, std::string>> values;
};

// A map of the spec: the root, or "optimizer", or one choice of a oneof, "optimizer" with `kind: lion`.
struct SpecSection {
  std::string path;     // "optimizer"; empty: the root
  std::string choice;   // "kind: lion"; empty: the map itself
  std::string comment;  // of the message
  std::vector<SpecField> fields;
};

std::vector<SpecSection> SpecSections();

}  // namespace muster::docs
