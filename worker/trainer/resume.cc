#include "worker/trainer/resume.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checkpoint/adopt.h"
#include "checkpoint/check_start.h"
#include "checkpoint/checkpoint.h"
#include "common/log/log.h"
#include "data/tokenizer_origin.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "worker/engine/update_decision.h"
#include "worker/trainer/agree_on_status.h"
#include "worker/trainer/ranks.h"
#include "worker/trainer/weights.h"

namespace muster::trainer {
namespace {

// Rendezvous keys; their values are bounded.
constexpr char kFolders[] = "resume_from", kAdopted[] = "adopted", kWeights[] = "model_from";
constexpr size_t kOthersTried = 8;

// Folders below checkpoint.path to resume from, best first: the one the coordinator chose, then older published ones.
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
  const std::string& path = assignment.spec().train().checkpoint().path();
  std::vector<std::string> folders = {absl::StrCat(path, "/", assignment.resume_from().directory())};
  for (const PublishedCheckpoint& published : older) folders.push_back(absl::StrCat(path, "/", published.directory()));
  return folders;
}

// Checks that this job may resume from a checkpoint.
using Check = absl::Status(const Manifest& manifest, const std::string& directory, const Assignment& assignment);

absl::Status CheckTokens(const Manifest& manifest, const std::string& directory, const Assignment& assignment) {
  return data::CheckTokenizer(assignment.spec().train().data().tokens(), absl::StrCat("the data of ", directory),
                              checkpoint::TokenizerOf(manifest));
}

absl::Status CheckOwn(const Manifest& manifest, const std::string& directory, const Assignment& assignment) {
  const std::string& job = assignment.key().job();
  if (manifest.job() == job) return CheckTokens(manifest, directory, assignment);
  return absl::InvalidArgumentError(absl::StrCat(directory, " was written by job ", manifest.job(), ", not by ", job,
                                                 ": do two jobs share checkpoint.path?"));
}

absl::Status CheckAsSameRun(const char* field, const Manifest& manifest, const std::string& directory,
                            const Assignment& assignment) {
  const Train& theirs = manifest.spec().train();
  const Train& ours = assignment.spec().train();
  absl::Status status = checkpoint::CheckSameRun(manifest, directory, ours);
  if (status.ok()) status = CheckTokens(manifest, directory, assignment);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(field, ": ", status.message()));
  const absl::StatusOr<Inventory> inventory = models::MakeInventory(ours.model());
  if (!inventory.ok()) return inventory.status();
  const models::DataSource their_source = models::SourceOf(inventory->task().name(), theirs.data()),
                           our_source = models::SourceOf(inventory->task().name(), ours.data());
  if (their_source.path != our_source.path && assignment.key().rank() == 0) {
    LogWarn("the checkpoint was trained on other data; continuing as if it were the same",
            {{"checkpoint", directory},
             {"its_data", their_source.path},
             {"data", our_source.path},
             {"sample", manifest.samples_consumed()}});
  }
  return absl::OkStatus();
}

absl::Status CheckOther(const Manifest& manifest, const std::string& directory, const Assignment& assignment) {
  return CheckAsSameRun("checkpoint.resume_from", manifest, directory, assignment);
}

absl::Status CheckAdopted(const Manifest& manifest, const std::string& directory, const Assignment& assignment) {
  if (manifest.job() == assignment.key().job()) return CheckOwn(manifest, directory, assignment);
  return CheckAsSameRun("checkpoint.path (adopted)", manifest, directory, assignment);
}

// A loss scale is only of use to a job that has one.
UpdateState UpdateStateOf(const Manifest& manifest, const Assignment& assignment) {
  UpdateState update = engine::FirstUpdateState(assignment.spec().train());
  if (!manifest.has_update()) return update;
  const UpdateState& theirs = manifest.update();
  update.set_skipped_steps(theirs.skipped_steps());
  update.set_skipped_in_a_row(theirs.skipped_in_a_row());
  if (!strategies::ScalesLoss(manifest.spec().train()) || !strategies::ScalesLoss(assignment.spec().train()))
    return update;
  update.set_loss_scale(theirs.loss_scale());
  update.set_good_steps(theirs.good_steps());
  return update;
}

absl::StatusOr<checkpoint::Checkpoint> OpenHere(const std::string& directory, checkpoint::Verification verification) {
  absl::StatusOr<checkpoint::Checkpoint> opened = checkpoint::Checkpoint::Open(directory, verification);
  if (!absl::IsNotFound(opened.status())) return opened;
  return absl::NotFoundError(absl::StrCat("this node does not see ", directory,
                                          ": was it removed, or is its folder not one that all nodes share?"));
}

absl::StatusOr<Resumed> LoadFrom(const std::string& directory, Check check, const Assignment& assignment,
                                 const strategies::Layout& layout, engine::Engine& engine, OuterState* outer) {
  const absl::StatusOr<checkpoint::Checkpoint> checkpoint = OpenHere(directory, checkpoint::Verification::kAsRead);
  if (!checkpoint.ok()) return checkpoint.status();
  const Manifest& manifest = checkpoint->manifest();
  if (absl::Status status = check(manifest, directory, assignment); !status.ok()) return status;
  absl::Status status = Load(*checkpoint, layout, engine);
  if (status.ok() && outer != nullptr) {
    // Another job's exchanges were not with this job's replicas.
    status = manifest.job() == assignment.key().job() ? outer->Load(*checkpoint) : outer->Restart();
  }
  if (!status.ok()) {
    status = AsErrorOfJob(status);
    return absl::Status(status.code(), absl::StrCat(directory, ": ", status.message()));
  }
  // A run on GPUs that goes on from a run on CPUs keeps its own.
  if (!manifest.attention().empty() && !engine.attention().empty()) {
    if (absl::Status status = engine.UseAttention(manifest.attention()); !status.ok()) return status;
  }
  return Resumed{manifest.step(), manifest.samples_consumed(), UpdateStateOf(manifest, assignment)};
}

// Whether an older checkpoint may help. One that may not be read can be whole: it ends the job instead of being passed
// over, since a repair of its mode costs less than the steps since an older one.
bool IsDamage(const absl::Status& status) { return absl::IsDataLoss(status) || absl::IsNotFound(status); }

// `own`: what this rank found itself.
LogMessage SkippedAs(const absl::Status& own) {
  if (own.ok()) return "checkpoint skipped; trying an older one";
  if (absl::IsNotFound(own)) return "missing checkpoint skipped; trying an older one";
  return "corrupt checkpoint skipped; trying an older one";
}

// Of FirstWhole's DataLoss on a rank that itself found one of the directories whole.
constexpr char kWholeHere[] = "muster.whole_here";
bool FoundOneWhole(const absl::Status& status) { return status.GetPayload(kWholeHere).has_value(); }

// The first of `directories` that every rank finds whole: for which `load` succeeds on all of them. DataLoss, on all
// ranks alike: there is none. Unavailable: only another rank has an error that ends the job.
absl::StatusOr<std::string> FirstWhole(const std::vector<std::string>& directories, const Assignment& assignment,
                                       collectives::Group* world,
                                       absl::FunctionRef<absl::Status(const std::string& directory)> load) {
  std::vector<std::string> causes;
  bool whole_here = false;
  for (const std::string& directory : directories) {
    const absl::Status loaded = load(directory);
    // Two collectives on every rank: first for errors that end the job, then for damage to this checkpoint.
    const absl::Status own = IsDamage(loaded) ? absl::OkStatus() : loaded;
    absl::Status all = Agree(world, assignment.device(), own,
                             absl::UnavailableError(absl::StrCat("another rank cannot resume from ", directory,
                                                                 "; its own message says why")));
    if (!all.ok()) return all;
    all = Agree(
        world, assignment.device(), loaded,
        absl::DataLossError(absl::StrCat(directory, ": another rank does not find it whole; its own log says why")));
    if (all.ok()) return directory;
    if (!IsDamage(all)) return all;
    whole_here = whole_here || loaded.ok();
    LogError(SkippedAs(loaded), {{"checkpoint", directory}, {"error", all.message()}});
    causes.emplace_back(all.message());
  }
  absl::Status none = absl::DataLossError(absl::StrCat("no whole checkpoint is left: ", absl::StrJoin(causes, "; ")));
  if (whole_here) none.SetPayload(kWholeHere, absl::Cord());
  return none;
}

// What a rank ends with: where only other ranks miss the checkpoints or find them damaged, its node is not at fault.
// `before`: of checkpoints that were tried before.
absl::Status AsErrorOfRank(const absl::Status& status, const absl::Status& before = absl::OkStatus()) {
  if (!absl::IsDataLoss(status)) return status;
  for (const absl::Status& lost : {before, status}) {
    if (FoundOneWhole(lost)) return absl::UnavailableError(lost.message());
  }
  return status;
}

absl::StatusOr<Resumed> ResumeFromFirst(const std::vector<std::string>& directories, Check check,
                                        const Assignment& assignment, collectives::Group* world,
                                        const strategies::Layout& layout, engine::Engine& engine, OuterState* outer) {
  absl::StatusOr<Resumed> resumed;
  const absl::StatusOr<std::string> whole =
      FirstWhole(directories, assignment, world, [&](const std::string& directory) {
        resumed = LoadFrom(directory, check, assignment, layout, engine, outer);
        return resumed.status();
      });
  if (!whole.ok()) return whole.status();
  if (absl::Status status = engine.SetProgress(resumed->step, resumed->update); !status.ok()) return status;
  LogInfo("resumed",
          {{"step", resumed->step}, {"checkpoint", *whole}, {"samples_consumed", resumed->samples_consumed}});
  return resumed;
}

// Checkpoints in checkpoint.path that are not in `published`, newest first. Numbers of generations skip when a backup
// is restored, and do not tell which was earlier when that happened twice.
std::vector<std::string> Unpublished(const Assignment& assignment, const std::vector<std::string>& published) {
  const std::string& path = assignment.spec().train().checkpoint().path();
  std::vector<std::string> folders;
  for (const checkpoint::StepName& step : checkpoint::List(path)) {
    std::string folder = absl::StrCat(path, "/", step.Directory());
    const bool known = std::find(published.begin(), published.end(), folder) != published.end();
    if (!known) folders.push_back(std::move(folder));
  }
  return folders;
}

// Without those that another job is known to have written. One without a readable manifest counts as this job's, so
// that its damage is logged.
std::vector<std::string> OwnUnpublished(const Assignment& assignment, const std::vector<std::string>& published) {
  std::vector<std::string> folders = Unpublished(assignment, published);
  std::erase_if(folders, [&](const std::string& folder) {
    return checkpoint::WriterOf(folder).value_or(assignment.key().job()) != assignment.key().job();
  });
  return folders;
}

// The first few of the folders that rank 0 sees: another job may still be writing there.
absl::StatusOr<std::vector<std::string>> SameOnAllRanks(const char* key, std::vector<std::string> folders,
                                                        const Assignment& assignment, collectives::Group* world,
                                                        collectives::KeyValue& rendezvous) {
  if (folders.size() > kOthersTried) folders.resize(kOthersTried);
  if (world == nullptr) return folders;
  if (assignment.key().rank() == 0) {
    if (absl::Status status = rendezvous.Set(key, absl::StrJoin(folders, "\n")); !status.ok()) return status;
    return folders;
  }
  const absl::StatusOr<std::string> list = rendezvous.Wait(key, CollectiveDeadline(assignment));
  if (!list.ok()) return list.status();
  return absl::StrSplit(*list, '\n', absl::SkipEmpty());
}

// The step folders of a path that the user names, as rank 0 sees them.
absl::StatusOr<std::vector<std::string>> ListedByRank0(const char* key, const std::string& path,
                                                       const Assignment& assignment, collectives::Group* world,
                                                       collectives::KeyValue& rendezvous) {
  const absl::Status all =
      Agree(world, assignment.device(), checkpoint::CheckListable(path),
            absl::UnavailableError(absl::StrCat("another rank may not list ", path, "; its own message says why")));
  if (!all.ok()) return all;
  return SameOnAllRanks(key, checkpoint::StepFolders(path), assignment, world, rendezvous);
}

// From what is in an adopted folder, but not in `published`. `lost`: why none of those will do; OK: there are none.
// None: the folder was not adopted, or there is nothing else in it.
absl::StatusOr<std::optional<Resumed>> FromAdopted(const std::vector<std::string>& published, const absl::Status& lost,
                                                   const Assignment& assignment, collectives::Group* world,
                                                   collectives::KeyValue& rendezvous, const strategies::Layout& layout,
                                                   engine::Engine& engine, OuterState* outer) {
  const std::string& path = assignment.spec().train().checkpoint().path();
  // Rank 0 decides for all: on a network file system the others may not see the adoption yet.
  std::vector<std::string> found;
  if (assignment.key().rank() == 0 && checkpoint::IsAdopted(path)) found = Unpublished(assignment, published);
  const absl::StatusOr<std::vector<std::string>> folders =
      SameOnAllRanks(kAdopted, std::move(found), assignment, world, rendezvous);
  if (!folders.ok()) return folders.status();
  if (folders->empty()) return std::nullopt;
  if (lost.ok()) {
    LogInfo("the coordinator knows no checkpoint of this job; resuming from its folder, which was adopted",
            {{"checkpoint_path", path}});
  } else {
    LogError("none of the checkpoints that the coordinator knows is left; resuming from the folder, which was adopted",
             {{"checkpoint_path", path}, {"error", lost.message()}});
  }
  absl::StatusOr<Resumed> resumed = ResumeFromFirst(*folders, CheckAdopted, assignment, world, layout, engine, outer);
  if (!resumed.ok()) return AsErrorOfRank(resumed.status(), lost);
  return *resumed;
}

}  // namespace

absl::StatusOr<Resumed> Resume(const Assignment& assignment, collectives::Group* world,
                               collectives::KeyValue& rendezvous, const strategies::Layout& layout,
                               engine::Engine& engine, OuterState* outer) {
  const std::vector<std::string> published = Candidates(assignment);
  absl::StatusOr<Resumed> resumed = ResumeFromFirst(published, CheckOwn, assignment, world, layout, engine, outer);
  if (!absl::IsDataLoss(resumed.status())) return resumed;
  const absl::StatusOr<std::optional<Resumed>> adopted =
      FromAdopted(published, resumed.status(), assignment, world, rendezvous, layout, engine, outer);
  if (!adopted.ok()) return adopted.status();
  if (adopted->has_value()) return **adopted;
  // A coordinator whose store was restored from a backup knows only checkpoints that were replaced by newer ones.
  std::vector<std::string> own;
  if (assignment.key().rank() == 0) own = OwnUnpublished(assignment, published);
  const absl::StatusOr<std::vector<std::string>> unpublished =
      SameOnAllRanks(kFolders, std::move(own), assignment, world, rendezvous);
  if (!unpublished.ok()) return unpublished.status();
  if (unpublished->empty()) return AsErrorOfRank(resumed.status());
  LogError(
      "none of the checkpoints that the coordinator knows is left; resuming from one that it does not know: was its "
      "store restored from a backup?",
      {{"error", resumed.status().message()}});
  absl::StatusOr<Resumed> unknown = ResumeFromFirst(*unpublished, CheckOwn, assignment, world, layout, engine, outer);
  if (!unknown.ok()) return AsErrorOfRank(unknown.status(), resumed.status());
  return unknown;
}

absl::StatusOr<std::optional<Resumed>> ResumeAdopted(const Assignment& assignment, collectives::Group* world,
                                                     collectives::KeyValue& rendezvous,
                                                     const strategies::Layout& layout, engine::Engine& engine) {
  if (assignment.spec().train().checkpoint().path().empty()) return std::nullopt;
  return FromAdopted({}, absl::OkStatus(), assignment, world, rendezvous, layout, engine, nullptr);
}

absl::StatusOr<Resumed> ResumeOther(const Assignment& assignment, collectives::Group* world,
                                    collectives::KeyValue& rendezvous, const strategies::Layout& layout,
                                    engine::Engine& engine) {
  const std::string& path = assignment.spec().train().checkpoint().resume_from();
  const absl::StatusOr<std::vector<std::string>> folders = ListedByRank0(kFolders, path, assignment, world, rendezvous);
  if (!folders.ok()) {
    return absl::Status(folders.status().code(), absl::StrCat("checkpoint.resume_from: ", folders.status().message()));
  }
  if (folders->empty()) {
    if (checkpoint::StepFolders(path).empty()) {
      return absl::NotFoundError(
          absl::StrCat("checkpoint.resume_from: ", path, " is not a checkpoint and holds none on this node"));
    }
    return absl::UnavailableError(absl::StrCat("checkpoint.resume_from: rank 0 does not see the checkpoints in ", path,
                                               ", which this rank sees"));
  }
  absl::StatusOr<Resumed> resumed = ResumeFromFirst(*folders, CheckOther, assignment, world, layout, engine, nullptr);
  if (!resumed.ok()) return AsErrorOfRank(resumed.status());
  return resumed;
}

namespace {

// Verifies every byte, so that a checkpoint that some rank finds damaged leaves nothing in the engine of another.
absl::StatusOr<checkpoint::Checkpoint> OpenWeights(const std::string& directory, const Train& train) {
  absl::StatusOr<checkpoint::Checkpoint> opened = OpenHere(directory, checkpoint::Verification::kEveryByte);
  if (!opened.ok()) return opened;
  const Manifest& manifest = opened->manifest();
  absl::Status status = checkpoint::CheckWeights(manifest.spec().train().model(), directory, train.model());
  if (status.ok()) status = checkpoint::CheckAdapters(manifest.inventory(), directory, train);
  if (status.ok()) {
    status = data::CheckTokenizer(train.data().tokens(), absl::StrCat("the data of ", directory),
                                  checkpoint::TokenizerOf(manifest));
  }
  if (!status.ok()) return status;
  return opened;
}

absl::Status LoadWeights(const Assignment& assignment, collectives::Group* world, collectives::KeyValue& rendezvous,
                         engine::Engine& engine) {
  const Train& train = assignment.spec().train();
  const std::string& path = train.model().from();
  const absl::StatusOr<std::vector<std::string>> folders = ListedByRank0(kWeights, path, assignment, world, rendezvous);
  if (!folders.ok()) return folders.status();
  if (folders->empty()) return AsErrorOfJob(Import(path, train.model(), engine));
  absl::StatusOr<checkpoint::Checkpoint> opened;
  const absl::StatusOr<std::string> whole = FirstWhole(*folders, assignment, world, [&](const std::string& directory) {
    opened = OpenWeights(directory, train);
    return AsErrorOfJob(opened.status());
  });
  return whole.ok() ? AsErrorOfJob(LoadParameters(*opened, engine)) : AsErrorOfRank(whole.status());
}

}  // namespace

absl::Status LoadInitial(const Assignment& assignment, collectives::Group* world, collectives::KeyValue& rendezvous,
                         engine::Engine& engine) {
  const absl::Status status = LoadWeights(assignment, world, rendezvous, engine);
  return status.ok() ? status : absl::Status(status.code(), absl::StrCat("model.from: ", status.message()));
}

}  // namespace muster::trainer
