#include "worker/tasks/language_model.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/sampler.h"
#include "data/token_file.h"
#include "models/inventory.h"
#include "models/sequence.h"

namespace muster::tasks {
namespace {

class Windows final : public Samples {
 public:
  Windows(data::TokenFile file, const data::Order& order, uint32_t ranks, uint32_t rank)
      : file_(std::move(file)), order_(order), ranks_(ranks), rank_(rank) {}

  uint64_t samples_per_epoch() const override { return order_.samples_per_epoch(); }
  absl::StatusOr<engine::Batch> Read(uint64_t first, uint64_t count) const override {
    std::vector<uint32_t> tokens;
    if (absl::Status s = data::ReadSamples(file_, order_, first, count, tokens); !s.ok()) return s;
    return TokenBatch(count, tokens, 0, ranks_, rank_);
  }

 private:
  const data::TokenFile file_;
  const data::Order order_;
  const uint32_t ranks_, rank_;  // that share each sequence
};

class LanguageModel final : public Task {
 public:
  std::string name() const override { return models::kLanguageModel; }

  absl::StatusOr<std::unique_ptr<Samples>> Open(const Inventory& inventory,
                                                const SourceOptions& options) const override {
    const auto at = [&](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat(options.field, ": ", status.message()));
    };
    const uint64_t context = models::WholeTargetsPerSample(inventory);
    absl::StatusOr<data::TokenFile> file = data::TokenFile::Open(options.path, context);
    if (!file.ok()) return at(file.status());
    if (absl::Status s = file->CheckVocabulary(models::Find(inventory.task(), models::kTargets).bound()); !s.ok())
      return at(s);
    const data::Order order({.tokens = file->tokens(),
                             .context = context,
                             .order = options.evaluation ? DATA_ORDER_SEQUENTIAL : options.data.order(),
                             .seed = options.seed});
    return std::make_unique<Windows>(*std::move(file), order, models::ContextRanks(inventory), options.context_rank);
  }

  std::vector<NamedMetric> Metrics(const Inventory&, const engine::Evaluation& evaluation) const override {
    NamedMetric perplexity;
    perplexity.set_name("perplexity");
    perplexity.set_value(std::exp(evaluation.loss));
    return {perplexity};
  }

  std::string samples_name() const override { return "windows"; }
  std::string targets_name() const override { return "tokens"; }
};

}  // namespace

const Task& LanguageModelTask() {
  static const LanguageModel task;
  return task;
}

engine::Batch TokenBatch(uint64_t samples, absl::Span<const uint32_t> windows, uint64_t global_samples, uint32_t ranks,
                         uint32_t rank) {
  const int64_t rows = static_cast<int64_t>(samples),
                columns = samples == 0 ? 1 : static_cast<int64_t>(windows.size() / samples);
  const at::Tensor ids = at::empty({rows, columns}, at::kLong);
  std::copy(windows.begin(), windows.end(), ids.mutable_data_ptr<int64_t>());
  const auto own = [&](int64_t from) {
    std::vector<at::Tensor> runs;
    for (const models::TokenRun& run : models::RunsOf(static_cast<uint64_t>(columns - 1), ranks, rank)) {
      runs.push_back(ids.narrow(1, from + static_cast<int64_t>(run.begin), static_cast<int64_t>(run.size)));
    }
    return runs.size() == 1 ? runs[0] : at::cat(runs, 1);
  };
  return {.samples = samples,
          .tensors = {{models::kInputs, own(0)}, {models::kTargets, own(1)}},
          .global_samples = global_samples};
}

absl::StatusOr<std::vector<float>> NextToken::Logits(absl::Span<const uint32_t> tokens) {
  const bool more = engine_->parameters_version() == cache_.parameters_version && tokens.size() > cached_.size() &&
                    std::equal(cached_.begin(), cached_.end(), tokens.begin());
  if (!more) {
    cache_ = {};
    cached_.clear();
  }
  const absl::Span<const uint32_t> fresh = tokens.subspan(cached_.size());
  const at::Tensor ids = at::empty({1, static_cast<int64_t>(fresh.size())}, at::kLong);
  std::copy(fresh.begin(), fresh.end(), ids.mutable_data_ptr<int64_t>());
  const absl::StatusOr<at::Tensor> logits = engine_->Predict(ids, &cache_);
  if (!logits.ok()) {
    cache_ = {};
    cached_.clear();
    return logits.status();
  }
  cached_.assign(tokens.begin(), tokens.end());
  return std::vector<float>(logits->const_data_ptr<float>(), logits->const_data_ptr<float>() + logits->numel());
}

}  // namespace muster::tasks
