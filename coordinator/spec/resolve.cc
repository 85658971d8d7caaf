#include "coordinator/spec/resolve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/checkpoint_names.h"
#include "common/name.h"
#include "common/node/node_selector.h"
#include "common/rank_variables.h"
#include "common/step_bounds.h"
#include "common/time_limit.h"
#include "coordinator/core/job_paths.h"
#include "coordinator/spec/resolve_exec.h"
#include "models/family.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "strategies/compression.h"
#include "strategies/defaults.h"
#include "strategies/optimizer_plan.h"
#include "strategies/pipeline/stages.h"

namespace muster::spec {
namespace {

constexpr uint64_t kMaxCollectiveBytes = uint64_t{16} << 30, kMaxMeasurements = 10'000;  // of a bench
constexpr uint32_t kMaxSequences = 1u << 20;
constexpr size_t kMaxPathBytes = 4095;  // PATH_MAX without its zero
constexpr uint32_t kMaxPrefetch = 64;
constexpr double kMaxDetectionSeconds = 3600;
constexpr uint32_t kMaxCheckpointSeconds = 1'000'000;
constexpr uint32_t kMaxKeep = 1000;  // a job's row lists each kept checkpoint
constexpr int kMaxMilestones = 64;
constexpr uint32_t kMaxNewtonSchulzSteps = 99;  // torch.optim.Muon's bound
constexpr double kMostBeta2Decay = 100;
constexpr uint32_t kMaxLoraRank = 4096;
constexpr int kMaxPatterns = 256;
constexpr uint32_t kMaxStages = 256;
constexpr uint32_t kMaxTensorRanks = 64;  // more than a node has
constexpr uint32_t kMaxContextRanks = 64;
constexpr uint32_t kMaxChunks = 64;                // on each stage
constexpr double kLongestAxisTimeout = 24 * 3600;  // seconds
constexpr uint32_t kMaxReplicas = 16;              // of a run: they are stored with one commit
constexpr uint32_t kMaxFragments = 64;
// By default a stage has so many times as many microbatches as there are stages, if its share of the batch has as many
// sequences: it idles for less than a fifth of the step then (Huang et al. 2019, GPipe, section 2.3).
constexpr uint32_t kMicrobatchesAStage = 4;

// Collects errors; checking continues after each one.
class Resolver {
 public:
  Resolver(const Limits& limits, JobSpec& spec) : limits_(limits), spec_(spec) {}

  std::vector<SpecError> Run() {
    Header();
    if (spec_.has_exec()) {
      Resources_();
      ResolveExec(spec_, [this](const std::string& path, const std::string& message, const std::string& suggestion) {
        Error(path, message, suggestion);
      });
      return std::move(errors_);
    }
    Env();
    Resources_();
    if (spec_.workload_case() == JobSpec::WORKLOAD_NOT_SET) spec_.mutable_train();
    Train& train = *spec_.mutable_train();
    GroupRanges_(train);
    Model_(train);
    Data_(train);
    Parallel_(train);
    Batch_(train);
    Precision_(train);
    OnNonfinite_(*train.mutable_on_nonfinite());
    Optimizer_(train);
    Strategy_(train);
    if (train.has_offload()) Offload_(train);
    Communication_(train);
    if (train.has_sync()) Sync_(train);
    if (train.has_bench()) Bench_(train);
    Steps(train);
    Checkpoint_(train);
    Validation_(train);
    return std::move(errors_);
  }

 private:
  void Error(const std::string& path, const std::string& message, const std::string& suggestion = "") {
    SpecError& error = errors_.emplace_back();
    error.set_path(path);
    error.set_message(message);
    error.set_suggestion(suggestion);
  }

  void Header() {
    if (spec_.api_version().empty()) spec_.set_api_version("muster/v1");
    if (spec_.api_version() != "muster/v1") {
      Error("apiVersion", absl::StrCat("\"", spec_.api_version(), "\" is not supported"), "muster/v1");
    }
    if (spec_.kind().empty()) spec_.set_kind("Job");
    if (spec_.kind() != "Job") Error("kind", absl::StrCat("\"", spec_.kind(), "\" is not supported"), "Job");
    CheckName();
    if (!spec_.has_max_restarts()) spec_.set_max_restarts(3);
    if (!spec_.has_priority()) spec_.set_priority(0);
    Detection();
    if (spec_.time_limit().empty()) return;
    if (const auto limit = ParseTimeLimit(spec_.time_limit()); !limit.ok()) {
      Error("time_limit", std::string(limit.status().message()));
    }
  }

  // An omitted value stays absent, since a restarted coordinator may have another default.
  void Detection() {
    if (!spec_.has_detection_seconds()) return;
    const double seconds = spec_.detection_seconds(), least = absl::ToDoubleSeconds(limits_.timeouts.detection);
    if (std::isfinite(seconds) && seconds >= least && seconds <= kMaxDetectionSeconds) return;
    Error("detection_seconds", absl::StrCat("must be ", least, " (the coordinator's --detection) to ",
                                            kMaxDetectionSeconds, ", got ", seconds));
  }

  void Env() {
    if (spec_.env_size() > kMaxRankVariables) {
      return Error("env",
                   absl::StrCat("has ", spec_.env_size(), " variables, at most ", kMaxRankVariables, " are allowed"));
    }
    std::set<std::string> names;
    for (int i = 0; i < spec_.env_size(); ++i) {
      const EnvVar& variable = spec_.env(i);
      const std::string path = absl::StrCat("env[", i, "]");
      if (absl::Status s = CheckRankVariableName(variable.name(), VariableSource::kJob); !s.ok()) {
        Error(path + ".name", std::string(s.message()));
      } else if (!names.insert(variable.name()).second) {
        Error(path + ".name", absl::StrCat(variable.name(), " occurs twice: leave one out"));
      }
      if (absl::Status s = CheckRankVariableValue(variable.value()); !s.ok()) {
        Error(path + ".value", std::string(s.message()));
      }
    }
  }

  void CheckName() {
    const std::string& name = spec_.name();
    if (name.empty()) return Error("name", "missing");
    if (IsName(name)) return;
    Error("name",
          absl::StrCat("invalid job name \"", name, "\": use a-z, 0-9 and -, not at either end, at most 40 characters"),
          Nearest(name));
  }

  // The nearest valid name, as a suggestion.
  static std::string Nearest(const std::string& name) {
    std::string out;
    for (const char c : name.substr(0, 40)) {
      const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
      out += absl::ascii_isalnum(static_cast<unsigned char>(lower)) ? lower : '-';
    }
    while (!out.empty() && out.front() == '-') out.erase(0, 1);
    while (!out.empty() && out.back() == '-') out.pop_back();
    return out;
  }

  void Resources_() {
    Resources& r = *spec_.mutable_resources();
    if (!r.has_ranks()) r.set_ranks(1);
    if (!r.has_device()) r.set_device(DEVICE_AUTO);
    if (r.ranks() == 0) Error("resources.ranks", "must be at least 1, got 0");
    if (r.ranks() > limits_.max_ranks) {
      Error("resources.ranks",
            absl::StrCat("this coordinator runs jobs of at most ", limits_.max_ranks, " ranks, got ", r.ranks()));
    }
    MinRanks(r);
    Known("resources.device", Device_IsValid(r.device()) && r.device() != DEVICE_UNSPECIFIED);
    if (spec_.after_size() > 32) Error("after", absl::StrCat("at most 32 jobs are possible, got ", spec_.after_size()));
    if (std::any_of(spec_.after().begin(), spec_.after().end(),
                    [](const std::string& id) { return id.empty() || id.size() > 64; })) {
      Error("after", "expected ids of jobs");
    }
    Labels();
    if (!spec_.template_().empty() && !IsName(spec_.template_())) Error("template", "expected the name of a template");
    if (!r.has_placement()) r.set_placement(NODE_PLACEMENT_PACK);
    Known("resources.placement", NodePlacement_IsValid(r.placement()) && r.placement() != NODE_PLACEMENT_UNSPECIFIED);
    Topology_(r);
    if (r.node_selector_size() > 32) {
      Error("resources.node_selector", absl::StrCat("at most 32 are possible, got ", r.node_selector_size()));
    }
    for (const std::string& requirement : r.node_selector()) {
      if (const absl::Status status = CheckNodeRequirement(requirement); !status.ok()) {
        Error("resources.node_selector", std::string(status.message()));
        break;
      }
    }
  }

  void Topology_(const Resources& r) {
    constexpr int kMostLevels = 4;
    const Topology& topology = r.topology();
    std::set<std::string> keys;
    const auto check = [&](const std::string& key, const char* path) {
      if (const absl::Status status = CheckNodeLabelKey(key); !status.ok()) {
        Error(path, std::string(status.message()));
      } else if (!keys.insert(key).second) {
        Error(path, absl::StrCat("the key ", key, " is there twice"));
      }
    };
    if (!topology.required().empty()) check(topology.required(), "resources.topology.required");
    if (topology.preferred_size() > kMostLevels) {
      Error("resources.topology.preferred",
            absl::StrCat("at most ", kMostLevels, " are possible, got ", topology.preferred_size()));
    }
    for (const std::string& key : topology.preferred()) check(key, "resources.topology.preferred");
  }

  void Labels() {
    constexpr int kMostLabels = 64;
    auto& labels = *spec_.mutable_labels();
    if (labels.size() > kMostLabels) {
      Error("labels", absl::StrCat("at most ", kMostLabels, " are possible, got ", labels.size()));
    }
    std::set<std::string> keys;
    for (const std::string& label : labels) {
      if (const absl::Status status = CheckLabel(label); !status.ok()) {
        return Error("labels", std::string(status.message()));
      }
      if (!keys.insert(LabelKey(label)).second) {
        return Error("labels", absl::StrCat("the key ", LabelKey(label), " is there twice"));
      }
    }
    std::sort(labels.begin(), labels.end(),
              [](const std::string& a, const std::string& b) { return LabelKey(a) < LabelKey(b); });
  }

  void MinRanks(const Resources& r) {
    if (!r.has_min_ranks() || r.ranks() == 0) return;  // no ranks are an error of their own
    if (r.min_ranks() == 0 || r.min_ranks() > r.ranks()) {
      Error("resources.min_ranks", absl::StrCat("must be 1 to resources.ranks (", r.ranks(), "), got ", r.min_ranks()));
    } else if (r.min_ranks() < r.ranks() && !spec_.has_exec() && spec_.train().checkpoint().path().empty()) {
      Error("resources.min_ranks",
            "needs checkpoint.path: a job resumes from a checkpoint when its number of ranks changes");
    }
  }

  uint32_t Stages() const { return std::max(1u, spec_.train().parallel().pipeline()); }
  uint32_t TensorRanks() const { return std::max(1u, spec_.train().parallel().tensor()); }
  uint32_t ContextRanks() const { return std::max(1u, spec_.train().parallel().context()); }
  // As in Mesh: ranks of a stage with tokens of their own, and those, or groups of them, that divide the batch.
  uint32_t DataRanks(uint32_t ranks) const { return std::max(1u, ranks / Stages() / TensorRanks()); }
  uint32_t SampleRanks(uint32_t ranks) const { return std::max(1u, DataRanks(ranks) / ContextRanks()); }

  // Before the inventory is made, which finds whether the model and its sequences can be divided so.
  void GroupRanges_(Train& train) {
    const auto wrong = [&](const char* path, bool given, uint32_t ranks, uint32_t most) {
      if (!given || (ranks >= 1 && ranks <= most)) return false;
      Error(path, absl::StrCat("must be 1 to ", most, ", got ", ranks));
      return true;
    };
    const Parallel& p = train.parallel();
    if (wrong("parallel.tensor", p.has_tensor(), p.tensor(), kMaxTensorRanks)) train.mutable_parallel()->set_tensor(1);
    if (wrong("parallel.context", p.has_context(), p.context(), kMaxContextRanks)) {
      train.mutable_parallel()->set_context(1);
    }
  }

  void Tensor_(Train& train) {
    const uint32_t ranks = spec_.resources().ranks(), stages = Stages(), tensor = train.parallel().tensor();
    if (tensor <= 1) {
      if (train.parallel().sequence_parallel()) {
        Error("parallel.sequence_parallel", "needs parallel: {tensor: N} with at least 2 ranks");
      }
      return;
    }
    if (ranks % (uint64_t{stages} * tensor) != 0) {
      Error("parallel.tensor", absl::StrCat(tensor,
                                            stages > 1 ? absl::StrCat(" ranks for each unit of ", stages, " stages")
                                                       : " ranks for each unit",
                                            " do not divide resources.ranks ", ranks));
    }
    if (strategies::NeedsWholeTensors(train.optimizer())) {
      Error("optimizer.kind", "updates whole matrices, which parallel.tensor divides", "adamw");
    }
  }

  void Context_() {
    if (ContextRanks() == 1) return;
    const uint32_t ranks = spec_.resources().ranks();
    const uint64_t others = uint64_t{Stages()} * TensorRanks(), multiple = others * ContextRanks();
    if (ranks % others == 0 && ranks % multiple != 0) {  // what others do not divide is an error of their own
      Error("parallel.context",
            absl::StrCat("resources.ranks must be a multiple of ", NamesOfMultiple(), " ", multiple, ", got ", ranks));
    }
  }

  // "parallel.pipeline times parallel.tensor": what resources.ranks and min_ranks are multiples of.
  std::string NamesOfMultiple() const {
    std::vector<std::string> names;
    if (Stages() > 1) names.emplace_back("parallel.pipeline");
    if (TensorRanks() > 1) names.emplace_back("parallel.tensor");
    if (ContextRanks() > 1) names.emplace_back("parallel.context");
    return absl::StrJoin(names, " times ");
  }

  // parallel: auto, or strategy: auto where the spec does not say how ranks divide the model. The fields that it
  // chooses cannot be given. Beside `parallel`, and in a bench, whose collectives are those of data-parallel ranks,
  // strategy: auto chooses a strategy alone; sync refuses it.
  bool AutoParallel_(Train& train) {
    const bool open = train.strategy().has_auto_() && !train.has_parallel() && !train.has_pipeline();
    if (open && !train.has_sync() && !train.has_bench()) train.mutable_parallel()->set_auto_(true);
    if (!train.parallel().auto_()) return false;
    const Parallel& p = train.parallel();
    if (p.has_pipeline() || p.has_tensor() || p.has_sequence_parallel() || p.has_context()) {
      Error("parallel", "auto chooses the number of stages: leave the other fields out, or auto");
    }
    if (train.has_pipeline()) Error("pipeline", "is chosen by parallel: auto: leave it out");
    Strategy& s = *train.mutable_strategy();
    if (s.kind_case() == Strategy::KIND_NOT_SET) s.mutable_auto_();
    if (!s.has_auto_()) {
      Error("strategy.kind", "is chosen by parallel: auto, for the stages that it chooses: leave it out, or say auto",
            "auto");
    }
    Parallel only;
    only.set_auto_(true);
    *train.mutable_parallel() = only;
    train.clear_pipeline();
    return true;
  }

  // `pipeline` starts an error with the field's path.
  void Parallel_(Train& train) {
    if (AutoParallel_(train)) return;
    if (train.has_parallel()) {
      if (!train.parallel().has_pipeline()) train.mutable_parallel()->set_pipeline(1);
      if (!train.parallel().has_tensor()) train.mutable_parallel()->set_tensor(1);
      if (!train.parallel().has_sequence_parallel()) train.mutable_parallel()->set_sequence_parallel(false);
      if (!train.parallel().has_context()) train.mutable_parallel()->set_context(1);
      train.mutable_parallel()->set_auto_(false);
    }
    const Resources& r = spec_.resources();
    const uint32_t ranks = r.ranks(), stages = train.parallel().pipeline();
    Tensor_(train);
    if (train.has_parallel() && (stages == 0 || stages > std::min(kMaxStages, std::max(1u, ranks)))) {
      if (ranks > 0) {  // no ranks are an error of their own
        Error("parallel.pipeline", absl::StrCat("must be 1 to ",
                                                ranks < kMaxStages ? absl::StrCat("resources.ranks (", ranks, ")")
                                                                   : absl::StrCat(kMaxStages),
                                                ", got ", stages));
      }
      return train.mutable_parallel()->set_pipeline(1);
    }
    Context_();
    const uint32_t multiple = std::max(1u, stages) * TensorRanks() * ContextRanks();
    if (r.has_min_ranks() && r.min_ranks() % multiple != 0) {
      const uint32_t nearest = (r.min_ranks() / multiple + 1) * multiple;
      Error("resources.min_ranks",
            absl::StrCat(
                "must be a multiple of ", NamesOfMultiple(), " ", multiple, ": a job with fewer ranks keeps ",
                multiple > stages ? "these, and has fewer shards or replicas" : "its stages, each with fewer ranks",
                "; got ", r.min_ranks()),
            nearest <= ranks ? absl::StrCat(nearest) : "");
    }
    if (stages <= 1) {
      if (train.has_pipeline()) Error("pipeline", "needs parallel: {pipeline: N} with at least 2 stages");
      return;
    }
    if (ranks % stages != 0) {
      Error("parallel.pipeline", absl::StrCat(stages, " stages do not divide resources.ranks ", ranks));
    }
    Pipeline_(*train.mutable_pipeline());
    if (!model_good_ || stages * std::max(1u, train.pipeline().chunks()) > kMaxStages * kMaxChunks) return;
    const absl::StatusOr<pipeline::StageOfUnit> cut = pipeline::StagesOf(train, inventory_);
    if (!cut.ok()) return FieldError("", cut.status());
    if (const absl::Status good = pipeline::CheckCut(inventory_, *cut); !good.ok()) return FieldError("", good);
    if (train.pipeline().cut().empty()) return;  // the planner may cut elsewhere
    if (const absl::Status good = pipeline::CheckTies(inventory_, *cut); !good.ok()) FieldError("", good);
  }

  void Pipeline_(Pipeline& p) {
    if (!p.has_schedule()) p.set_schedule(PIPELINE_SCHEDULE_1F1B);
    Known("pipeline.schedule", PipelineSchedule_IsValid(p.schedule()) && p.schedule() != PIPELINE_SCHEDULE_UNSPECIFIED);
    if (p.schedule() == PIPELINE_SCHEDULE_ZERO_BUBBLE) {
      if (!p.has_chunks()) p.set_chunks(1);
      if (p.chunks() == 1 || p.chunks() == 2) return;
      Error("pipeline.chunks", absl::StrCat("of zero_bubble must be 1 (ZB-H1) or 2 (ZB-V), got ", p.chunks()));
      return p.set_chunks(1);
    }
    if (p.schedule() != PIPELINE_SCHEDULE_INTERLEAVED) {
      if (p.has_chunks()) {
        Error("pipeline.chunks",
              "only schedule: interleaved and zero_bubble have several chunks of the model on a stage");
      }
      return;
    }
    if (!p.has_chunks()) p.set_chunks(2);
    if (p.chunks() >= 2 && p.chunks() <= kMaxChunks) return;
    Error("pipeline.chunks", absl::StrCat("must be 2 to ", kMaxChunks, ", got ", p.chunks(),
                                          p.chunks() == 1 ? "; one chunk a stage is schedule: 1f1b" : ""));
    p.set_chunks(2);
  }

  void Known(const std::string& path, bool known) {
    if (!known) Error(path, "not a value that this build knows");
  }

  // `models` starts an error with the field's name: "heads: 5 does not divide width 128". What is checked without the
  // model comes first; its wrong values are replaced, so that the inventory shows the errors of other fields.
  void Model_(Train& train) {
    Path("model.from", train.model().from());
    if (train.freeze_size() > kMaxPatterns) {
      Error("freeze", absl::StrCat("at most ", kMaxPatterns, " patterns, got ", train.freeze_size()));
      train.clear_freeze();
    }
    if (train.has_lora()) Lora_(*train.mutable_lora());
    if (train.has_dropout()) Dropout_(*train.mutable_dropout());
    if (train.model().family_case() == Model::FAMILY_NOT_SET) {
      return Error("model.family", absl::StrCat("missing; known: ", models::FamilyNames()));
    }
    const absl::StatusOr<Model> resolved = models::Resolve(train.model());
    if (!resolved.ok()) return FieldError("model.", resolved.status());
    *train.mutable_model() = *resolved;
    absl::StatusOr<Inventory> inventory = models::MakeInventory(train);
    if (!inventory.ok()) return FieldError("", inventory.status());
    inventory_ = *std::move(inventory);
    model_good_ = inventory_.units_size() > 0;
  }

  // Of a status whose message begins with the field.
  void FieldError(absl::string_view prefix, const absl::Status& status) {
    const std::vector<std::string> parts = absl::StrSplit(std::string(status.message()), absl::MaxSplits(": ", 1));
    Error(absl::StrCat(prefix, parts[0]), parts.size() > 1 ? parts[1] : "wrong");
  }

  void Dropout_(Dropout& dropout) {
    if (!dropout.has_embedding()) dropout.set_embedding(0);
    if (!dropout.has_attention()) dropout.set_attention(0);
    if (!dropout.has_residual()) dropout.set_residual(0);
    if (!Range("dropout.embedding", dropout.embedding(), 0, false, 1, true)) dropout.set_embedding(0);
    if (!Range("dropout.attention", dropout.attention(), 0, false, 1, true)) dropout.set_attention(0);
    if (!Range("dropout.residual", dropout.residual(), 0, false, 1, true)) dropout.set_residual(0);
  }

  void Lora_(Lora& lora) {
    constexpr uint32_t kRank = 8;
    if (!lora.has_rank()) lora.set_rank(kRank);
    if (!lora.has_alpha()) lora.set_alpha(std::max(1u, lora.rank()));
    if (lora.rank() == 0 || lora.rank() > kMaxLoraRank) {
      Error("lora.rank", absl::StrCat("must be 1 to ", kMaxLoraRank, ", got ", lora.rank()));
      lora.set_rank(kRank);
    }
    if (lora.targets_size() > kMaxPatterns) {
      Error("lora.targets", absl::StrCat("at most ", kMaxPatterns, ", got ", lora.targets_size()));
      lora.clear_targets();
    }
    if (!Range("lora.alpha", lora.alpha(), 0, true, 1e6, false)) lora.set_alpha(lora.rank());
  }

  void Path(const std::string& path, const std::string& value) {
    if (absl::StrContains(value, '\0')) {
      Error(path, "holds a zero byte");
    } else if (value.size() > kMaxPathBytes) {
      Error(path, absl::StrCat("has ", value.size(), " bytes, at most ", kMaxPathBytes, " are allowed"));
    } else if (!value.empty() && value[0] != '/') {
      Error(path, absl::StrCat("\"", value, "\" is relative; a path on the workers must be absolute"));
    }
  }

  // A path in which placeholders can stand. They are expanded when the job has its id.
  void Expandable(const std::string& path, const std::string& value) {
    constexpr char kSuffix[] = "-xxxx";
    Path(path, core::ExpandPlaceholders(value, spec_.name(), spec_.name() + kSuffix));
    if (const auto wrong = core::CheckPlaceholders(value)) Error(path, wrong->message, wrong->suggestion);
  }

  // What the tasks read, by the field that names it.
  struct Source {
    const char *task, *models, *reads, *missing;
  };
  static constexpr Source kSources[] = {
      {models::kLanguageModel, "language models", "tokens", "missing: a token file (muster data prepare makes one)"},
      {models::kImageClassification, "models of images", "images",
       "missing: a file of images (muster data prepare-images makes one)"},
      {models::kTensors, "models of named tensors", "named tensors",
       "missing: a safetensors file, or a pattern of them, with the tensors that the model declares"}};

  // The task of the model, or what a bad one's data is for.
  std::string TaskName(const Data& data) const {
    if (model_good_) return inventory_.task().name();
    return !data.images().empty()    ? models::kImageClassification
           : !data.tensors().empty() ? models::kTensors
                                     : models::kLanguageModel;
  }

  void Data_(Train& train) {
    Data& data = *train.mutable_data();
    const std::string task = TaskName(data);
    const Source& own =
        *std::find_if(std::begin(kSources), std::end(kSources), [&](const Source& s) { return s.task == task; });
    for (const Source& source : kSources) {
      const auto [field, path] = models::SourceOf(source.task, data);
      if (&source == &own && path.empty()) Error(field, source.missing);
      if (&source != &own && !path.empty()) {
        Error(field, absl::StrCat("is for ", source.models, ", and this one reads ", own.reads));
      }
      Path(field, path);
    }
    if (task == models::kImageClassification) {
      Images_(data);
    } else {
      NotForImages(train, own.reads);
    }
    Path("data.validation", data.validation());
    if (!data.has_order()) data.set_order(DATA_ORDER_SHUFFLED);
    Known("data.order", DataOrder_IsValid(data.order()) && data.order() != DATA_ORDER_UNSPECIFIED);
  }

  void NotForImages(const Train& train, const char* reads) {
    const Data& data = train.data();
    const std::pair<const char*, bool> given[] = {{"data.augmentation", data.has_augmentation()},
                                                  {"data.mean", data.mean_size() > 0},
                                                  {"data.standard_deviation", data.standard_deviation_size() > 0},
                                                  {"label_smoothing", train.label_smoothing() != 0}};
    for (const auto& [path, is_given] : given) {
      if (is_given) Error(path, absl::StrCat("is for models of images, and this one reads ", reads));
    }
  }

  void Images_(Data& data) {
    Augmentation& a = *data.mutable_augmentation();
    if (!a.has_crop_padding()) a.set_crop_padding(0);
    if (!a.has_flip()) a.set_flip(false);
    if (!model_good_) return;
    const auto& shape = models::Find(inventory_.task(), models::kInputs).shape();  // channels, height, width
    if (a.crop_padding() >= shape[1]) {
      Error("data.augmentation.crop_padding",
            absl::StrCat("must be less than the images' height of ", shape[1], ", got ", a.crop_padding()));
    }
    const auto by_channel = [&](const char* path, google::protobuf::RepeatedField<float>& values, float otherwise) {
      if (values.empty()) values.Resize(static_cast<int>(shape[0]), otherwise);
      if (values.size() == static_cast<int>(shape[0])) return true;
      Error(path, absl::StrCat("needs one number for each of the ", shape[0], " channels, got ", values.size()));
      return false;
    };
    by_channel("data.mean", *data.mutable_mean(), 0.5f);
    if (by_channel("data.standard_deviation", *data.mutable_standard_deviation(), 0.25f)) {
      for (const float value : data.standard_deviation()) Range("data.standard_deviation", value, 0, true, 1e6, false);
    }
    for (const float value : data.mean()) Range("data.mean", value, -1e6, false, 1e6, false);
  }

  static constexpr double kMaxActivationBytes = 0x1p58;

  void Batch_(Train& train) {
    Batch& batch = *train.mutable_batch();
    if (!batch.has_sequences()) batch.set_sequences(8);
    if (batch.sequences() == 0 || batch.sequences() > kMaxSequences) {
      return Error("batch.sequences", absl::StrCat("must be 1 to ", kMaxSequences, ", got ", batch.sequences()));
    }
    const uint32_t ranks = SampleRanks(spec_.resources().ranks());
    const uint32_t share = (batch.sequences() + ranks - 1) / ranks;
    // When it is placed. Of a model that normalizes by a microbatch it would change the result.
    const bool chosen =
        train.parallel().auto_() && !batch.has_microbatch() && !models::DependsOnMicrobatches(inventory_);
    if (!batch.has_microbatch() && !chosen) {
      batch.set_microbatch(Stages() == 1 ? share : std::max(1u, share / (kMicrobatchesAStage * Stages())));
    }
    if (batch.microbatch() == 0 && !chosen) Error("batch.microbatch", "must be at least 1, got 0");
    if (batch.microbatch() > share) {
      Error("batch.microbatch",
            absl::StrCat("a rank has ", share, " sequences of a step (batch.sequences ", batch.sequences(), " over ",
                         ranks, ContextRanks() == 1 ? " ranks" : " groups of ranks",
                         Stages() == 1 ? "" : " of each stage", "), got ", batch.microbatch()),
            absl::StrCat(share));
    }
    // With its fewest ranks, each rank has the most sequences.
    const uint32_t least = spec_.resources().has_min_ranks() ? SampleRanks(spec_.resources().min_ranks()) : ranks;
    if (model_good_ && batch.microbatch() > 0) {
      CheckScheduleSize(train, (batch.sequences() + std::min(least, ranks) - 1) / std::min(least, ranks));
      CheckActivations(batch);
    }
  }

  // No machine has as much; larger numbers would overflow the sums of a plan.
  void CheckActivations(const Batch& batch) {
    double sample = 0;  // bytes
    for (const Unit& unit : inventory_.units()) {
      sample += static_cast<double>(unit.saved_bytes()) + static_cast<double>(unit.output_bytes()) +
                static_cast<double>(unit.forward_bytes()) + static_cast<double>(unit.backward_bytes());
    }
    if (sample * batch.microbatch() <= kMaxActivationBytes) return;
    const double most = std::floor(kMaxActivationBytes / sample);
    Error("batch.microbatch",
          absl::StrCat("the activations of ", batch.microbatch(), " sequences take more than 256 PiB; ",
                       most >= 1 ? "lower it" : "lower the model's context", ", got ", batch.microbatch()),
          most >= 1 ? absl::StrCat(static_cast<uint32_t>(most)) : "");
  }

  void CheckScheduleSize(const Train& train, uint32_t share) {
    const auto units = static_cast<uint64_t>(inventory_.units_size());
    const uint32_t microbatch = train.batch().microbatch();
    const uint64_t microbatches = (uint64_t{share} + microbatch - 1) / microbatch;
    if (microbatches * units <= strategies::kMaxUnitMicrobatches) return;
    const uint64_t most = strategies::kMaxUnitMicrobatches / units;
    const uint64_t least = (share + most - 1) / most;
    Error("batch.microbatch",
          absl::StrCat("makes ", microbatches, " microbatches a step, at most ", most, " are allowed with ", units,
                       " units; raise it, got ", microbatch),
          absl::StrCat(least));
  }

  void Precision_(Train& train) {
    Precision& p = *train.mutable_precision();
    if (!p.has_compute()) p.set_compute(DTYPE_FP32);
    if (!p.has_reduce()) p.set_reduce(DTYPE_FP32);
    if (!p.has_params()) p.set_params(DTYPE_FP32);
    if (!p.has_tf32()) p.set_tf32(false);
    const auto known = [&](const char* path, Dtype dtype) {
      if (dtype == DTYPE_UNSPECIFIED || !Dtype_IsValid(dtype)) Error(path, "must be fp32, bf16 or fp16", "fp32");
    };
    known("precision.compute", p.compute());
    known("precision.reduce", p.reduce());
    if (p.params() == DTYPE_BF16 && p.compute() != DTYPE_BF16) {
      Error("precision.params", "bf16 needs compute: bf16, which uses the weights as they are stored", "fp32");
    } else if (p.params() != DTYPE_FP32 && p.params() != DTYPE_BF16) {
      Error("precision.params", "must be fp32 or bf16; the range of fp16 is too small to keep weights in", "fp32");
    }
    if (p.tf32() && p.compute() != DTYPE_FP32) Error("precision.tf32", "is for GEMMs of compute: fp32", "false");
    if (strategies::ScalesLoss(train)) return LossScaling_(*p.mutable_loss_scaling());
    if (p.has_loss_scaling()) {
      Error("precision.loss_scaling", "keeps gradients in the range of fp16, but neither compute nor reduce is fp16");
    }
  }

  void LossScaling_(LossScaling& s) {
    constexpr double kMost = 0x1p32;
    if (!s.has_initial()) s.set_initial(65536);
    if (!s.has_growth()) s.set_growth(2);
    if (!s.has_backoff()) s.set_backoff(0.5);
    if (!s.has_growth_interval()) s.set_growth_interval(2000);
    if (!s.has_minimum()) s.set_minimum(std::min(1.0, s.initial()));
    const std::string path = "precision.loss_scaling.";
    Range(path + "initial", s.initial(), 0, true, kMost, false);
    Range(path + "growth", s.growth(), 1, false, kMost, false);
    Range(path + "backoff", s.backoff(), 0, true, 1, false);
    if (s.initial() > 0) Range(path + "minimum", s.minimum(), 0, true, s.initial(), false);
    if (s.growth_interval() == 0) Error(path + "growth_interval", "must be at least 1, got 0");
  }

  void OnNonfinite_(OnNonfinite& o) {
    if (o.kind_case() == OnNonfinite::KIND_NOT_SET) o.mutable_fail();
    if (!o.has_skip()) return;
    if (!o.skip().has_steps()) o.mutable_skip()->set_steps(3);
    if (o.skip().steps() == 0) Error("on_nonfinite.steps", "must be at least 1, got 0; kind: fail skips none");
  }

  // low <= value < high, or <= with closed; NaN fails.
  bool Range(const std::string& path, double value, double low, bool low_open, double high, bool high_open) {
    const bool good =
        std::isfinite(value) && (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
    if (good) return true;
    std::string bounds = absl::StrCat(low_open ? "greater than " : "at least ", low);
    if (std::isfinite(high)) absl::StrAppend(&bounds, high_open ? " and less than " : " and at most ", high);
    Error(path, absl::StrCat("must be ", bounds, ", got ", value));
    return false;
  }

  void Optimizer_(Train& train) {
    Optimizer& o = *train.mutable_optimizer();
    if (o.kind_case() == Optimizer::KIND_NOT_SET) o.mutable_adamw();
    // Lion's default keeps AdamW's product of learning rate and weight decay (Chen et al. 2023, section 5).
    double lr = 3e-4, weight_decay = 0.1;
    if (o.has_adamw()) {
      AdamW& a = *o.mutable_adamw();
      if (!a.has_beta1()) a.set_beta1(0.9);
      if (!a.has_beta2()) a.set_beta2(0.999);
      if (!a.has_eps()) a.set_eps(1e-8);
      Range("optimizer.beta1", a.beta1(), 0, false, 1, true);
      Range("optimizer.beta2", a.beta2(), 0, false, 1, true);
      Range("optimizer.eps", a.eps(), 0, true, 1, false);
    } else if (o.has_lion()) {
      Lion& l = *o.mutable_lion();
      if (!l.has_beta1()) l.set_beta1(0.9);
      if (!l.has_beta2()) l.set_beta2(0.99);
      Range("optimizer.beta1", l.beta1(), 0, false, 1, true);
      Range("optimizer.beta2", l.beta2(), 0, false, 1, true);
      lr = 1e-4, weight_decay = 0.3;
    } else if (o.has_muon()) {
      Muon_(*o.mutable_muon());
      lr = 1e-3;
    } else if (o.has_adafactor()) {
      Adafactor_(*o.mutable_adafactor());
      lr = 1e-2, weight_decay = 0;
    } else {
      Sgd& s = *o.mutable_sgd();
      if (!s.has_momentum()) s.set_momentum(0.9);
      if (!s.has_nesterov()) s.set_nesterov(false);
      Range("optimizer.momentum", s.momentum(), 0, false, 1, true);
      if (s.nesterov() && s.momentum() == 0) Error("optimizer.nesterov", "needs a momentum greater than 0");
      lr = 0.1, weight_decay = 0;
    }
    if (!o.has_lr()) o.set_lr(lr);
    if (!o.has_weight_decay()) o.set_weight_decay(weight_decay);
    // What top_k applies are gradients of many steps: their norm is several times that of a step's.
    if (!o.has_clip_norm()) o.set_clip_norm(train.communication().compression().has_top_k() ? 0 : 1);
    const double infinite = std::numeric_limits<double>::infinity();
    Range("optimizer.lr", o.lr(), 0, true, infinite, true);
    Range("optimizer.weight_decay", o.weight_decay(), 0, false, infinite, true);
    Range("optimizer.clip_norm", o.clip_norm(), 0, false, infinite, true);
    if (o.has_muon()) {
      if (o.muon().has_adamw_weight_decay()) {
        Range("optimizer.adamw_weight_decay", o.muon().adamw_weight_decay(), 0, false, infinite, true);
      } else {
        o.mutable_muon()->set_adamw_weight_decay(o.weight_decay());
      }
    }
    LrSchedule_(o, infinite);
  }

  void Muon_(Muon& m) {
    if (!m.has_momentum()) m.set_momentum(0.95);
    if (!m.has_nesterov()) m.set_nesterov(true);
    if (!m.has_ns_steps()) m.set_ns_steps(5);
    if (!m.has_adjust_lr_fn()) m.set_adjust_lr_fn(ADJUST_LR_FN_ORIGINAL);
    if (!m.has_adamw_lr()) m.set_adamw_lr(3e-4);
    if (!m.has_adamw_beta1()) m.set_adamw_beta1(0.9);
    if (!m.has_adamw_beta2()) m.set_adamw_beta2(0.999);
    if (!m.has_adamw_eps()) m.set_adamw_eps(1e-8);
    Range("optimizer.momentum", m.momentum(), 0, false, 1, true);
    if (m.ns_steps() < 1 || m.ns_steps() > kMaxNewtonSchulzSteps) {
      Error("optimizer.ns_steps", absl::StrCat("must be 1 to ", kMaxNewtonSchulzSteps, ", got ", m.ns_steps()));
    }
    Known("optimizer.adjust_lr_fn", AdjustLrFn_IsValid(m.adjust_lr_fn()) && m.adjust_lr_fn() != 0);
    Range("optimizer.adamw_lr", m.adamw_lr(), 0, true, std::numeric_limits<double>::infinity(), true);
    Range("optimizer.adamw_beta1", m.adamw_beta1(), 0, false, 1, true);
    Range("optimizer.adamw_beta2", m.adamw_beta2(), 0, false, 1, true);
    Range("optimizer.adamw_eps", m.adamw_eps(), 0, true, 1, false);
    if (model_good_ && !HasHiddenMatrix()) {
      Error("optimizer.kind",
            "muon trains matrices between the first and the last unit, and this model trains none; use adamw", "adamw");
    }
  }

  void Adafactor_(Adafactor& a) {
    if (!a.has_beta2_decay()) a.set_beta2_decay(-0.8);
    if (!a.has_eps1()) a.set_eps1(std::numeric_limits<float>::epsilon());
    if (!a.has_eps2()) a.set_eps2(1e-3);
    if (!a.has_d()) a.set_d(1);
    Range("optimizer.beta2_decay", a.beta2_decay(), -kMostBeta2Decay, false, 0, false);
    Range("optimizer.eps1", a.eps1(), 0, true, 1, false);
    Range("optimizer.eps2", a.eps2(), 0, false, 1, false);
    Range("optimizer.d", a.d(), 1, false, std::numeric_limits<double>::infinity(), true);
  }

  bool HasHiddenMatrix() const {
    for (int u = 0; u < inventory_.units_size(); ++u) {
      for (const Tensor& tensor : inventory_.units(u).tensors()) {
        if (!tensor.frozen() && models::IsHiddenMatrix(inventory_, u, tensor)) return true;
      }
    }
    return false;
  }

  // The nearest to the decimal number that a user would write: of 0.003, 0.0003.
  static double TenthOf(double number) {
    double tenth = number / 10;
    return absl::SimpleAtod(absl::StrFormat("%.15g", tenth), &tenth) ? tenth : number / 10;
  }

  void LrSchedule_(Optimizer& o, double infinite) {
    LrSchedule& s = *o.mutable_lr_schedule();
    if (!s.has_warmup_steps()) s.set_warmup_steps(0);
    double min_lr = 0;
    const bool given = s.linear().has_min_lr() || s.cosine().has_min_lr();
    switch (s.kind_case()) {
      case LrSchedule::kLinear:
        if (!s.linear().has_min_lr()) s.mutable_linear()->set_min_lr(0);
        min_lr = s.linear().min_lr();
        break;
      case LrSchedule::kCosine:
        if (!s.cosine().has_min_lr()) s.mutable_cosine()->set_min_lr(TenthOf(o.lr()));
        min_lr = s.cosine().min_lr();
        break;
      case LrSchedule::kStep:
        return StepLr_(*s.mutable_step());
      default:
        s.mutable_constant();
        return;
    }
    if (!given) return;  // a default is invalid only if optimizer.lr is, which is reported
    Range("optimizer.lr_schedule.min_lr", min_lr, 0, false, infinite, true);
    if (min_lr > o.lr()) {
      Error("optimizer.lr_schedule.min_lr", absl::StrCat("is above optimizer.lr ", o.lr(), ", got ", min_lr));
    }
  }

  void StepLr_(StepLr& s) {
    if (!s.has_gamma()) s.set_gamma(0.1);
    Range("optimizer.lr_schedule.gamma", s.gamma(), 0, false, 1e3, false);
    if (s.milestones_size() == 0 || s.milestones_size() > kMaxMilestones) {
      return Error("optimizer.lr_schedule.milestones",
                   absl::StrCat("needs 1 to ", kMaxMilestones, " steps, got ", s.milestones_size()));
    }
    if (std::is_sorted(s.milestones().begin(), s.milestones().end())) return;
    Error("optimizer.lr_schedule.milestones", "must be ascending");
  }

  void Communication_(Train& train) {
    Communication& c = *train.mutable_communication();
    if (!c.has_hierarchy()) c.set_hierarchy(HIERARCHY_NEVER);
    Known("communication.hierarchy", Hierarchy_IsValid(c.hierarchy()) && c.hierarchy() != HIERARCHY_UNSPECIFIED);
    Compression_(train, *c.mutable_compression());
    const AxisTimeouts& axes = c.timeout_seconds();
    if (axes.has_pipeline()) AxisTimeout_("pipeline", axes.pipeline());
    if (axes.has_replica()) AxisTimeout_("replica", axes.replica());
    if (axes.has_shard()) AxisTimeout_("shard", axes.shard());
    if (axes.has_context()) AxisTimeout_("context", axes.context());
    if (axes.has_tensor()) AxisTimeout_("tensor", axes.tensor());
  }

  void AxisTimeout_(const char* axis, double seconds) {
    const Timeouts timeouts = Stretch(limits_.timeouts, absl::Seconds(spec_.detection_seconds()));
    const absl::Duration least = LeastOfAxis(timeouts);
    if (seconds >= absl::ToDoubleSeconds(least) && seconds <= kLongestAxisTimeout) return;
    Error(absl::StrCat("communication.timeout_seconds.", axis),
          absl::StrCat("must be ", absl::ToDoubleSeconds(least), " (a hung rank is detected after ",
                       absl::FormatDuration(timeouts.hang), ") to ", kLongestAxisTimeout, ", got ", seconds));
  }

  void Compression_(Train& train, Compression& c) {
    strategies::FillDefaults(train.optimizer(), c);
    if (c.has_top_k()) {
      TopK_(train.optimizer(), c.top_k());
    } else if (c.has_power_sgd()) {
      Range("communication.compression.rank", c.power_sgd().rank(), 1, false, 64, false);
    } else if (c.has_int8()) {
      Range("communication.compression.block", c.int8().block(), 32, false, 65536, false);
      if (c.int8().block() % 4 != 0) {
        Error("communication.compression.block", absl::StrCat("must be a multiple of 4, got ", c.int8().block()));
      }
    }
    if (!c.has_none()) Compressible(train, c);
  }

  void Sync_(Train& train) {
    Sync& s = *train.mutable_sync();
    if (!s.has_replicas()) s.set_replicas(2);
    if (!s.has_every()) s.set_every(50);
    if (!s.has_fragments()) s.set_fragments(1);
    if (!s.has_delay()) s.set_delay(0);
    if (!s.has_mix()) s.set_mix(s.delay() > 0 ? 0.5 : 0);
    if (!s.has_values()) s.set_values(EXCHANGED_VALUES_INT8);
    if (!s.has_patience_seconds()) s.set_patience_seconds(30);
    OuterOptimizer& outer = *s.mutable_outer();
    if (!outer.has_lr()) outer.set_lr(0.7);
    if (!outer.has_momentum()) outer.set_momentum(0.9);
    if (!outer.has_nesterov()) outer.set_nesterov(outer.momentum() > 0);
    Range("sync.replicas", s.replicas(), 2, false, kMaxReplicas, false);
    Range("sync.every", s.every(), 1, false, 1e6, false);
    Range("sync.fragments", s.fragments(), 1, false, std::min<uint32_t>(s.every(), kMaxFragments), false);
    if (s.fragments() > 0) Range("sync.delay", s.delay(), 0, false, s.every() / s.fragments(), false);
    Range("sync.mix", s.mix(), 0, false, 1, true);
    if (s.mix() > 0 && s.delay() == 0) {
      Error("sync.mix", "needs a delay: without one there are no steps whose way it could keep", "0");
    }
    Known("sync.values", ExchangedValues_IsValid(s.values()) && s.values() != EXCHANGED_VALUES_UNSPECIFIED);
    Range("sync.patience_seconds", s.patience_seconds(), 1, false, 3600, false);
    Range("sync.outer.lr", outer.lr(), 0, true, 10, false);
    Range("sync.outer.momentum", outer.momentum(), 0, false, 1, true);
    if (outer.nesterov() && outer.momentum() == 0) {
      Error("sync.outer.nesterov", "needs a momentum greater than 0", "false");
    }
    if (!s.run().empty()) Error("sync.run", "is set by the coordinator: leave it out");
    if (s.has_replica()) Error("sync.replica", "is set by the coordinator: leave it out");
    const auto refuse = [&](const std::string& field, const std::string& why, const std::string& instead = "") {
      Error(field, absl::StrCat("not supported with sync: ", why), instead);
    };
    if (spec_.resources().has_min_ranks()) refuse("resources.min_ranks", "all replicas have the same number of ranks");
    if (train.strategy().has_auto_()) refuse("strategy.kind", "replicas could get different ones; name one");
    if (train.parallel().auto_()) refuse("parallel.auto", "replicas could get different ones; name the axes", "false");
    if (train.precision().params() == DTYPE_BF16) {
      refuse("precision.params", "replicas exchange how far fp32 parameters came", "fp32");
    }
    if (train.offload().optimizer()) refuse("offload.optimizer", "not tried yet", "false");
    if (train.has_bench()) refuse("bench", "there is nothing to exchange");
  }

  void TopK_(const Optimizer& optimizer, const TopK& k) {
    Range("communication.compression.ratio", k.ratio(), 0.001, false, 0.1, false);
    Known("communication.compression.selection",
          Selection_IsValid(k.selection()) && k.selection() != SELECTION_UNSPECIFIED);
    Known("communication.compression.values", SentValues_IsValid(k.values()) && k.values() != SENT_VALUES_UNSPECIFIED);
    if (!k.momentum_correction()) return;
    if (!optimizer.has_sgd() || optimizer.sgd().momentum() == 0) {
      Error("communication.compression.momentum_correction", "needs optimizer: {kind: sgd} with a momentum", "false");
    } else if (optimizer.weight_decay() > 0) {
      Error("communication.compression.momentum_correction",
            "not supported with optimizer.weight_decay yet, which would have no momentum", "false");
    }
  }

  // Whether this job has sums that can be compressed. `auto` compresses none where there are none.
  void Compressible(const Train& train, const Compression& c) {
    const Strategy& s = train.strategy();
    const bool sums = s.has_ddp() || s.has_auto_() || (s.has_fsdp() && s.fsdp().reshard() == RESHARD_HYBRID) ||
                      (s.has_fsdp() && s.fsdp().reshard() == RESHARD_NO_SHARD);
    const std::string kind = "communication.compression";
    if (!sums && !c.has_auto_()) {
      Error(kind,
            absl::StrCat("compresses sums of gradients over replicas, and ", strategies::KindOf(s),
                         " has none: use ddp, or fsdp with reshard: hybrid"),
            "none");
    }
    if (train.precision().reduce() != DTYPE_FP32) Error("precision.reduce", "must be fp32 with compression", "fp32");
    if (train.precision().compute() == DTYPE_FP16) {
      Error("precision.compute", "compression keeps gradients over steps, and fp16 scales them anew: use bf16", "bf16");
    }
    if (train.offload().optimizer()) Error("offload.optimizer", "not supported with compression yet", "false");
    // Ranks that have a tensor in common would send other parts of its gradient.
    if (train.parallel().tensor() > 1) Error(kind, "not supported with parallel.tensor yet", "none");
  }

  void Offload_(Train& train) {
    Offload& o = *train.mutable_offload();
    if (!o.has_parameters()) o.set_parameters(false);
    if (!o.has_optimizer()) o.set_optimizer(o.parameters());
    if (!o.has_activations()) o.set_activations(false);
    Path("offload.to", o.to());
    if (o.activations() && !train.activation_checkpointing()) {
      Error("offload.activations",
            "needs activation_checkpointing: true: what is offloaded are the inputs of checkpointed units");
    }
    if (o.activations() && Stages() > 1) {
      Error("offload.activations", "not supported with parallel.pipeline yet", "false");
    }
    if (!o.to().empty() && !o.optimizer() && !o.activations())
      Error("offload.to", "nothing is offloaded: optimizer, parameters and activations are false");
    if (!o.parameters()) return;
    if (!o.optimizer())
      Error("offload.optimizer", "must be true with parameters: true, whose update is made on the host");
    if (strategies::KeepsAllParameters(train.strategy())) {
      Error("offload.parameters", absl::StrCat("every rank of ", strategies::KindOf(train.strategy()),
                                               " keeps all parameters on its device; zero with stage: 3 and fsdp with "
                                               "reshard: full_shard do not"));
    }
  }

  // `strategies` starts an error with "strategy: ".
  void Strategy_(Train& train) {
    Strategy& s = *train.mutable_strategy();
    if (s.kind_case() == Strategy::KIND_NOT_SET) {
      if (DataRanks(spec_.resources().ranks()) > 1) {
        s.mutable_ddp();
      } else {
        s.mutable_single();
      }
    }
    if (s.has_ddp() && s.ddp().has_bucket_mib()) {
      Range("strategy.bucket_mib", s.ddp().bucket_mib(), 0, true, 1 << 20, false);
    }
    // Every microbatch would gather all parameters of its stage again (as TorchTitan's fsdp_reshard_after_forward).
    if (s.has_fsdp() && !s.fsdp().has_reshard() && Stages() > 1) s.mutable_fsdp()->set_reshard(RESHARD_SHARD_GRAD_OP);
    strategies::FillDefaults(train.optimizer(), s);
    if (s.has_zero()) Zero_(s.zero());
    if (s.has_fsdp()) Fsdp_(s.fsdp());
    WholePlacement(train);
    if (s.has_auto_()) return;  // resolved at placement, to a strategy that fits there
    const uint32_t ranks = spec_.resources().ranks();
    if (!model_good_ || ranks == 0 || ranks > limits_.max_ranks) return;
    const uint32_t each = DataRanks(ranks);
    if (s.has_single() && Stages() > 1 && each > 1) {
      return Error("strategy.kind", absl::StrCat("single runs on one rank of each stage, and there are ", each,
                                                 "; ddp and fsdp run on several"));
    }
    Train stage = train;
    stage.clear_parallel(), stage.clear_pipeline();
    // Of one unit: a table of all of them may take a second, and is made when the job is planned.
    Inventory one;
    *one.add_units() = inventory_.units(0);
    const auto layout = strategies::MakeLayout(stage, one, strategies::AnyPlaces(each));
    if (layout.ok()) return;
    std::string message(layout.status().message());
    if (absl::StartsWith(message, "strategy: ")) message = message.substr(10);
    // The number of ranks may be at fault too, but the user is more likely to look at the strategy.
    Error("strategy.kind", message);
  }

  void WholePlacement(const Train& train) {
    if (!strategies::NeedsWholeTensors(train.optimizer())) return;
    const Strategy& s = train.strategy();
    const bool cuts =
        (s.has_zero() && s.zero().placement() != PLACEMENT_WHOLE) ||
        (s.has_fsdp() && s.fsdp().placement() != PLACEMENT_WHOLE && s.fsdp().reshard() != RESHARD_NO_SHARD);
    if (!cuts) return;
    Error("strategy.placement",
          "cuts tensors, and this optimizer.kind updates whole ones; say placement: whole, or leave it out", "whole");
  }

  // Checks that zero and fsdp share.
  template <typename Sharded>
  void Sharded_(const Sharded& s) {
    Known("strategy.placement", Placement_IsValid(s.placement()) && s.placement() != PLACEMENT_UNSPECIFIED);
    Known("strategy.accumulation",
          Accumulation_IsValid(s.accumulation()) && s.accumulation() != ACCUMULATION_UNSPECIFIED);
    if (s.prefetch() > kMaxPrefetch) {
      Error("strategy.prefetch", absl::StrCat("must be 0 to ", kMaxPrefetch, ", got ", s.prefetch()));
    }
    if (s.has_shares()) {
      Known("strategy.shares", Shares_IsValid(s.shares()) && s.shares() != SHARES_UNSPECIFIED);
      if (s.placement() != PLACEMENT_RAGGED) {
        Error(
            "strategy.shares",
            "only placement: ragged gives ranks shares of different size; say placement: ragged too, or leave it out");
      }
    }
    if (s.has_wrap_mib()) Range("strategy.wrap_mib", s.wrap_mib(), 0, true, 1 << 20, false);
  }

  void Zero_(const Zero& zero) {
    if (zero.stage() < 1 || zero.stage() > 3) {
      Error("strategy.stage", absl::StrCat("must be 1, 2 or 3, got ", zero.stage()));
    }
    Sharded_(zero);
    if (zero.contiguous() && zero.placement() != PLACEMENT_WHOLE && zero.placement() != PLACEMENT_RAGGED) {
      Error("strategy.contiguous", "only placement: whole and placement: ragged give a rank a run of layers");
    }
    if (zero.has_bucket_mib()) Range("strategy.bucket_mib", zero.bucket_mib(), 0, true, 1 << 20, false);
  }

  void Fsdp_(const Fsdp& fsdp) {
    Known("strategy.reshard", Reshard_IsValid(fsdp.reshard()) && fsdp.reshard() != RESHARD_UNSPECIFIED);
    Sharded_(fsdp);
    if (fsdp.has_shard_ranks() && fsdp.reshard() != RESHARD_HYBRID) {
      Error("strategy.shard_ranks", "only reshard: hybrid has groups of ranks");
    } else if (fsdp.has_shard_ranks() && fsdp.shard_ranks() == 0) {
      Error("strategy.shard_ranks", "must be at least 1, got 0");
    }
  }

  void Bench_(Train& train) {
    CollectiveBench& bench = *train.mutable_bench();
    const uint32_t ranks = spec_.resources().ranks();
    if (ranks < 2) {
      Error("resources.ranks", absl::StrCat("collectives need at least 2 ranks to measure, got ", ranks), "2");
    }
    if (!train.checkpoint().path().empty()) {
      Error("checkpoint.path", "a job that measures collectives trains nothing to save: leave it out");
    }
    if (bench.collectives().empty()) Error("bench.collectives", "missing: all_reduce, all_gather, reduce_scatter, ...");
    if (bench.modes().empty()) Error("bench.modes", "missing: flat, bucketed, hierarchical, compressed");
    if (bench.bytes().empty()) Error("bench.bytes", "missing: the sizes to measure");
    for (const int collective : bench.collectives()) {
      Known("bench.collectives", Collective_IsValid(collective) && collective != COLLECTIVE_UNSPECIFIED);
    }
    for (const int mode : bench.modes()) {
      Known("bench.modes", CollectiveMode_IsValid(mode) && mode != COLLECTIVE_MODE_UNSPECIFIED);
    }
    uint64_t last = 0;
    for (int i = 0; i < bench.bytes_size(); ++i) {
      const std::string path = absl::StrCat("bench.bytes[", i, "]");
      const uint64_t bytes = bench.bytes(i);
      if (bytes == 0 || bytes > kMaxCollectiveBytes) {
        Error(path, absl::StrCat("must be 1 to ", kMaxCollectiveBytes, ", got ", bytes));
      } else if (bytes <= last) {
        Error(path, absl::StrCat("must be above the one before, ", last, ", got ", bytes));
      }
      last = std::max(last, bytes);
    }
    if (bench.has_bucket_bytes() && bench.bucket_bytes() == 0) Error("bench.bucket_bytes", "must be at least 1, got 0");
    if (!bench.has_longest_seconds()) bench.set_longest_seconds(10);
    Range("bench.longest_seconds", bench.longest_seconds(), 0, true, 3600, false);
    const uint64_t measurements = uint64_t{1} * static_cast<uint64_t>(bench.collectives_size()) *
                                  static_cast<uint64_t>(bench.modes_size()) * static_cast<uint64_t>(bench.bytes_size());
    if (measurements > kMaxMeasurements) {
      Error("bench", absl::StrCat(measurements, " measurements are too many: at most ", kMaxMeasurements));
    }
    if (measurements > 0) train.set_steps(measurements);
  }

  void Steps(Train& train) {
    if (!train.has_steps()) {
      Error("steps", "missing: how many optimizer steps to train");
    } else if (train.steps() == 0 || train.steps() > kMaxJobSteps) {
      Error("steps", StepsOutOfBounds(absl::StrCat(train.steps())));
    }
    if (!train.has_seed()) train.set_seed(1);
    if (!train.has_deterministic()) train.set_deterministic(true);
    CudaGraphs(train);
    if (!train.has_label_smoothing()) train.set_label_smoothing(0);
    Range("label_smoothing", train.label_smoothing(), 0, false, 1, true);
    const uint64_t warmup = train.optimizer().lr_schedule().warmup_steps();
    if (train.has_steps() && train.steps() > 0 && warmup > train.steps()) {
      Error("optimizer.lr_schedule.warmup_steps", absl::StrCat("is above steps ", train.steps(), ", got ", warmup));
    }
  }

  // engine::CheckRecorded says why, and refuses more: a model from a library.
  void CudaGraphs(Train& train) {
    if (!train.has_cuda_graphs()) train.set_cuda_graphs(false);
    if (!train.cuda_graphs()) return;
    const auto refuse = [&](const std::string& what) {
      Error("cuda_graphs", absl::StrCat("not supported with ", what, " yet"), "false");
    };
    const Offload& offload = train.offload();
    if (offload.optimizer() || offload.parameters() || offload.activations()) refuse("offload");
    if (!train.optimizer().has_adamw() && !train.optimizer().has_sgd()) refuse("optimizers other than adamw and sgd");
    if (strategies::Compresses(train.communication())) refuse("communication.compression");
  }

  void Checkpoint_(Train& train) {
    Checkpoint& c = *train.mutable_checkpoint();
    if (!c.has_path()) c.set_path("");
    Expandable("checkpoint.path", c.path());
    Expandable("checkpoint.resume_from", c.resume_from());
    if (!c.resume_from().empty() && !train.model().from().empty()) {
      Error("checkpoint.resume_from", "model.from names other weights to begin with: leave one of them out");
    }
    // {job} may stay: it is the same on both sides, and in no other job's path.
    const auto named = [&](const std::string& path) { return core::ExpandPlaceholders(path, spec_.name(), "{job}"); };
    const auto folder = [&](const std::string& path) { return absl::StrCat(core::NormalizedPath(named(path)), "/"); };
    if (const std::string why = checkpoint::WhyReserved(named(c.path())); !why.empty()) {
      Error("checkpoint.path", absl::StrCat(named(c.path()), " ", why));
    }
    if (!c.path().empty() && c.path()[0] == '/' && folder(c.path()) == "//") {
      Error("checkpoint.path",
            absl::StrCat(named(c.path()), " is the root of the file system: name a folder for this job's checkpoints"));
    }
    if (!c.path().empty() && !c.resume_from().empty() && absl::StartsWith(folder(c.resume_from()), folder(c.path()))) {
      Error("checkpoint.path", "is where checkpoint.resume_from is, another job's: name a folder of this job's own");
    }
    if (c.path().empty() && (c.has_every_steps() || c.has_every_seconds() || c.has_keep())) {
      Error("checkpoint.path", "missing: checkpoint.every_steps, every_seconds and keep need a folder to write to");
      return;
    }
    // With less than a second, ranks would do little else. Also rejects NaN.
    if (c.every_seconds() != 0 && !(c.every_seconds() >= 1 && c.every_seconds() <= kMaxCheckpointSeconds)) {
      Error("checkpoint.every_seconds",
            absl::StrCat("must be 0 (never) or 1 to ", kMaxCheckpointSeconds, ", got ", c.every_seconds()));
    }
    if (!c.has_every_steps() && !c.path().empty()) c.set_every_steps(100);
    if (!c.path().empty()) c.set_keep(std::max(2u, c.has_keep() ? c.keep() : 2u));
    if (c.keep() > kMaxKeep) {
      Error("checkpoint.keep", absl::StrCat("must be at most ", kMaxKeep, ", got ", c.keep()), absl::StrCat(kMaxKeep));
    }
  }

  void Validation_(Train& train) {
    Validation& v = *train.mutable_validation();
    const bool given = v.has_every_steps() || v.has_sequences();
    if (train.data().validation().empty()) {
      if (given) Error("data.validation", "missing: validation needs a file of its own");
      return;
    }
    if (!v.has_every_steps()) v.set_every_steps(100);
    // A test set is evaluated whole, unless it is text.
    const bool tokens = TaskName(train.data()) == models::kLanguageModel;
    if (!v.has_sequences()) v.set_sequences(tokens ? 64 : kMaxSequences);
    if (v.sequences() == 0 || v.sequences() > kMaxSequences) {
      Error("validation.sequences", absl::StrCat("must be 1 to ", kMaxSequences, ", got ", v.sequences()));
    }
  }

  const Limits& limits_;
  JobSpec& spec_;
  std::vector<SpecError> errors_;
  bool model_good_ = false;
  Inventory inventory_;  // of a good model
};

}  // namespace

std::vector<SpecError> Resolve(const Limits& limits, JobSpec& spec) { return Resolver(limits, spec).Run(); }

}  // namespace muster::spec
