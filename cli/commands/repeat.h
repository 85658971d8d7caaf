// What `ps --watch` and `top` share: the same glance again and again.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/exit_code.h"
#include "cli/output/screen.h"

namespace muster::cli {

// Prints what `glance` gives every two seconds until Ctrl-C: in place on a terminal, else one below the other;
// `changed` then leaves out what is as before. A coordinator that goes away after a first answer is waited for; other
// errors end it.
absl::StatusOr<ExitCode> Repeat(const Screen& screen, bool changed,
                                const std::function<absl::StatusOr<std::string>()>& glance);

}  // namespace muster::cli
