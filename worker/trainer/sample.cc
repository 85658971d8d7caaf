#include "worker/trainer/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "data/tokenizer_origin.h"
#include "models/inventory.h"
#include "worker/tasks/language_model.h"
#include "worker/tasks/task.h"

namespace muster::trainer {
namespace {

constexpr uint64_t kEvaluateSamples = 64;  // at a time

absl::Status CheckOptions(const SampleOptions& options, const Inventory& inventory, const data::Tokenizer* tokenizer) {
  const uint64_t vocabulary = models::Find(inventory.task(), models::kTargets).bound();
  if (tokenizer == nullptr && vocabulary != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's vocabulary is ", vocabulary, ", not bytes: give its tokenizer with --tokenizer DIR"));
  }
  if (tokenizer != nullptr && tokenizer->vocabulary() > vocabulary) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer has ", tokenizer->vocabulary(),
                                                   " tokens, the model's vocabulary is ", vocabulary,
                                                   ": they do not belong together"));
  }
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    return absl::InvalidArgumentError("temperature: must be 0 or more");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> Prompt(const SampleOptions& options, const Inventory& inventory,
                                             data::Tokenizer* tokenizer) {
  std::vector<uint32_t> tokens;
  if (tokenizer == nullptr) {
    for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
    if (tokens.empty()) tokens.push_back('\n');
  } else {
    tokens = tokenizer->before_text();
    absl::Status status = tokenizer->Encode(options.prompt, tokens);
    if (tokens.empty() && tokenizer->end_of_text().has_value()) tokens.push_back(*tokenizer->end_of_text());
    if (tokens.empty() && status.ok()) status = tokenizer->Encode("\n", tokens);
    if (status.ok() && tokens.empty()) status = absl::InvalidArgumentError("the prompt has no tokens");
    if (!status.ok()) return status;
  }
  const uint64_t vocabulary = models::Find(inventory.task(), models::kTargets).bound();
  for (const uint32_t token : tokens) {
    if (token < vocabulary) continue;
    return absl::InvalidArgumentError(absl::StrCat("the prompt has token ", token, ", the model's vocabulary is ",
                                                   vocabulary, ": the tokenizer belongs to another model"));
  }
  return tokens;
}

}  // namespace

uint32_t Choose(absl::Span<const float> logits, double temperature, uint32_t top_k, double uniform) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0 || top_k == 1) return static_cast<uint32_t>(likeliest - logits.begin());
  std::vector<uint32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (top_k > 0 && top_k < ids.size()) {
    std::stable_sort(ids.begin(), ids.end(), [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
    ids.resize(top_k);
  }
  std::vector<double> weights(ids.size());
  double sum = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    weights[i] = std::exp((static_cast<double>(logits[ids[i]]) - *likeliest) / temperature);
    sum += weights[i];
  }
  double left = uniform * sum;
  for (size_t i = 0; i < ids.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids.back();
}

absl::Status Sample(engine::Engine& engine, const Inventory& inventory, data::Tokenizer* tokenizer,
                    const SampleOptions& options, const std::function<bool(std::string_view)>& write) {
  if (inventory.task().name() != models::kLanguageModel) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's task is ", inventory.task().name(), ": only a language model can be sampled"));
  }
  if (absl::Status status = CheckOptions(options, inventory, tokenizer); !status.ok()) return status;
  absl::StatusOr<std::vector<uint32_t>> tokens = Prompt(options, inventory, tokenizer);
  if (!tokens.ok()) return tokens.status();
  std::mt19937_64 random(options.seed);
  tasks::NextToken next(&engine);
  for (uint64_t i = 0; i < options.tokens; ++i) {
    const size_t seen = std::min<size_t>(tokens->size(), models::WholeTargetsPerSample(inventory));
    absl::StatusOr<std::vector<float>> logits = next.Logits(absl::MakeConstSpan(*tokens).last(seen));
    if (!logits.ok()) return logits.status();
    // 53 bits, so that every build draws the same.
    const double uniform = std::ldexp(static_cast<double>(random() >> 11), -53);
    const uint32_t token = Choose(*logits, options.temperature, options.top_k, uniform);
    tokens->push_back(token);
    if (tokenizer != nullptr && tokenizer->end_of_text() == token) return absl::OkStatus();
    const std::string text =
        tokenizer == nullptr ? std::string(1, static_cast<char>(token)) : tokenizer->Decode({&token, 1});
    if (!write(text)) return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::StatusOr<Evaluated> Evaluate(InferenceModel& model, const std::string& path, uint64_t samples,
                                   const std::function<void(uint64_t done, uint64_t all)>& progress) {
  const absl::StatusOr<const tasks::Task*> task = tasks::TaskOf(model.inventory);
  if (!task.ok()) return task.status();
  if (absl::Status same = data::CheckTokenizer(path, "the data of the model", model.tokenizer); !same.ok()) return same;
  const auto source = (*task)->Open(model.inventory, {.field = "data", .path = path, .data = model.data});
  if (!source.ok()) return source.status();
  const uint64_t all = (*source)->samples_per_epoch(), count = samples == 0 ? all : std::min(samples, all);
  engine::Evaluation mean;
  for (uint64_t first = 0; first < count; first += kEvaluateSamples) {
    const uint64_t part = std::min(kEvaluateSamples, count - first);
    absl::StatusOr<engine::Batch> batch = (*source)->Read(first, part);
    if (!batch.ok()) return batch.status();
    batch->global_samples = part;
    const absl::StatusOr<engine::Evaluation> found = model.engine->Evaluate(*batch);
    if (!found.ok()) return found.status();
    mean.Add(*found, part);
    if (progress) progress(first + part, count);
  }
  mean.Divide(count);
  return Evaluated{.loss = mean.loss,
                   .metrics = (*task)->Metrics(model.inventory, mean),
                   .samples = count,
                   .targets = count * models::WholeTargetsPerSample(model.inventory),
                   .samples_name = (*task)->samples_name(),
                   .targets_name = (*task)->targets_name()};
}

std::string Describe(const Evaluated& evaluated, bool json) {
  std::string text =
      json ? absl::StrFormat(R"({"loss": %.9g)", evaluated.loss) : absl::StrFormat("loss %.6g", evaluated.loss);
  for (const NamedMetric& metric : evaluated.metrics) {
    const bool finite = std::isfinite(metric.value());
    absl::StrAppend(&text, json ? ", \"" : ", ", metric.name(), json ? "\": " : " ",
                    !finite ? json ? "null" : "too large to say"
                    : json  ? absl::StrFormat("%.9g", metric.value())
                            : absl::StrFormat("%.6g", metric.value()));
  }
  const bool one = evaluated.targets_name == evaluated.samples_name;
  if (json) {
    if (!one) absl::StrAppend(&text, ", \"", evaluated.targets_name, "\": ", evaluated.targets);
    absl::StrAppend(&text, ", \"", evaluated.samples_name, "\": ", evaluated.samples, "}");
  } else {
    absl::StrAppend(&text, ", over ");
    if (!one) absl::StrAppend(&text, evaluated.targets, " ", evaluated.targets_name, " in ");
    absl::StrAppend(&text, evaluated.samples, " ", evaluated.samples_name);
  }
  return text;
}

}  // namespace muster::trainer
