// Paths of a spec are paths on the workers, which do not know the job file's folder.
#pragma once

#include <functional>
#include <string>

#include "cli/spec/reader.h"

namespace muster::cli {

// The folder of a file, named as in the reading's locations. Absolute.
using FolderOf = std::function<std::string(const std::string& file)>;

// Makes the paths of the spec (data.tokens, checkpoint.path, model.library) absolute: relative to the folder of the job
// file that set them, or to `working_folder` (absolute) if a flag set them. In checkpoint.path, which is created,
// leaves out "missing/..", where there is no `missing` here. Adds a problem for "~", which only a shell expands, and
// for a folder whose name is not UTF-8, which no request can hold.
void MakePathsAbsolute(const FolderOf& folder_of, const std::string& working_folder, Reading& reading);

// Sets a missing checkpoint.path to "<folder>/runs/{job}", a folder per job. An empty one stays: no checkpoints. Adds a
// problem as MakePathsAbsolute.
void AddDefaultPath(const std::string& folder, Reading& reading);

// The library of a model of the user's own; empty: the model is one of ours.
const std::string& LibraryOf(const v1::JobSpec& spec);

// "runs/a" from "/home/u" is "/home/u/runs/a"; absolute paths stay unchanged.
std::string AbsolutePath(const std::string& path, const std::string& folder);

}  // namespace muster::cli
