// YAML to a job spec, by protobuf reflection: a new field of proto/spec.proto is read without a change here.
//
//   Reading reading = ReadSpec(text, "job.yaml", {});
//   for (const Problem& p : reading.problems) std::cerr << p.ToString() << "\n";
//
// Checks the form: names, types, ranges of the types, oneofs. The coordinator checks the values; its errors name paths,
// which Locate maps to lines. Reports all problems at once: a misspelled kind is read as the kind that its error
// suggests, as Clang goes on as if its fix-it were applied, so that errors in its fields show too. Pure; safe from any
// thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/spec/problem.h"
#include "cli/spec/tree.h"
#include "proto/jobs.pb.h"
#include "proto/spec.pb.h"

namespace muster::cli {

inline constexpr char kApiVersion[] = "muster/v1";
inline constexpr char kJobKind[] = "Job";

struct Reading {
  v1::JobSpec spec;  // complete only if there are no problems
  SourceMap sources;
  std::vector<Problem> problems;  // in the file's order
  bool complete = true;           // false: no map, or broken syntax; its values are not all here
};

// "--set optimizer.lr=3e-4", or a flag of its own that stands for a path: --lr.
struct Assignment {
  std::string flag;  // "--set optimizer.lr", "--lr": how errors name it
  std::string path;
  std::string value;

  bool operator==(const Assignment&) const = default;
};

struct SpecText {
  std::string text;
  std::string name;  // of the file: how errors and sources name it
};

// Applies `assignments` to the file's tree, in order, then reads the result: both follow the same rules.
Reading ReadSpec(absl::string_view text, const std::string& name, const std::vector<Assignment>& assignments);

// The same for several files, at least one, each merged over those before it (merge.h).
Reading ReadSpecs(const std::vector<SpecText>& files, const std::vector<Assignment>& assignments);

// A spec from flags alone: as a file that says the same would be, merged over `below` if there is that; then `sets`.
// Fills in apiVersion and kind.
Reading ReadFlags(const std::vector<Assignment>& flags, const std::vector<Assignment>& sets = {},
                  const std::optional<SpecText>& below = std::nullopt);

// What is wrong with a part of a job file, whatever a file that is merged over it says: unknown fields, wrong types.
// What is missing may be in that file.
std::vector<Problem> TemplateProblems(const SpecText& text);

// The generic part: reads `root` into any message.
void ReadMessage(const Node& root, google::protobuf::Message& message, SourceMap& sources,
                 std::vector<Problem>& problems);

// The coordinator's errors, each with the location of its field or the nearest written parent.
std::vector<Problem> Locate(const v1::SpecErrors& errors, const SourceMap& sources);

}  // namespace muster::cli
