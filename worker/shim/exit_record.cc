#include "worker/shim/exit_record.h"

#include <string.h>
#include <sys/wait.h>

#include <csignal>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"

namespace muster::step {
namespace {

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("signal ", signal, " (SIG", name, ")");
}

std::string How(const Ending& ending) {
  if (WIFSIGNALED(ending.wait_status)) return absl::StrCat("was killed by ", SignalName(WTERMSIG(ending.wait_status)));
  return absl::StrCat("exited with code ", WEXITSTATUS(ending.wait_status));
}

RankExit::Cause CauseOf(const Ending& ending) {
  if (!ending.spawn_error.empty()) return RankExit::SPAWN_FAILED;
  if (ending.intervention == Intervention::kOrphaned) return RankExit::ORPHANED;
  if (WIFEXITED(ending.wait_status))
    return WEXITSTATUS(ending.wait_status) == 0 ? RankExit::COMPLETED : RankExit::FAILED;
  const int signal = WTERMSIG(ending.wait_status);
  const bool ours =
      (ending.intervention == Intervention::kRequested && signal == SIGTERM) || (ending.killed && signal == SIGKILL);
  return ours ? RankExit::STOPPED : RankExit::FAILED;
}

std::string Message(const Ending& ending, RankExit::Cause cause) {
  const std::string rank = absl::StrCat("rank ", ending.rank, " ");
  switch (cause) {
    case RankExit::SPAWN_FAILED:
      return absl::StrCat(rank, "could not be started: ", ending.spawn_error);
    case RankExit::ORPHANED:
      return absl::StrCat(rank, "was ended because its worker had no contact with the coordinator for ",
                          absl::FormatDuration(ending.orphan_grace), " (orphan_grace); it ", How(ending));
    case RankExit::STOPPED:
      if (!ending.killed) return absl::StrCat(rank, "was asked to stop and ", How(ending));
      return absl::StrCat(rank, "was asked to stop, did not end in time and ", How(ending));
    case RankExit::FAILED:
      if (WIFSIGNALED(ending.wait_status) && WTERMSIG(ending.wait_status) == SIGKILL) {
        return absl::StrCat(rank, How(ending), ", not by muster: often the kernel's out-of-memory killer, see dmesg");
      }
      return absl::StrCat(rank, How(ending));
    default:
      return absl::StrCat(rank, How(ending));
  }
}

}  // namespace

RankExit MakeExit(const Ending& ending) {
  RankExit exit;
  exit.set_cause(CauseOf(ending));
  if (ending.spawn_error.empty()) {
    if (WIFEXITED(ending.wait_status)) exit.set_exit_code(WEXITSTATUS(ending.wait_status));
    if (WIFSIGNALED(ending.wait_status)) exit.set_signal(WTERMSIG(ending.wait_status));
  }
  exit.set_message(Message(ending, exit.cause()));
  exit.mutable_last_lines()->Assign(ending.last_lines.begin(), ending.last_lines.end());
  exit.set_peak_memory_bytes(ending.peak_memory_bytes);
  *exit.mutable_ended() = ToProto(ending.ended);
  return exit;
}

}  // namespace muster::step
