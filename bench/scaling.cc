// Predicts the step time of every strategy on 1 to 1,024 ranks, each with the same share of the batch, by the
// simulator.
//
//    bazel run //bench:scaling -- [--model xl] [--hardware h100] [--sequences 8] [--microbatch 8] [--compute bf16]
//                                 [--memory 80GiB] [--least 1] [--most 1024] [--ranks-per-node 8] [--json]
//
// With --stages 8,16,64 in place of strategies: the schedules of pipelines with so many stages of one rank each,
// --sequences as microbatches of one (times the stages), kept activations or --recompute. The bubble is that of the
// stage that computes longest; GiB those of the stage that needs most.
//
// Measures nothing. A row states the part of the step that does not overlap with compute, the tokens per second, and
// those per rank relative to one rank that holds everything; "-" does not fit into a slot.
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "models/inventory.h"
#include "strategies/cost.h"
#include "strategies/defaults.h"
#include "strategies/fit.h"
#include "strategies/hardware.h"

namespace {

using namespace muster;

struct Options {
  std::string model = "xl", hardware = "h100", compute = "bf16";
  uint32_t sequences = 8, microbatch = 8, most = 1024;
  uint32_t layers = 0, heads = 0, width = 0, vocabulary = 0, context = 0;  // 0: the model's
  uint32_t least = 1;
  uint32_t ranks_per_node = 0;  // 0: the hardware's
  uint32_t shard_ranks = 0;     // of hybrid; 0: those of a node
  // Measured values, of ranks that work at the same time, in place of the hardware's; 0: the hardware's.
  double flops = 0, memory_bytes_per_second = 0, link_bytes_per_second = 0, link_seconds = 0;
  uint64_t memory_bytes = uint64_t{80} << 30;
  std::vector<uint32_t> stages;  // of pipelines
  bool recompute = false;
  bool json = false;
  bool ops = false;       // of pipelines, with json: when each op begins and ends
  std::string computing;  // of pipelines: a file with seconds of the ops that compute
};

std::vector<Strategy> Strategies(const Options& options) {
  std::vector<Strategy> all(6);
  all[0].mutable_ddp();
  all[1].mutable_zero()->set_stage(1);
  all[2].mutable_zero()->set_stage(2);
  all[3].mutable_fsdp()->set_reshard(RESHARD_SHARD_GRAD_OP);
  all[4].mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD);
  all[5].mutable_fsdp()->set_reshard(RESHARD_HYBRID);
  if (options.shard_ranks > 0) all[5].mutable_fsdp()->set_shard_ranks(options.shard_ranks);
  for (Strategy& strategy : all) strategies::FillDefaults(Optimizer(), strategy);
  return all;
}

absl::StatusOr<Train> TrainOf(const Options& options, uint32_t ranks) {
  Train train;
  Gpt2Size size;
  std::string name = absl::StrCat("GPT2_SIZE_", options.model);
  for (char& c : name) c = static_cast<char>(std::toupper(c));
  if (!Gpt2Size_Parse(name, &size)) return absl::InvalidArgumentError("--model: tiny, small, medium, large or xl");
  Gpt2& gpt2 = *train.mutable_model()->mutable_gpt2();
  gpt2.set_size(size);
  if (options.layers > 0) gpt2.set_layers(options.layers);
  if (options.heads > 0) gpt2.set_heads(options.heads);
  if (options.width > 0) gpt2.set_width(options.width);
  if (options.vocabulary > 0) gpt2.set_vocabulary(options.vocabulary);
  if (options.context > 0) gpt2.set_context(options.context);
  train.mutable_batch()->set_sequences(options.sequences * ranks);
  train.mutable_batch()->set_microbatch(options.microbatch);
  train.mutable_precision()->set_compute(options.compute == "bf16" ? DTYPE_BF16 : DTYPE_FP32);
  train.mutable_precision()->set_reduce(DTYPE_FP32);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_optimizer()->set_clip_norm(1);
  return train;
}

struct Row {
  std::string strategy;
  uint32_t ranks = 0;
  uint64_t peak_bytes = 0;
  bool fits = true;
  double tokens_per_second = 0;
  Timeline timeline;
};

absl::StatusOr<Row> Predict(const Options& options, const strategies::Hardware& hardware, const Strategy& strategy,
                            uint32_t ranks) {
  absl::StatusOr<Train> train = TrainOf(options, ranks);
  if (!train.ok()) return train.status();
  *train->mutable_strategy() = strategy;
  const auto inventory = models::MakeInventory(train->model(), hardware.device);
  if (!inventory.ok()) return inventory.status();
  const std::vector<RankPlace> places = strategies::FullNodes(ranks, hardware.ranks_per_node, options.memory_bytes);
  const auto memory_plan = strategies::PlanMemory(*train, *inventory, places);
  if (!memory_plan.ok()) return memory_plan.status();
  Row row{.strategy = strategies::NameOf(*train), .ranks = ranks, .peak_bytes = memory_plan->peak()};
  row.fits = strategies::WhyUnfit(*memory_plan, places).empty();
  row.timeline =
      strategies::PredictStep(*train, *inventory, memory_plan->layout, memory_plan->programs, places, hardware)[0]
          .timeline;
  const double tokens = static_cast<double>(uint64_t{options.sequences} * ranks * models::TargetsPerSample(*inventory));
  row.tokens_per_second = tokens / row.timeline.seconds;
  return row;
}

struct PipelineRow {
  const char* name;
  PipelineSchedule schedule;
  uint32_t chunks;
};
constexpr PipelineRow kPipelines[] = {{"gpipe", PIPELINE_SCHEDULE_GPIPE, 1},
                                      {"1f1b", PIPELINE_SCHEDULE_1F1B, 1},
                                      {"interleaved, 2 chunks", PIPELINE_SCHEDULE_INTERLEAVED, 2},
                                      {"zero bubble, ZB-H1", PIPELINE_SCHEDULE_ZERO_BUBBLE, 1},
                                      {"zero bubble, ZB-V", PIPELINE_SCHEDULE_ZERO_BUBBLE, 2}};

// By stage: each op's name, stream, begin and end in seconds.
nlohmann::ordered_json OpsOf(const Inventory& inventory, const strategies::Layout& layout,
                             absl::Span<const strategies::RankProgram> programs,
                             absl::Span<const strategies::Predicted> predicted) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (uint32_t stage = 0; stage < programs.size(); ++stage) {
    const strategies::StageModel model(inventory, layout, stage);
    nlohmann::ordered_json ops = nlohmann::ordered_json::array();
    for (size_t i = 0; i < programs[stage].schedule.ops.size(); ++i) {
      const Op& op = programs[stage].schedule.ops[i];
      const OpTime& time = predicted[stage].timeline.ops[i];
      ops.push_back({Print(op, model.inventory()), Name(op.stream), time.begin, time.end});
    }
    stages.push_back(std::move(ops));
  }
  return stages;
}

// With the file's seconds in place of the model's: by schedule and stage, of the ops that compute, in their order.
absl::Status Replace(const nlohmann::json& seconds, const strategies::Hardware& hardware,
                     absl::Span<const strategies::RankProgram> programs,
                     std::vector<strategies::Predicted>& predicted) {
  std::vector<StageCosts> stages;
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    const Schedule& schedule = programs[stage].schedule;
    size_t next = 0;
    for (size_t i = 0; i < schedule.ops.size(); ++i) {
      if (schedule.ops[i].stream != Stream::kCompute) continue;
      if (next == seconds[stage].size()) return absl::InvalidArgumentError("--computing: too few ops");
      predicted[stage].costs[i] = {.latency = seconds[stage][next++].get<double>()};
    }
    if (next != seconds[stage].size()) return absl::InvalidArgumentError("--computing: too many ops");
    stages.push_back({&schedule, &predicted[stage].costs});
  }
  std::vector<Timeline> timelines = SimulateStages(stages, hardware.sharing);
  for (size_t stage = 0; stage < programs.size(); ++stage) predicted[stage].timeline = std::move(timelines[stage]);
  return absl::OkStatus();
}

absl::Status RunPipelines(const Options& options, const strategies::Hardware& hardware) {
  nlohmann::json measured;
  if (!options.computing.empty()) std::ifstream(options.computing) >> measured;
  nlohmann::ordered_json tree = {{"hardware", hardware.name}, {"assumptions", hardware.assumptions}};
  if (!options.json) {
    std::printf("GPT-2 %s, %u microbatches of a sequence for each stage, compute %s%s\n%s\n\n", options.model.c_str(),
                options.sequences, options.compute.c_str(), options.recompute ? ", recomputed" : "",
                hardware.assumptions.c_str());
    std::printf("%6s  %-22s %10s %8s %12s\n", "STAGES", "SCHEDULE", "STEP ms", "BUBBLE", "GiB A RANK");
  }
  for (const uint32_t stages : options.stages) {
    for (const PipelineRow& row : kPipelines) {
      absl::StatusOr<Train> train = TrainOf(options, stages);
      if (!train.ok()) return train.status();
      train->mutable_batch()->set_microbatch(1);
      train->mutable_strategy()->mutable_single();
      train->mutable_parallel()->set_pipeline(stages);
      train->mutable_pipeline()->set_schedule(row.schedule), train->mutable_pipeline()->set_chunks(row.chunks);
      train->set_activation_checkpointing(options.recompute);
      const auto inventory = models::MakeInventory(train->model(), hardware.device);
      if (!inventory.ok()) return inventory.status();
      const std::vector<RankPlace> places =
          strategies::FullNodes(stages, hardware.ranks_per_node, options.memory_bytes);
      const auto plan = strategies::PlanMemory(*train, *inventory, places);
      if (!plan.ok()) return plan.status();
      std::vector<strategies::Predicted> predicted =
          strategies::PredictStep(*train, *inventory, plan->layout, plan->programs, places, hardware);
      if (measured.contains(row.name)) {
        if (absl::Status s = Replace(measured[row.name], hardware, plan->programs, predicted); !s.ok()) return s;
      }
      const Timeline& slowest = predicted[strategies::SlowestStage(predicted)].timeline;
      const double computing = slowest.busy[static_cast<size_t>(Stream::kCompute)];
      tree["rows"].push_back({{"stages", stages},
                              {"schedule", row.name},
                              {"step_seconds", slowest.seconds},
                              {"bubble", 1 - computing / slowest.seconds},
                              {"peak_bytes", plan->peak()}});
      if (options.ops) {
        tree["rows"].back()["ops"] = OpsOf(*inventory, plan->layout, plan->programs, predicted);
      }
      if (options.json) continue;
      std::printf("%6u  %-22s %10.1f %7.1f%% %12.2f\n", stages, row.name, 1e3 * slowest.seconds,
                  100 * (1 - computing / slowest.seconds), static_cast<double>(plan->peak()) / (1 << 30));
    }
  }
  if (options.json) std::printf("%s\n", tree.dump(2).c_str());
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  auto hardware = strategies::FindHardware(options.hardware);
  if (!hardware.ok()) return hardware.status();
  if (options.ranks_per_node > 0) hardware->ranks_per_node = options.ranks_per_node;
  if (options.flops > 0) {
    hardware->fp32_flops = hardware->bf16_flops = options.flops;
    hardware->at_full_speed = 0;  // the measured rates already include the sharing of cores
    hardware->assumptions = "measured rates of GEMMs, memory and links";
  }
  if (options.memory_bytes_per_second > 0) hardware->memory_bytes_per_second = options.memory_bytes_per_second;
  if (options.link_bytes_per_second > 0) hardware->inside.bytes_per_second = options.link_bytes_per_second;
  if (options.link_seconds > 0) hardware->inside.seconds = hardware->inside.ring_seconds = options.link_seconds;
  if (!options.stages.empty()) return RunPipelines(options, *hardware);
  nlohmann::ordered_json tree = {{"hardware", hardware->name}, {"assumptions", hardware->assumptions}};
  if (!options.json) {
    std::printf("GPT-2 %s, %u sequences a rank in microbatches of %u, compute %s, slots of %s\n%s\n\n",
                options.model.c_str(), options.sequences, options.microbatch, options.compute.c_str(),
                FormatBytes(options.memory_bytes).c_str(), hardware->assumptions.c_str());
    std::printf("%-20s %6s %10s %10s %12s %14s %11s\n", "STRATEGY", "RANKS", "STEP ms", "EXPOSED ms", "GiB A RANK",
                "TOKENS/S", "EFFICIENCY");
  }
  double alone = 0;
  for (const Strategy& strategy : Strategies(options)) {
    for (uint32_t ranks = options.least; ranks <= options.most; ranks *= 2) {
      const absl::StatusOr<Row> row = Predict(options, *hardware, strategy, ranks);
      if (!row.ok()) return row.status();
      if (alone == 0) alone = row->tokens_per_second;
      const double efficiency = row->tokens_per_second / ranks / alone;
      tree["rows"].push_back({{"strategy", row->strategy},
                              {"ranks", ranks},
                              {"fits", row->fits},
                              {"step_seconds", row->timeline.seconds},
                              {"exposed_seconds", row->timeline.exposed},
                              {"peak_bytes", row->peak_bytes},
                              {"tokens_per_second", row->tokens_per_second},
                              {"efficiency", efficiency}});
      if (options.json) continue;
      const double gib = static_cast<double>(row->peak_bytes) / (1 << 30);
      if (row->fits) {
        std::printf("%-20s %6u %10.1f %10.1f %12.2f %14.0f %10.1f%%\n", row->strategy.c_str(), ranks,
                    1e3 * row->timeline.seconds, 1e3 * row->timeline.exposed, gib, row->tokens_per_second,
                    100 * efficiency);
      } else {
        std::printf("%-20s %6u %10s %10s %12.2f %14s %11s\n", row->strategy.c_str(), ranks, "-", "-", gib, "-", "-");
      }
    }
  }
  if (options.json) std::printf("%s\n", tree.dump(2).c_str());
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Predicted step times of every strategy on 1 to 1,024 ranks");
  app.add_option("--model", options.model)->capture_default_str();
  app.add_option("--hardware", options.hardware)->capture_default_str();
  app.add_option("--compute", options.compute)->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  app.add_option("--sequences", options.sequences, "a rank")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--microbatch", options.microbatch)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--least", options.least, "ranks")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--most", options.most, "ranks")->check(CLI::Range(1, 4096))->capture_default_str();
  app.add_option("--layers", options.layers, "instead of the model's");
  app.add_option("--heads", options.heads);
  app.add_option("--width", options.width);
  app.add_option("--vocabulary", options.vocabulary);
  app.add_option("--context", options.context);
  app.add_option("--ranks-per-node,--ranks_per_node", options.ranks_per_node, "instead of the hardware's");
  app.add_option("--shard-ranks,--shard_ranks", options.shard_ranks, "that hold one copy of the model, for hybrid");
  app.add_option("--flops", options.flops, "measured FLOP/s of GEMMs");
  app.add_option("--memory-rate,--memory_rate", options.memory_bytes_per_second, "bytes a second, measured");
  app.add_option("--link-rate,--link_rate", options.link_bytes_per_second, "bytes a second into a rank, measured");
  app.add_option("--link-seconds,--link_seconds", options.link_seconds, "of a hop, measured");
  app.add_option("--memory", options.memory_bytes, "of a slot")->transform(CLI::AsSizeValue(false));
  app.add_option("--stages", options.stages, "of pipelines, whose schedules are compared")->delimiter(',');
  app.add_flag("--recompute", options.recompute, "of pipelines: activation checkpointing");
  app.add_flag("--json", options.json);
  app.add_option("--computing", options.computing,
                 "of pipelines: a file of measured seconds of ops, JSON by schedule and stage")
      ->check(CLI::ExistingFile);
  app.add_flag("--ops", options.ops, "of pipelines, with --json: when each op begins and ends");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = Run(options);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
