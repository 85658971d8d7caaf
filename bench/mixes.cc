// Predicts, by planner and simulator, which mix of stages, schedule, strategy, microbatch and checkpointing
// `parallel: auto` chooses for a model on nodes of GPUs, and what the others would take.
//
//    bazel run //bench:mixes -- [--model llama-8b] [--ranks 8,64,256,1024] [--tokens 8388608] [--context 4096]
//                               [--hardware h100] [--memory 80GiB] [--compute bf16] [--most 5] [--table]
//
// Measures nothing. Each row is a mix: the first is the one that is chosen. `--tokens` are those of a whole step, so
// more ranks have fewer each. ">" marks lower bounds, by which a mix lost before it was planned. `--table` prints a row
// of Markdown for each number of ranks, for docs/parallelism.md.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "models/inventory.h"
#include "strategies/choose.h"
#include "strategies/hardware.h"

namespace {

using namespace muster;

struct MixOptions {
  std::string model = "llama-8b", hardware = "h100", compute = "bf16";
  std::vector<uint32_t> ranks = {8, 64, 256, 1024};
  uint64_t tokens = 8 << 20, memory_bytes = uint64_t{80} << 30;
  uint32_t context = 0;  // 0: the model's own
  size_t most = 5;       // mixes of each number of ranks; those of other numbers of stages come after the five fastest
  bool table = false;
};

absl::StatusOr<Train> JobOf(const MixOptions& options) {
  Train train;
  if (options.model == "gpt2-xl") {
    train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_XL);
  } else if (options.model == "llama-8b" || options.model == "llama-70b") {
    Llama& llama = *train.mutable_model()->mutable_llama();
    llama.set_size(options.model == "llama-8b" ? LLAMA_SIZE_8B : LLAMA_SIZE_70B);
  } else {
    return absl::InvalidArgumentError("--model: gpt2-xl, llama-8b or llama-70b");
  }
  if (options.context > 0 && options.model == "gpt2-xl")
    train.mutable_model()->mutable_gpt2()->set_context(options.context);
  if (options.context > 0 && options.model != "gpt2-xl")
    train.mutable_model()->mutable_llama()->set_context(options.context);
  const absl::StatusOr<Model> model = models::Resolve(train.model());
  if (!model.ok()) return model.status();
  *train.mutable_model() = *model;
  train.mutable_strategy()->mutable_auto_();
  train.mutable_parallel()->set_auto_(true);
  train.mutable_precision()->set_compute(options.compute == "bf16" ? DTYPE_BF16 : DTYPE_FP32);
  train.mutable_precision()->set_reduce(DTYPE_FP32), train.mutable_precision()->set_params(DTYPE_FP32);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_optimizer()->set_clip_norm(1);
  return train;
}

// The chosen mix and the next one, in Markdown. `flops`: of the step.
void PrintRow(const MixOptions& options, uint32_t ranks, const strategies::Choice& choice, double flops,
              const strategies::Hardware& hardware) {
  // GPUs are assumed to reach this part of their data sheets' rates.
  constexpr double kReached = 0.45;
  const strategies::Candidate& chosen = choice.candidates[choice.chosen];
  const strategies::Candidate* next = nullptr;
  for (const strategies::Candidate& candidate : choice.candidates) {
    if (&candidate != &chosen && next == nullptr) next = &candidate;
  }
  const double each = chosen.step_seconds * ranks;
  std::printf("| %u | %s | %s | %s | %.0f | %.0f%% | %s |\n", ranks,
              choice.fits ? chosen.name.c_str() : absl::StrCat("nothing fits: ", chosen.name).c_str(),
              FormatBytes(chosen.peak_bytes).c_str(), strategies::TimeText(chosen.step_seconds).c_str(),
              static_cast<double>(options.tokens) / each, 100 * flops / each / (hardware.bf16_flops / kReached),
              next == nullptr ? "" : absl::StrCat(next->name, ": ", next->lost).c_str());
}

absl::Status PrintMixes(const MixOptions& options) {
  const absl::StatusOr<strategies::Hardware> hardware = strategies::FindHardware(options.hardware);
  if (!hardware.ok()) return hardware.status();
  absl::StatusOr<Train> train = JobOf(options);
  if (!train.ok()) return train.status();
  const absl::StatusOr<Inventory> inventory = models::MakeInventory(train->model(), hardware->device);
  if (!inventory.ok()) return inventory.status();
  const uint64_t sequences = options.tokens / models::TargetsPerSample(*inventory);
  train->mutable_batch()->set_sequences(static_cast<uint32_t>(sequences));
  std::printf("%s, %llu sequences a step, compute %s, slots of %s\n%s\n\n", options.model.c_str(),
              static_cast<unsigned long long>(sequences), options.compute.c_str(),
              FormatBytes(options.memory_bytes).c_str(), hardware->assumptions.c_str());
  const double flops = models::TrainingFlops(*inventory) * static_cast<double>(sequences);
  if (options.table) {
    std::printf(
        "| GPUs | mix | memory a GPU | step | tokens/s a GPU | MFU | next, and why not "
        "|\n|---|---|---|---|---|---|---|\n");
  } else {
    std::printf("%5s  %-90s %10s %12s %10s  %s\n", "RANKS", "MIX", "STEP", "TOKENS/S", "PEAK", "WHY NOT");
  }
  for (const uint32_t ranks : options.ranks) {
    const auto places = strategies::FullNodes(ranks, hardware->ranks_per_node, options.memory_bytes);
    strategies::Budget budget;
    const auto before = std::chrono::steady_clock::now();
    const auto choice = strategies::Choose(*train, *inventory, places, *hardware, &budget);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - before;
    if (!choice.ok()) return choice.status();
    if (options.table) {
      PrintRow(options, ranks, *choice, flops, *hardware);
      continue;
    }
    std::vector<const strategies::Candidate*> rows = {&choice->candidates[choice->chosen]};
    for (const strategies::Candidate& candidate : choice->candidates) {
      if (&candidate != rows[0] && rows.size() < options.most) rows.push_back(&candidate);
    }
    for (const strategies::Candidate* row : rows) {
      const char* bound = row->least ? "> " : "";
      const double rate = static_cast<double>(options.tokens) / row->step_seconds;
      std::printf("%5u  %-90s %10s %12s %10s  %s\n", ranks, row->name.c_str(),
                  absl::StrCat(bound, strategies::TimeText(row->step_seconds)).c_str(),
                  row->unfit.empty() && !row->least ? absl::StrCat(static_cast<uint64_t>(rate)).c_str() : "-",
                  absl::StrCat(bound, FormatBytes(row->peak_bytes)).c_str(),
                  row->lost.empty() ? choice->fits ? "" : row->unfit.c_str() : row->lost.c_str());
    }
    if (!choice->stopped.empty()) std::printf("       %s\n", choice->stopped.c_str());
    std::printf("       planned in %.2f s, with %.0f%% of the planning budget\n", took.count(),
                100.0 * static_cast<double>(budget.spent()) / static_cast<double>(budget.spent() + budget.left()));
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  MixOptions options;
  CLI::App app("Predicted mixes of parallelism by number of GPUs");
  app.add_option("--model", options.model, "gpt2-xl, llama-8b or llama-70b")->capture_default_str();
  app.add_option("--ranks", options.ranks)->delimiter(',')->capture_default_str();
  app.add_option("--tokens", options.tokens, "of a step")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--context", options.context, "tokens of a sequence; 0: the model's own");
  app.add_option("--hardware", options.hardware)->capture_default_str();
  app.add_option("--compute", options.compute)->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  app.add_option("--memory", options.memory_bytes, "of a slot")->transform(CLI::AsSizeValue(false));
  app.add_flag("--table", options.table, "a row of Markdown for each number of ranks");
  app.add_option("--most", options.most, "mixes of each number of ranks")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = PrintMixes(options);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
