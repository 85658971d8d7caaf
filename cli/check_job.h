// All errors of a job at once: of its file's form, of its values, and of the files that it names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/spec/problem.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// OK: the form is right, and the files that the job names are there as far as this machine can tell. InvalidArgument:
// every problem, and with them those that the coordinator finds in the values; a note on stderr says that it did not
// answer. `client`: of the coordinator; an error: it cannot be asked. `waits`: for other jobs, also if `reading` names
// none; they may first write what it starts from.
absl::Status CheckJob(const Reading& reading, const absl::StatusOr<std::unique_ptr<Client>>& client,
                      bool waits = false);

// Problems with paths of the spec, on a machine that runs all ranks: data files, folders to read, and the folder for
// checkpoints. Also data.validation of another tokenizer than data.tokens.
std::vector<Problem> PathProblems(const Reading& reading);

// Files that do not fit the job, on such a machine: tokens that are too few for a sample, or not in the vocabulary (of
// more than 256 MiB a sample of so much is read); images of another shape, or labels that the model has no class for
// (of more than 65,536 labels about so many are read); and folders to start from without a whole checkpoint, or of
// another model or tokenizer. `resolved`: by the coordinator.
std::vector<Problem> FitProblems(const v1::Train& resolved, const SourceMap& sources, bool waits);

// `found` without what follows from a problem that is in `known`: a field that was misspelled is not missing, too,
// nor are the numbers that an unknown model.size would give.
std::vector<Problem> WithoutConsequences(std::vector<Problem> found, const std::vector<Problem>& known);

}  // namespace muster::cli
