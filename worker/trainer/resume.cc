#include "worker/trainer/resume.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/trainer/agree.h"
#include "worker/trainer/weights.h"

namespace muster::trainer {
namespace {

// Names below checkpoint.path to resume from, best first: the one the coordinator chose, then older published ones.
std::vector<std::string> Candidates(const Assignment& assignment) {
  std::vector<PublishedCheckpoint> older;
  for (const PublishedCheckpoint& published : assignment.published()) {
    const bool before = published.step() < assignment.resume_from().step() ||
                        (published.step() == assignment.resume_from().step() &&
                         published.generation() < assignment.resume_from().generation());
    if (before) older.push_back(published);
  }
  std::sort(older.begin(), older.end(), [](const PublishedCheckpoint& a, const PublishedCheckpoint& b) {
    return std::pair(a.step(), a.generation()) > std::pair(b.step(), b.generation());
  });
  std::vector<std::string> names = {assignment.resume_from().directory()};
  for (const PublishedCheckpoint& published : older) names.push_back(published.directory());
  return names;
}

absl::StatusOr<Resumed> LoadFrom(const std::string& directory, const std::string& job, engine::Engine& engine) {
  const absl::StatusOr<checkpoint::Checkpoint> checkpoint =
      checkpoint::Checkpoint::Open(directory, checkpoint::Verification::kAsRead);
  if (!checkpoint.ok()) return checkpoint.status();
  const Manifest& manifest = checkpoint->manifest();
  if (manifest.job() != job) {
    return absl::FailedPreconditionError(absl::StrCat(directory, " was written by job ", manifest.job(), ", not by ",
                                                      job, ": do two jobs share checkpoint.path?"));
  }
  if (absl::Status status = Load(*checkpoint, Which::kAll, engine); !status.ok()) return status;
  return Resumed{manifest.step(), manifest.samples_consumed()};
}

// Damage, as opposed to what no other checkpoint would change.
bool IsDamage(const absl::Status& status) { return absl::IsDataLoss(status) || absl::IsNotFound(status); }

}  // namespace

absl::StatusOr<Resumed> Resume(const Assignment& assignment, collectives::Group* world, engine::Engine& engine) {
  const std::string& path = assignment.spec().train().checkpoint().path();
  std::vector<std::string> causes;
  for (const std::string& name : Candidates(assignment)) {
    const std::string directory = absl::StrCat(path, "/", name);
    absl::StatusOr<Resumed> resumed = LoadFrom(directory, assignment.key().job(), engine);
    // First what ends the job, then what only ends this checkpoint; each rank of the world meets the others at both.
    const absl::Status own = IsDamage(resumed.status()) ? absl::OkStatus() : resumed.status();
    absl::Status all = Agree(world, assignment.device(), own,
                             absl::FailedPreconditionError(absl::StrCat("another rank cannot resume from ", directory,
                                                                        "; its own message says why")));
    if (!all.ok()) return all;
    all =
        Agree(world, assignment.device(), resumed.status(),
              absl::DataLossError(absl::StrCat(directory, ": another rank found it damaged; its own log says where")));
    if (all.ok()) {
      engine.set_step(resumed->step);
      spdlog::info("resumed from {} (step {}, {} samples consumed)", directory, resumed->step,
                   resumed->samples_consumed);
      return resumed;
    }
    if (!IsDamage(all)) return all;
    spdlog::error("DAMAGED CHECKPOINT, an older one is used: {}", std::string(all.message()));
    causes.emplace_back(all.message());
  }
  return absl::DataLossError(
      absl::StrCat("no whole checkpoint is left below ", path, ": ", absl::StrJoin(causes, "; ")));
}

}  // namespace muster::trainer
