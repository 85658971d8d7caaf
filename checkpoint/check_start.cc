#include "checkpoint/check_start.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hugging_face.h"
#include "models/family.h"
#include "models/inventory.h"

namespace muster::checkpoint {
namespace {

// The newest whole one of `folders`.
absl::StatusOr<Checkpoint> OpenHeaders(const std::vector<std::string>& folders) {
  absl::StatusOr<Opened> opened = OpenFirstWhole(folders, Verification::kAsRead);
  if (!opened.ok()) return opened.status();
  return std::move(opened->checkpoint);
}

std::string HowToMerge(const std::string& directory) {
  return absl::StrCat("merge the checkpoint's adapters into its weights with `muster export ", directory,
                      " OUT`, and set model.from to OUT");
}

struct Adapter {
  uint64_t rank = 0;
  double scale = 0;

  std::string Describe() const { return absl::StrCat("rank ", rank, " and alpha ", scale * static_cast<double>(rank)); }
  bool operator==(const Adapter&) const = default;
};

// By the weight that each is added to.
std::map<std::string, Adapter> AdaptersOf(const Inventory& inventory) {
  std::map<std::string, Adapter> adapters;
  for (const Unit& unit : inventory.units()) {
    std::map<std::string, uint64_t> rows;
    for (const Tensor& tensor : unit.tensors()) rows[tensor.name()] = tensor.shape_size() > 0 ? tensor.shape(0) : 0;
    for (const Tensor& tensor : unit.tensors()) {
      if (tensor.has_low_rank()) adapters[tensor.name()] = {rows[tensor.low_rank().a()], tensor.low_rank().scale()};
    }
  }
  return adapters;
}

}  // namespace

// The data order depends only on the fields compared here and the tokens. If they match, each sample is used once an
// epoch.
absl::Status CheckSameRun(const Manifest& manifest, const std::string& directory, const Train& job) {
  const Train& theirs = manifest.spec().train();
  const auto refuse = [&](auto... why) { return absl::InvalidArgumentError(absl::StrCat(directory, " ", why...)); };
  if (absl::Status status = CheckWeights(theirs.model(), directory, job.model()); !status.ok()) return status;
  const std::string instead = "; to start a new run from its weights, use model.from";
  // Which tensors have optimizer state.
  if (theirs.lora().SerializeAsString() != job.lora().SerializeAsString()) {
    const std::string weights = theirs.has_lora() ? "; to start a new run, " + HowToMerge(directory) : instead;
    return refuse("has other adapters than this job's lora", weights);
  }
  if (!std::equal(theirs.freeze().begin(), theirs.freeze().end(), job.freeze().begin(), job.freeze().end())) {
    return refuse("was trained with another freeze than this job's", instead);
  }
  // Some families' weights do not depend on the size of a sample, but the data order does.
  const absl::StatusOr<Inventory> inventory = models::MakeInventory(job.model()),
                                  other = models::MakeInventory(theirs.model());
  if (!inventory.ok()) return inventory.status();
  if (!other.ok()) return other.status();
  const std::string their_samples = models::DescribeSample(other->task()),
                    our_samples = models::DescribeSample(inventory->task());
  if (their_samples != our_samples) {
    return refuse("has samples of ", their_samples, "; this job of ", our_samples, ": the data order would differ",
                  instead);
  }
  if (theirs.optimizer().kind_case() != job.optimizer().kind_case()) {
    return refuse("has no state for this job's optimizer.kind", instead);
  }
  if (theirs.seed() != job.seed()) {
    return refuse("has seed ", theirs.seed(), ", this job ", job.seed(), ": the data order would differ", instead);
  }
  if (theirs.data().order() != job.data().order()) {
    return refuse("has another data.order than this job: some samples would be used twice and others never", instead);
  }
  if (manifest.step() >= job.steps()) {
    return refuse("has step ", manifest.step(), " done, and this job ends with step ", job.steps(),
                  ": set steps higher", instead);
  }
  return absl::OkStatus();
}

absl::Status CheckWeights(const Model& theirs, const std::string& directory, const Model& job) {
  const absl::Status same = models::CheckSame(theirs, job);
  if (same.ok()) return same;
  return absl::InvalidArgumentError(absl::StrCat(directory, " is of another model: ", same.message()));
}

absl::Status CheckAdapters(const Inventory& theirs, const std::string& directory, const Train& job) {
  const std::map<std::string, Adapter> adapters = AdaptersOf(theirs);
  if (adapters.empty()) return absl::OkStatus();
  const absl::StatusOr<Inventory> inventory = models::MakeInventory(job);
  if (!inventory.ok()) return inventory.status();
  const std::map<std::string, Adapter> ours = AdaptersOf(*inventory);
  for (const auto& [weight, adapter] : adapters) {
    const auto own = ours.find(weight);
    if (own != ours.end() && own->second == adapter) continue;
    const std::string instead = own == ours.end() ? "none there" : "one with " + own->second.Describe();
    return absl::InvalidArgumentError(absl::StrCat(directory, " has an adapter of ", weight, " with ",
                                                   adapter.Describe(), ", and this job has ", instead,
                                                   ": give this job the same lora, or ", HowToMerge(directory)));
  }
  return absl::OkStatus();
}

absl::Status CheckConfig(const Model& theirs, const std::string& directory, const Model& job) {
  const absl::Status same = models::CheckSame(theirs, job);
  if (same.ok()) return same;
  return absl::InvalidArgumentError(absl::StrCat(directory, "/", kConfigFile, " says ", same.message()));
}

std::optional<TokenizerOrigin> TokenizerOf(const Manifest& manifest) {
  if (!manifest.has_tokenizer()) return std::nullopt;
  return manifest.tokenizer();
}

absl::StatusOr<Manifest> CheckResumeFrom(const std::string& path, const Train& job) {
  if (absl::Status status = CheckListable(path); !status.ok()) return status;
  const std::vector<std::string> folders = StepFolders(path);
  if (folders.empty()) return absl::NotFoundError(absl::StrCat(path, " is not a checkpoint and holds none"));
  const absl::StatusOr<Checkpoint> checkpoint = OpenHeaders(folders);
  if (!checkpoint.ok()) return checkpoint.status();
  const Manifest& manifest = checkpoint->manifest();
  if (absl::Status status = CheckSameRun(manifest, checkpoint->directory(), job); !status.ok()) return status;
  return manifest;
}

absl::StatusOr<Manifest> CheckModelFrom(const std::string& path, const Train& job) {
  if (absl::Status status = CheckListable(path); !status.ok()) return status;
  const std::vector<std::string> folders = StepFolders(path);
  if (folders.empty()) {
    const absl::StatusOr<HuggingFaceModel> model = HuggingFaceModel::Open(path);
    if (!model.ok()) return model.status();
    if (absl::Status status = CheckConfig(model->model(), path, job.model()); !status.ok()) return status;
    return Manifest();
  }
  const absl::StatusOr<Checkpoint> checkpoint = OpenHeaders(folders);
  if (!checkpoint.ok()) return checkpoint.status();
  const Manifest& manifest = checkpoint->manifest();
  const std::string& directory = checkpoint->directory();
  absl::Status status = CheckWeights(manifest.spec().train().model(), directory, job.model());
  if (status.ok()) status = CheckAdapters(manifest.inventory(), directory, job);
  if (!status.ok()) return status;
  return manifest;
}

}  // namespace muster::checkpoint
