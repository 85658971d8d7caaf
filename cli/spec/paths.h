// Paths of a spec are paths on the workers, which do not know where the job file lies.
#pragma once

#include <string>

#include "cli/spec/reader.h"

namespace muster::cli {

// Makes data.tokens, data.validation and checkpoint.path absolute: from `file_folder` where they were written in the
// job file, from `working_folder` where they came from a flag. Both are absolute. Notes a problem for "~", which only a
// shell expands.
void MakePathsAbsolute(const std::string& file_folder, const std::string& working_folder, Reading& reading);

// "runs/a" from "/home/u" is "/home/u/runs/a"; absolute paths stay.
std::string AbsolutePath(const std::string& path, const std::string& folder);

}  // namespace muster::cli
