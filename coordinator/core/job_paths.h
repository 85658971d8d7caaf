// Paths of a spec as they are stored: placeholders expanded, folders comparable by their names. Pure.
//
// {name} and {job} in checkpoint.path and checkpoint.resume_from stand for the job's name and its id. Other paths are
// taken as they are written.
#pragma once

#include <optional>
#include <string>

#include "common/ids.h"
#include "proto/spec.pb.h"

namespace muster::core {

struct PlaceholderError {
  std::string message;     // "unknown placeholder {id}: {name} and {job} can stand in this path"
  std::string suggestion;  // the placeholder that may have been meant; may be empty
};

// None: every brace of `path` belongs to a placeholder.
std::optional<PlaceholderError> CheckPlaceholders(const std::string& path);

std::string ExpandPlaceholders(const std::string& path, const std::string& name, const std::string& job);

// Expands them in all paths of `spec` in which they can stand. A spec without placeholders stays as it is.
void ExpandPlaceholders(const JobId& job, JobSpec& spec);

// Without empty and "." parts, and with ".." resolved by name, as if no part were a symbolic link: equal for paths that
// differ in their writing only. REQUIRES: absolute.
std::string NormalizedPath(const std::string& path);

}  // namespace muster::core
