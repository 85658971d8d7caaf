// The refresh loop that `ps --watch` and `top` share.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/exit_code.h"
#include "cli/output/screen.h"

namespace muster::cli {

// Prints what `glance` returns, every two seconds until Ctrl-C: in place on a terminal, as OnScreen cuts it, otherwise
// one page after the other. For the latter, `changed` leaves out what is unchanged. If the coordinator goes away after
// a first answer, waits for it to come back; other errors end the loop. On a terminal also after a resize.
//
// `on_key`: null, or what to do with a key that is pressed, as the terminal sends it; while it may be called, keys are
// not echoed and need no Enter. q ends the loop with kOk and is not passed on. True: print again.
absl::StatusOr<ExitCode> Repeat(const Screen& screen, bool changed,
                                const std::function<absl::StatusOr<std::string>()>& glance,
                                const std::function<bool(const std::string& key)>& on_key = nullptr);

}  // namespace muster::cli
