#include "worker/trainer/setup.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "common/file/beneath.h"
#include "common/log/log.h"
#include "common/version.h"
#include "data/tokenizer_origin.h"
#include "models/inventory.h"
#include "worker/collectives/links.h"
#include "worker/plugins/library.h"
#include "worker/trainer/compressing.h"
#include "worker/trainer/resume.h"
#include "worker/trainer/speed.h"
#include "worker/trainer/weights.h"

namespace muster::trainer {
namespace {

absl::StatusOr<std::unique_ptr<engine::Engine>> MakeEngine(const Assignment& assignment, const Program& program,
                                                           const Ranks& ranks, engine::OpListener* progress,
                                                           std::shared_ptr<plugin::Model> plugin,
                                                           const SetUpOptions& options) {
  engine::Config config;
  const uint32_t rank = assignment.key().rank();
  const strategies::StageModel stage(program.inventory, program.layout, program.layout.roles[rank]);
  config.inventory = stage.inventory();
  config.table = stage.table();
  config.rank = rank;
  config.shard = strategies::ShardInStage(program.layout, rank);
  config.mesh = program.layout.mesh;
  config.schedule = program.rank.schedule;
  config.evaluation = program.rank.evaluation;
  config.train = assignment.spec().train();
  config.groups = ranks.groups;
  config.progress = progress;
  config.streams = options.streams;
  config.cuda = assignment.device() == DEVICE_CUDA;
  config.recorded = config.cuda && config.train.cuda_graphs();
  config.plugin = std::move(plugin);
  config.threads = assignment.cores() > 0 ? static_cast<int>(assignment.cores()) : AvailableCores();
#ifndef MUSTER_CUDA
  if (config.cuda) {
    return absl::FailedPreconditionError(
        "the job was placed on a GPU, but this trainer is built for the CPU: install a build made with --config=cuda");
  }
#endif
  return engine::Engine::Create(config);
}

// What the rank owns, and who it sums with, follow from its role, which no digest of a schedule covers: ranks that
// count shards differently would mix up each other's state.
absl::Status CheckRole(const Assignment& assignment, const std::vector<RankRole>& roles) {
  const uint32_t rank = assignment.key().rank();
  const RankRole &assigned = assignment.role(), &own = roles[rank];
  if (assigned.rank() == rank && assigned.shard() == own.shard() && assigned.replica() == own.replica() &&
      assigned.stage() == own.stage() && assigned.tensor() == own.tensor()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "this trainer (muster ", kVersion, ") gives rank ", rank, " shard ", own.shard(), " of replica ", own.replica(),
      ", the coordinator assigned rank ", assigned.rank(), " shard ", assigned.shard(), " of replica ",
      assigned.replica(), ": two different builds; install the same release on coordinator and workers"));
}

absl::StatusOr<Program> CompileProgram(const Assignment& assignment) {
  const Train& train = assignment.spec().train();
  absl::StatusOr<Inventory> inventory = models::MakeInventory(train, assignment.device());
  if (!inventory.ok()) return inventory.status();
  absl::StatusOr<strategies::Layout> layout = strategies::LayoutOf(assignment.table(), *inventory, assignment.world());
  if (!layout.ok()) return layout.status();
  absl::StatusOr<strategies::RankProgram> rank =
      strategies::Compile(train, *inventory, *layout, assignment.key().rank());
  if (!rank.ok()) return rank.status();
  if (assignment.schedule_digest() != rank->digest) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this trainer (muster ", kVersion, ") compiles the schedule ", rank->digest, ", the coordinator's build ",
        assignment.schedule_digest(), ": two different builds; install the same release on coordinator and workers"));
  }
  if (absl::Status s = CheckRole(assignment, layout->roles); !s.ok()) return s;
  return Program{*std::move(inventory), *std::move(layout), *std::move(rank)};
}

absl::Status OpenData(const Assignment& assignment, Rank& rank) {
  const Train& train = assignment.spec().train();
  const Inventory& inventory = rank.program.inventory;
  const Mesh& mesh = rank.program.layout.mesh;
  const uint32_t context_rank = ContextRankAt(mesh, CoordinateOf(mesh, assignment.key().rank()));
  const absl::StatusOr<const tasks::Task*> task = tasks::TaskOf(inventory);
  if (!task.ok()) return task.status();
  rank.task = *task;
  const Data& data = train.data();
  const auto open = [&](const std::string& field, const std::string& path, bool evaluation,
                        std::unique_ptr<tasks::Samples>& samples) {
    absl::StatusOr<std::unique_ptr<tasks::Samples>> opened = rank.task->Open(inventory, {.field = field,
                                                                                         .path = path,
                                                                                         .data = data,
                                                                                         .seed = train.seed(),
                                                                                         .evaluation = evaluation,
                                                                                         .context_rank = context_rank});
    if (absl::IsNotFound(opened.status())) {
      return absl::NotFoundError(absl::StrCat(opened.status().message(), " (paths are those of the worker)"));
    }
    if (!opened.ok()) return opened.status();
    samples = *std::move(opened);
    return absl::OkStatus();
  };
  const models::DataSource source = models::SourceOf(rank.task->name(), data);
  absl::Status status = open(source.field, source.path, /*evaluation=*/false, rank.samples);
  if (status.ok() && !data.validation().empty()) {
    status = open("data.validation", data.validation(), /*evaluation=*/true, rank.validation);
  }
  if (!status.ok() || data.tokens().empty()) return status;
  absl::StatusOr<std::optional<TokenizerOrigin>> origin = data::ReadTokenizerOrigin(data.tokens());
  if (!origin.ok()) return absl::InvalidArgumentError(absl::StrCat("data.tokens: ", origin.status().message()));
  rank.tokenizer = *std::move(origin);
  status = data::CheckTokenizer(data.validation(), data.tokens(), rank.tokenizer);
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("data.validation: ", status.message()));
}

// In all. The links of a pair of nodes take half of it in each direction.
constexpr absl::Duration kMeasureLinks = absl::Milliseconds(800);
constexpr absl::Duration kMeasureCompressing = absl::Milliseconds(100);

absl::StatusOr<std::vector<RankLink>> MeasureNetwork(const Assignment& assignment, const Ranks& ranks) {
  std::vector<RankLink> links;
  collectives::Group* const world = ranks.groups[kWorldGroup];
  if (assignment.measure_links().empty() || world == nullptr) return links;
  std::vector<std::pair<int, int>> pairs;
  for (const LinkPair& pair : assignment.measure_links()) {
    pairs.emplace_back(static_cast<int>(pair.first()), static_cast<int>(pair.second()));
  }
  const auto begin = std::chrono::steady_clock::now();
  const c10::Device device(assignment.device() == DEVICE_CUDA ? c10::kCUDA : c10::kCPU);
  const auto measured = collectives::MeasureLinks(*world, pairs, kMeasureLinks, device);
  if (!measured.ok()) return measured.status();
  // Afterwards: before it, a rank would delay those that wait for it, and a first message that takes long counts.
  strategies::Compressing compressing;
  if (device.is_cpu() && !measured->empty()) compressing = MeasureCompressing(kMeasureCompressing);
  for (const collectives::MeasuredLink& of : *measured) {
    RankLink& link = links.emplace_back();
    link.set_to(static_cast<uint32_t>(of.to));
    link.set_bytes_per_second(of.bytes_per_second);
    link.set_latency_seconds(of.latency_seconds);
    if (device.is_cpu()) {
      CoreRates& core = *link.mutable_core();
      core.set_socket_bytes_per_second(of.socket_bytes_per_second);
      core.set_top_k_seconds(compressing.top_k);
      core.set_power_sgd_seconds(compressing.power_sgd);
      core.set_int8_seconds(compressing.int8);
    }
    LogInfo("link measured", {{"to_rank", of.to},
                              {"bytes_per_second", of.bytes_per_second},
                              {"latency_seconds", of.latency_seconds},
                              {"socket_bytes_per_second", of.socket_bytes_per_second},
                              {"int8_seconds", compressing.int8}});
  }
  const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - begin);
  if (!links.empty()) LogInfo("links measured", {{"took", absl::Trunc(took, absl::Milliseconds(1))}});
  return links;
}

// Fills in the groups and the links.
template <typename To>
absl::Status JoinInto(const Assignment& assignment, collectives::KeyValue& rendezvous, To& to) {
  absl::StatusOr<Ranks> ranks =
      JoinRanks(assignment, to.program.layout.mesh,
                GroupsToJoin(to.program.inventory, to.program.layout, to.program.rank), rendezvous);
  if (!ranks.ok()) return ranks.status();
  to.ranks = *std::move(ranks);
  absl::StatusOr<std::vector<RankLink>> links = MeasureNetwork(assignment, to.ranks);
  if (!links.ok()) return links.status();
  to.links = *std::move(links);
  return absl::OkStatus();
}

// None: the job begins.
absl::StatusOr<std::optional<Resumed>> ResumeFromAny(const Assignment& assignment, collectives::KeyValue& rendezvous,
                                                     Rank& rank) {
  collectives::Group* const world = rank.ranks.groups[kWorldGroup];
  const strategies::Layout& layout = rank.program.layout;
  if (assignment.has_resume_from()) {
    return Resume(assignment, world, rendezvous, layout, *rank.engine, rank.outer.get());
  }
  absl::StatusOr<std::optional<Resumed>> adopted = ResumeAdopted(assignment, world, rendezvous, layout, *rank.engine);
  if (!adopted.ok() || adopted->has_value()) return adopted;
  if (assignment.spec().train().checkpoint().resume_from().empty()) return std::nullopt;
  return ResumeOther(assignment, world, rendezvous, layout, *rank.engine);
}

}  // namespace

checkpoint::Holder HolderOf(const Assignment& assignment) {
  return {.job = assignment.key().job(), .store_id = assignment.store_id()};
}

absl::StatusOr<Joined> Join(const Assignment& assignment, collectives::KeyValue& rendezvous) {
  absl::StatusOr<Program> program = CompileProgram(assignment);
  if (!program.ok()) return program.status();
  Joined joined{.program = *std::move(program)};
  if (absl::Status status = JoinInto(assignment, rendezvous, joined); !status.ok()) return status;
  return joined;
}

absl::StatusOr<Rank> SetUp(const Assignment& assignment, collectives::KeyValue& rendezvous,
                           engine::OpListener* progress, const SetUpOptions& options) {
  const Train& train = assignment.spec().train();
  absl::StatusOr<Program> program = CompileProgram(assignment);
  if (!program.ok()) return program.status();
  Rank rank;
  rank.program = *std::move(program);
  absl::StatusOr<std::shared_ptr<plugin::Model>> plugin =
      plugins::LoadPlugin(train.model(), {.roots = options.plugin_roots, .named = ""});
  if (!plugin.ok()) return plugin.status();
  if (absl::Status status = OpenData(assignment, rank); !status.ok()) return status;
  if (!train.checkpoint().path().empty()) {
    const auto check = assignment.key().rank() == 0 ? checkpoint::Claim : checkpoint::CheckFolder;
    absl::Status status = check(train.checkpoint().path(), HolderOf(assignment));
    if (!status.ok()) return AsErrorOfJob(status);
  }
  if (!train.offload().to().empty()) {
    if (absl::Status status = CheckConfined(train.offload().to()); !status.ok()) return status;
  }
  if (absl::Status status = JoinInto(assignment, rendezvous, rank); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<engine::Engine>> engine =
      MakeEngine(assignment, rank.program, rank.ranks, progress, *std::move(plugin), options);
  if (!engine.ok()) return engine.status();
  rank.engine = *std::move(engine);
  rank.flops_per_second = MeasureSpeed({.width = static_cast<int64_t>(models::TypicalWidth(rank.program.inventory)),
                                        .dtype = train.precision().compute(),
                                        .cuda = assignment.device() == DEVICE_CUDA});
  if (train.has_sync()) {
    rank.parameters = ParametersOf(*rank.engine);
    absl::StatusOr<std::unique_ptr<OuterState>> outer =
        OuterState::Create(rank.parameters.get(), rank.program.inventory, train.sync());
    if (!outer.ok()) return outer.status();
    rank.outer = *std::move(outer);
  }
  for (const std::string& note : rank.engine->Notes()) LogInfo("kernel chosen", {{"choice", note}});
  const absl::StatusOr<std::optional<Resumed>> resumed = ResumeFromAny(assignment, rendezvous, rank);
  if (!resumed.ok()) return resumed.status();
  if (resumed->has_value()) {
    rank.resumed_step = (*resumed)->step;
    rank.samples_consumed = (*resumed)->samples_consumed;
  } else if (const std::string& from = train.model().from(); !from.empty()) {
    collectives::Group* const world = rank.ranks.groups[kWorldGroup];
    if (absl::Status status = LoadInitial(assignment, world, rendezvous, *rank.engine); !status.ok()) return status;
    LogInfo("weights imported", {{"from", from}});
  }
  // What another run's checkpoint or an import gave is where this one begins.
  if (rank.outer != nullptr && !assignment.has_resume_from()) {
    if (absl::Status status = rank.outer->Restart(); !status.ok()) return status;
  }
  return rank;
}

}  // namespace muster::trainer
