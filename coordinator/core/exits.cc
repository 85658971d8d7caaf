#include "coordinator/core/exits.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "coordinator/core/job_plan.h"

namespace muster::core {
namespace {

constexpr size_t kMessageBytes = 600;
constexpr size_t kLineBytes = 1000;
constexpr int kLines = 20;

std::string DefaultMessage(const RankExit& exit, uint32_t rank) {
  const std::string who = absl::StrCat("rank ", rank);
  switch (exit.cause()) {
    case RankExit::SPAWN_FAILED:
      return absl::StrCat(who, " could not be started");
    case RankExit::ORPHANED:
      return absl::StrCat(who, " was killed at its orphan deadline: its worker daemon was away for too long");
    case RankExit::REFUSED:
      return absl::StrCat(who, " rejected the job");
    case RankExit::VANISHED:
      return absl::StrCat(who, " disappeared without an exit record");
    case RankExit::FAILED:
      return exit.signal() != 0 ? absl::StrCat(who, " was killed by signal ", exit.signal())
                                : absl::StrCat(who, " exited with code ", exit.exit_code());
    default:
      return absl::StrCat(who, " ended");
  }
}

}  // namespace

Mesh MeshOf(const Generation& generation) {
  Mesh mesh;
  for (const RankPlacement& placed : generation.ranks()) {
    mesh.pipeline = std::max(mesh.pipeline, placed.role().stage() + 1);
    mesh.replica = std::max(mesh.replica, placed.role().replica() + 1);
    mesh.tensor = std::max(mesh.tensor, placed.role().tensor() + 1);
    mesh.context = std::max(mesh.context, placed.role().context() + 1);
  }
  return WithShardsFor(mesh, static_cast<uint32_t>(generation.ranks_size()));
}

std::string RankName(const Generation& generation, uint32_t rank) {
  const Mesh mesh = MeshOf(generation);
  const bool data_alone = mesh.pipeline == 1 && mesh.tensor == 1 && mesh.context == 1;
  if (data_alone || rank >= mesh.ranks()) return absl::StrCat("rank ", rank);
  return absl::StrCat("rank ", rank, " (", Print(mesh, CoordinateOf(mesh, rank)), ")");
}

RankExit ClassifyExit(RankExit exit, const RankPlacement& rank) {
  const bool good = exit.cause() == RankExit::COMPLETED || exit.cause() == RankExit::STOPPED;
  if (exit.cause() == RankExit::CAUSE_UNSPECIFIED) exit.set_cause(RankExit::FAILED);
  if (good) exit.set_cause(rank.finished() ? RankExit::COMPLETED : RankExit::STOPPED);
  if (exit.message().empty()) exit.set_message(DefaultMessage(exit, rank.rank()));
  ShortenUtf8(kMessageBytes, *exit.mutable_message());
  if (const int more = exit.last_lines_size() - kLines; more > 0) exit.mutable_last_lines()->DeleteSubrange(0, more);
  for (std::string& line : *exit.mutable_last_lines()) ShortenUtf8(kLineBytes, line);
  return exit;
}

std::string HintFor(const RankExit& exit, const std::string& job, uint32_t rank) {
  if (exit.cause() == RankExit::SPAWN_FAILED) {
    return "the trainer could not be started: is muster-trainer installed beside muster-worker on that node?";
  }
  if (exit.cause() == RankExit::VANISHED)
    return "the node or its worker daemon went away: muster nodes, and the node's log";
  if (exit.cause() == RankExit::ORPHANED) return "its worker daemon was away for longer than the orphan grace";
  if (exit.cause() == RankExit::REFUSED && exit.of_node()) {
    return absl::StrCat(
        "the node lacks something that the job needs: mount or install it there; other nodes are tried if ",
        "there are any; output of the rank: muster logs ", job, " --rank ", rank);
  }
  if (exit.cause() == RankExit::REFUSED) {
    return absl::StrCat(
        "not retried, because another attempt would fail in the same way: fix the job and submit it again; output "
        "of the rank: muster logs ",
        job, " --rank ", rank);
  }
  if (exit.signal() == 9)
    return absl::StrCat(
        "SIGKILL that Muster did not send: out of memory? Try a smaller batch.microbatch, and see dmesg | tail on "
        "the node");
  return absl::StrCat("output of the rank: muster logs ", job, " --rank ", rank);
}

std::string HintForRefusedJob(const std::string& job, uint32_t rank) {
  return absl::StrCat("no node can run it: fix the cause above, then submit again; output of the rank: muster logs ",
                      job, " --rank ", rank);
}

bool MayBlameNode(const RankExit& exit) {
  switch (exit.cause()) {
    case RankExit::SPAWN_FAILED:
    case RankExit::HUNG:
      return true;
    case RankExit::REFUSED:
      return exit.of_node();
    case RankExit::FAILED:
      return exit.of_node() || exit.signal() != 0;
    default:
      return false;
  }
}

const char* Name(EndReason reason) {
  switch (reason) {
    case END_REASON_COMPLETED:
      return "completed";
    case END_REASON_FAILED:
      return "failed";
    case END_REASON_LOST:
      return "lost";
    case END_REASON_PREEMPTED:
      return "preempted";
    case END_REASON_DRAINED:
      return "drained";
    case END_REASON_RESIZED:
      return "resized";
    case END_REASON_CANCELLED:
      return "cancelled";
    case END_REASON_PAUSED:
      return "paused";
    case END_REASON_TIMEOUT:
      return "timeout";
    default:
      return "none";
  }
}

bool IsFault(EndReason reason) { return reason == END_REASON_FAILED || reason == END_REASON_LOST; }

}  // namespace muster::core
