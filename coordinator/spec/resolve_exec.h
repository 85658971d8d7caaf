// The part of Resolve for `workload: exec`: a program of the user's, of which only its start is known. Pure.
#pragma once

#include <functional>
#include <string>

#include "proto/spec.pb.h"

namespace muster::spec {

// Receives an error: the field's path, what is wrong, and a suggestion or "".
using NoteError =
    std::function<void(const std::string& path, const std::string& message, const std::string& suggestion)>;

// Applies the defaults of spec.exec, and checks it and the variables of spec.env, of which an exec job may set any that
// Muster does not set itself. REQUIRES: spec.has_exec().
void ResolveExec(JobSpec& spec, const NoteError& note);

}  // namespace muster::spec
