#include "worker/trainer/checkpointer.h"

#include <ATen/ops/full.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/trainer/weights.h"

namespace muster::trainer {

bool Checkpointer::writes() const {
  const RankRole& role = rank_.program.layout.roles[assignment_.key().rank()];
  return role.replica() == 0 && !assignment_.spec().train().checkpoint().path().empty();
}

absl::StatusOr<std::optional<checkpoint::Written>> Checkpointer::Write(uint64_t step, uint64_t samples_consumed) {
  Manifest manifest;
  manifest.set_job(assignment_.key().job());
  manifest.set_generation(assignment_.key().generation());
  manifest.set_step(step);
  manifest.set_samples_consumed(samples_consumed);
  *manifest.mutable_table() = rank_.program.layout.table;
  *manifest.mutable_spec() = assignment_.spec();
  *manifest.mutable_inventory() = rank_.program.inventory;
  auto written = WriteParts({step, manifest.generation()}, manifest);
  if (written.ok()) return written;
  return absl::Status(written.status().code(),
                      absl::StrCat("the checkpoint of step ", step,
                                   " failed, earlier ones are as they were: ", written.status().message()));
}

absl::StatusOr<std::optional<checkpoint::Written>> Checkpointer::WriteParts(const checkpoint::StepName& name,
                                                                            const Manifest& manifest) {
  const std::string& path = assignment_.spec().train().checkpoint().path();
  const bool first = assignment_.key().rank() == 0;
  const uint32_t shard = rank_.program.layout.roles[assignment_.key().rank()].shard();
  absl::Status status = rank_.engine->Pull();
  if (status.ok() && first) status = checkpoint::Begin(path, name);
  if (status = Agree(status); !status.ok()) return status;
  status = checkpoint::WriteShard(path, name, shard, PartsOf(*rank_.engine, Which::kAll)).status();
  status = Agree(status);
  if (!first) {
    if (!status.ok()) return status;
    return std::nullopt;
  }
  absl::StatusOr<checkpoint::Written> written =
      status.ok() ? checkpoint::Finish(path, manifest) : absl::StatusOr<checkpoint::Written>(status);
  if (written.ok()) return *written;
  checkpoint::Abandon(path, name);
  return written.status();
}

absl::Status Checkpointer::Agree(const absl::Status& own) {
  collectives::Group* const group = rank_.ranks.groups[kShardGroup];
  if (group == nullptr) return own;
  const at::Device device(assignment_.device() == DEVICE_CUDA ? at::kCUDA : at::kCPU);
  const at::Tensor failed = at::full({1}, own.ok() ? 0.0 : 1.0, at::TensorOptions(at::kDouble).device(device));
  const absl::Status told = group->AllReduce(failed)->Wait();
  if (!own.ok()) return own;
  if (!told.ok()) return told;
  if (failed.item<double>() == 0) return absl::OkStatus();
  return absl::UnavailableError("another rank could not write its part; its own message says why");
}

}  // namespace muster::trainer
