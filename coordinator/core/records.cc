#include "coordinator/core/records.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint_names.h"
#include "coordinator/core/exits.h"
#include "coordinator/core/job_paths.h"
#include "coordinator/core/job_plan.h"
#include "coordinator/core/jobs.h"
#include "strategies/schedule/mesh.h"

namespace muster::core {
namespace {

std::string Serialise(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  {
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

// A generation of thousands of ranks has their nodes, roles and exits. Compressed it stays below the store's limit of a
// row; below that size it would only take time. A serialized message never begins like gzip does: it would be field 3
// with a wire type that there is none of.
constexpr size_t kCompressBeyond = 384 * 1024;
constexpr char kGzipMagic[] = "\x1f\x8b";

std::string SerialiseLarge(const google::protobuf::Message& message) {
  std::string plain = Serialise(message);
  if (plain.size() <= kCompressBeyond) return plain;
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::GzipOutputStream::Options options;
  options.compression_level = 1;
  google::protobuf::io::GzipOutputStream gzip(&stream, options);
  {
    google::protobuf::io::CodedOutputStream coded(&gzip);
    coded.WriteString(plain);
  }
  gzip.Close();
  return bytes;
}

bool ParseLarge(const std::string& bytes, google::protobuf::Message& message) {
  if (!absl::StartsWith(bytes, kGzipMagic)) return message.ParseFromString(bytes);
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::GzipInputStream gzip(&stream);
  return message.ParseFromZeroCopyStream(&gzip) && gzip.ZlibErrorMessage() == nullptr;
}

absl::Status Damaged(const std::string& key, const std::string& why) {
  return absl::DataLossError(absl::StrCat("the store's row ", key, " is damaged: ", why,
                                          "; restore a backup of state.db (muster backup makes them)"));
}

// Builds before ranks shared sequences by a choice of the coordinator's stored no RankRole.context: the spec has it.
void RestoreContext(const JobSpec& spec, Generation& generation) {
  const auto& ranks = generation.ranks();
  if (ContextRanksOf(spec) == 1 ||
      std::any_of(ranks.begin(), ranks.end(), [](const RankPlacement& rank) { return rank.role().context() > 0; })) {
    return;
  }
  Mesh mesh = MeshOf(generation);
  mesh.context = ContextRanksOf(spec);
  if (mesh.ranks() != static_cast<uint32_t>(ranks.size()) || mesh.data_ranks() % mesh.context != 0) return;
  for (uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
    generation.mutable_ranks(static_cast<int>(rank))
        ->mutable_role()
        ->set_context(ContextRankAt(mesh, CoordinateOf(mesh, rank)));
  }
}

// Builds before the mesh had a shard axis of its own stored no RankRole.shard_in_stage: the owner's number has it. Of
// numbers that no mesh has, such as those of programs, none is derived.
void RestoreShards(Generation& generation) {
  Mesh mesh;
  uint32_t owners = 1;
  for (const RankPlacement& rank : generation.ranks()) {
    const RankRole& role = rank.role();
    if (role.shard_in_stage() > 0) return;
    mesh.pipeline = std::max(mesh.pipeline, role.stage() + 1);
    mesh.tensor = std::max(mesh.tensor, role.tensor() + 1);
    owners = std::max(owners, role.shard() + 1);
  }
  mesh = WithShardsFor(mesh, owners);
  std::vector<uint32_t> shards;
  for (const RankPlacement& rank : generation.ranks()) {
    const Coordinate at = CoordinateOfOwner(mesh, rank.role().shard());
    if (at.pipeline != rank.role().stage() || at.tensor != rank.role().tensor()) return;
    shards.push_back(at.shard);
  }
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    generation.mutable_ranks(static_cast<int>(rank))->mutable_role()->set_shard_in_stage(shards[rank]);
  }
}

// A generation that is stopping starts no rank again, so one that has exited needs its slots no more, however long the
// others take. REQUIRES: the generation has not ended.
bool HoldsSlots(const GenerationMachine& generation, const RankPlacement& rank) {
  return rank.state() != RANK_STATE_EXITED || generation.state() != GENERATION_STATE_STOPPING;
}

}  // namespace

std::string JobKey(const JobId& job) { return absl::StrCat("job/", job.value()); }

std::string GenerationKey(const JobId& job, uint64_t generation) {
  return absl::StrFormat("generation/%s/%010d", job.value(), generation);
}

std::string NodeKey(const NodeId& node) { return absl::StrCat("node/", node.value()); }

std::string RunKey(const std::string& run) { return absl::StrCat("run/", run); }

std::string ProjectKey(const std::string& project) { return absl::StrCat("project/", project); }

std::string ReservationKey(const std::string& reservation) { return absl::StrCat("reservation/", reservation); }

std::string UsageKey(const std::string& project) { return absl::StrCat("usage/", project); }

std::string TemplateKey(const std::string& name) { return absl::StrCat("template/", name); }

absl::Status Records::LoadRow(const Row& row, SteadyTime now) {
  if (absl::StartsWith(row.key, "job/")) {
    Job job;
    if (!job.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    const JobId id(job.id());
    if (row.key != JobKey(id)) return Damaged(row.key, absl::StrCat("it holds job ", job.id()));
    if (!JobState_IsValid(job.state()) || job.state() == JOB_STATE_UNSPECIFIED)
      return Damaged(row.key, "it has no state");
    next_sequence_ = std::max(next_sequence_, job.sequence() + 1);
    Insert(std::move(job));
  } else if (absl::StartsWith(row.key, "node/")) {
    Node node;
    if (!node.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    const NodeId id(node.id());
    if (row.key != NodeKey(id)) return Damaged(row.key, absl::StrCat("it holds node ", node.id()));
    if (!NodeState_IsValid(node.state()) || node.state() == NODE_STATE_UNSPECIFIED)
      return Damaged(row.key, "it has no state");
    const std::string boot = node.boot_id();
    nodes.emplace(id, NodeEntry{.machine = NodeMachine(std::move(node)), .boot = boot});
  } else if (absl::StartsWith(row.key, "run/")) {
    SyncRun run;
    if (!run.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    if (row.key != RunKey(run.id())) return Damaged(row.key, absl::StrCat("it holds run ", run.id()));
    const std::string id = run.id();
    runs.emplace(id, RunEntry(std::move(run)));
  } else if (absl::StartsWith(row.key, "project/")) {
    Project project;
    if (!project.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    if (row.key != ProjectKey(project.name())) return Damaged(row.key, "its key is another's");
    projects[project.name()] = std::move(project);
  } else if (absl::StartsWith(row.key, "reservation/")) {
    Reservation reservation;
    if (!reservation.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    if (row.key != ReservationKey(reservation.name())) return Damaged(row.key, "its key is another's");
    if (!ReservationState_IsValid(reservation.state()) || reservation.state() == RESERVATION_STATE_UNSPECIFIED) {
      return Damaged(row.key, "it has no state");
    }
    KeepReservation(std::move(reservation));
  } else if (absl::StartsWith(row.key, "usage/")) {
    ProjectUsage stored;
    if (!stored.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    if (row.key != UsageKey(stored.project())) return Damaged(row.key, "its key is another's");
    for (const UserUsage& user : stored.users()) usage[stored.project()][user.user()] = {user.slot_seconds(), now};
  } else if (absl::StartsWith(row.key, "template/")) {
    Template stored;
    if (!stored.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    if (row.key != TemplateKey(stored.name())) return Damaged(row.key, "its key is another's");
    templates[stored.name()] = std::move(stored);
  }
  return absl::OkStatus();
}

absl::Status Records::Load(const std::vector<Row>& rows, SteadyTime now) {
  for (const Row& row : rows) {
    if (absl::Status s = LoadRow(row, now); !s.ok()) return s;
  }
  // Generations need their jobs, which are loaded by now.
  for (const Row& row : rows) {
    if (!absl::StartsWith(row.key, "generation/")) continue;
    if (absl::Status s = LoadGeneration(row); !s.ok()) return s;
  }
  RestoreForgottenNodes();
  return Check();
}

// Earlier builds forgot a lost node although other ranks of a generation with ranks there still ran. It is lost again,
// and may be forgotten when the generation has ended.
void Records::RestoreForgottenNodes() {
  for (const auto& [id, job] : jobs) {
    const GenerationMachine* newest = job.newest();
    if (newest == nullptr || newest->ended()) continue;
    for (const RankPlacement& rank : newest->record().ranks()) {
      const NodeId node_id(rank.node());
      if (rank.state() != RANK_STATE_EXITED || nodes.contains(node_id)) continue;
      Node lost;
      lost.set_id(rank.node());
      lost.set_state(NODE_STATE_LOST);
      *lost.mutable_registered() = *lost.mutable_changed() = rank.exit().ended();
      nodes.emplace(node_id, NodeEntry{.machine = NodeMachine(std::move(lost))});
    }
  }
}

absl::Status Records::LoadGeneration(const Row& row) {
  Generation generation;
  if (!ParseLarge(row.value, generation)) return Damaged(row.key, "it does not parse");
  JobEntry* job = FindJob(JobId(generation.job()));
  if (job == nullptr) return Damaged(row.key, absl::StrCat("there is no job ", generation.job()));
  const uint64_t number = generation.number();
  if (row.key != GenerationKey(JobId(generation.job()), number)) return Damaged(row.key, "its key is another's");
  if (!GenerationState_IsValid(generation.state()) || generation.state() == GENERATION_STATE_UNSPECIFIED) {
    return Damaged(row.key, "it has no state");
  }
  RestoreShards(generation);
  RestoreContext(job->record().spec(), generation);
  job->generations.emplace(number, GenerationMachine(std::move(generation)));
  return absl::OkStatus();
}

// Rows that are valid by themselves may still contradict each other.
absl::Status Records::Check() const {
  std::map<uint64_t, JobId> sequences;
  std::map<std::pair<std::string, uint32_t>, JobId> slots;
  for (const auto& [id, job] : jobs) {
    const std::string key = JobKey(id);
    if (const auto [other, fresh] = sequences.emplace(job.record().sequence(), id); !fresh) {
      return Damaged(key, absl::StrCat("it has the same sequence number as ", other->second.value()));
    }
    if (const JobId& other = by_request_.at(RequestOf(job.record())); other != id) {
      return Damaged(key, absl::StrCat("its request is that of ", other.value()));
    }
    if (const Sync& sync = job.record().spec().train().sync(); !sync.run().empty()) {
      const auto run = runs.find(sync.run());
      if (run == runs.end()) return Damaged(key, absl::StrCat("there is no run ", sync.run()));
      if (run->second.record.fragments_size() != static_cast<int>(sync.fragments()))
        return Damaged(key, absl::StrCat("run ", sync.run(), " has other fragments"));
    }
    const GenerationMachine* newest = job.newest();
    const uint64_t number = newest == nullptr ? 0 : newest->record().number();
    if (number != job.record().generation()) {
      return Damaged(key,
                     absl::StrCat("its generation is ", job.record().generation(), ", but the newest is ", number));
    }
    if (job.machine.active() != (newest != nullptr && !newest->ended())) {
      return Damaged(
          key, absl::StrCat("it is ", JobState_Name(job.machine.state()), ", which does not fit generation ", number));
    }
    for (const auto& [n, generation] : job.generations) {
      const std::string generation_key = GenerationKey(id, n);
      if (generation.ended()) continue;
      if (n != number) return Damaged(generation_key, "it has not ended, but has a successor");
      for (uint32_t rank = 0; rank < static_cast<uint32_t>(generation.record().ranks_size()); ++rank) {
        const RankPlacement& placement = *generation.rank(rank);
        if (placement.rank() != rank) return Damaged(generation_key, "its ranks are not numbered from 0");
        if (!nodes.contains(NodeId(placement.node()))) {
          return Damaged(generation_key, absl::StrCat("there is no node ", placement.node()));
        }
        if (!HoldsSlots(generation, placement)) continue;
        for (const uint32_t slot : placement.slots()) {
          const auto [other, fresh] = slots.emplace(std::pair(placement.node(), slot), id);
          if (!fresh) return Damaged(generation_key, absl::StrCat("it shares a slot with ", other->second.value()));
        }
      }
    }
  }
  return absl::OkStatus();
}

void Records::Write(const Transaction& transaction, Outcome& outcome) const {
  for (const std::string& key : transaction.deleted_keys) outcome.rows.push_back({key, std::nullopt});
  for (const JobId& id : transaction.jobs) {
    const auto job = jobs.find(id);
    if (job != jobs.end()) outcome.rows.push_back({JobKey(id), Serialise(job->second.record())});
  }
  for (const auto& [id, number] : transaction.generations) {
    const auto job = jobs.find(id);
    if (job == jobs.end()) continue;
    const auto generation = job->second.generations.find(number);
    if (generation == job->second.generations.end()) continue;
    outcome.rows.push_back({GenerationKey(id, number), SerialiseLarge(generation->second.record())});
  }
  for (const NodeId& id : transaction.nodes) {
    const auto node = nodes.find(id);
    if (node != nodes.end()) outcome.rows.push_back({NodeKey(id), Serialise(node->second.record())});
  }
  for (const std::string& id : transaction.runs) {
    const auto run = runs.find(id);
    if (run != runs.end()) outcome.rows.push_back({RunKey(id), Serialise(run->second.record)});
  }
  for (const std::string& name : transaction.projects) {
    const auto project = projects.find(name);
    if (project != projects.end()) outcome.rows.push_back({ProjectKey(name), Serialise(project->second)});
  }
  for (const std::string& name : transaction.reservations) {
    const auto reservation = reservations.find(name);
    if (reservation != reservations.end())
      outcome.rows.push_back({ReservationKey(name), Serialise(reservation->second)});
  }
  for (const std::string& name : transaction.usages) {
    const auto of = usage.find(name);
    if (of == usage.end()) continue;
    ProjectUsage stored;
    stored.set_project(name);
    for (const auto& [user, used] : of->second) {
      UserUsage& row = *stored.add_users();
      row.set_user(user);
      row.set_slot_seconds(used.slot_seconds);
    }
    outcome.rows.push_back({UsageKey(name), Serialise(stored)});
  }
  for (const std::string& name : transaction.templates) {
    outcome.rows.push_back({TemplateKey(name), Serialise(templates.at(name))});
  }
}

JobEntry& Records::Insert(Job record) {
  const JobId id(record.id());
  by_request_[RequestOf(record)] = id;
  const std::string& path = record.spec().train().checkpoint().path();
  if (!path.empty()) folders_.emplace(NormalizedPath(path), id);
  JobEntry& job = jobs.emplace(id, JobEntry{.machine = JobMachine(std::move(record))}).first->second;
  live_.emplace(id, &job);
  return job;
}

std::vector<JobEntry*> Records::Live() {
  std::vector<JobEntry*> live;
  live.reserve(live_.size());
  for (const auto& [id, job] : live_) live.push_back(job);
  return live;
}

std::vector<const JobEntry*> Records::Live() const {
  std::vector<const JobEntry*> live;
  live.reserve(live_.size());
  for (const auto& [id, job] : live_) live.push_back(job);
  return live;
}

void Records::NoteEnd(const JobId& id, SteadyTime at) {
  live_.erase(id);
  ended_by_sequence_.emplace(jobs.at(id).record().sequence(), id);
  ended_in_order_.emplace_back(at, id);
}

const std::pair<SteadyTime, JobId>* Records::FirstEnded() {
  while (!ended_in_order_.empty() && !jobs.contains(ended_in_order_.front().second)) ended_in_order_.pop_front();
  return ended_in_order_.empty() ? nullptr : &ended_in_order_.front();
}

void Records::KeepReservation(Reservation reservation) {
  const std::string name = reservation.name();
  std::set<NodeId> nodes;
  for (const std::string& node : reservation.nodes()) nodes.insert(NodeId(node));
  const auto same = std::find_if(reserved_nodes.begin(), reserved_nodes.end(),
                                 [&](const auto& entry) { return *entry.second == nodes; });
  reserved_nodes[name] =
      same != reserved_nodes.end() ? same->second : std::make_shared<const std::set<NodeId>>(std::move(nodes));
  reservations[name] = std::move(reservation);
}

void Records::EraseReservation(const std::string& name) {
  reservations.erase(name);
  reserved_nodes.erase(name);
}

void Records::ForEnded(uint64_t below, const std::function<bool(const JobEntry& job)>& more) const {
  auto at = below == 0 ? ended_by_sequence_.end() : ended_by_sequence_.lower_bound({below, JobId()});
  while (at != ended_by_sequence_.begin()) {
    if (!more(jobs.at((--at)->second))) return;
  }
}

JobEntry& Records::Add(Job record) {
  record.set_sequence(next_sequence_++);
  return Insert(std::move(record));
}

void Records::Delete(const JobId& id, Transaction& transaction) {
  const JobEntry& job = jobs.at(id);
  transaction.deleted_keys.push_back(JobKey(id));
  for (const auto& [number, generation] : job.generations)
    transaction.deleted_keys.push_back(GenerationKey(id, number));
  by_request_.erase(RequestOf(job.record()));
  ended_by_sequence_.erase({job.record().sequence(), id});
  folders_.erase({NormalizedPath(job.record().spec().train().checkpoint().path()), id});
  const std::string run = job.record().spec().train().sync().run();
  jobs.erase(id);
  if (run.empty()) return;
  for (auto it = jobs.lower_bound(JobId(run)); it != jobs.end(); ++it) {
    if (!absl::StartsWith(it->first.value(), run)) break;
    if (it->second.record().spec().train().sync().run() == run) return;
  }
  runs.erase(run);
  transaction.deleted_keys.push_back(RunKey(run));
}

const JobEntry* Records::FindRequest(const std::string& owner, const std::string& request_id) const {
  const auto found = by_request_.find({owner, request_id});
  return found == by_request_.end() ? nullptr : &jobs.at(found->second);
}

std::string Records::FolderConflict(const JobSpec& spec) const {
  const std::string& path = spec.train().checkpoint().path();
  if (path.empty()) return "";
  const std::string folder = NormalizedPath(path);
  // The spec was checked without the id, which may end like the name of a checkpoint.
  if (const std::string why = checkpoint::WhyReserved(path); !why.empty()) {
    return absl::StrCat("checkpoint.path ", path, " ", why);
  }
  const auto first = folders_.lower_bound({folder, JobId()});
  if (first == folders_.end() || first->first != folder) return "";
  const JobEntry& other = jobs.at(first->second);
  const std::string& id = first->second.value();
  // It may be a link to another job's folder, from which that job was refused: nothing in it is known to be its own.
  const bool unused = other.machine.ended() && other.record().checkpoints().empty();
  std::string conflict = absl::StrCat(
      "checkpoint.path ", path, unused ? " is the path of job \"" : " belongs to job \"", other.record().spec().name(),
      "\" (", id, ", ", NameOf(other.machine.state()), unused ? "), which saved no checkpoint there" : ")",
      ": choose another path, or put {job} in it for a folder per job");
  if (unused) {
    absl::StrAppend(&conflict, "; to use the path again, delete that job (muster delete ", id,
                    "), and if the folder exists, read ", folder, "/", checkpoint::kOwnerFile, " first: if it names ",
                    id,
                    ", move or remove the folder; if it names another job, the folder is that job's, so choose "
                    "another path");
  } else if (other.machine.ended()) {
    absl::StrAppend(&conflict, "; to use the folder again, forget that job (muster delete ", id,
                    ") and move or remove its checkpoints");
  }
  return conflict;
}

const Slot* Records::SlotAt(const NodeId& node, uint32_t index) const {
  const auto& slots = nodes.at(node).record().slots();
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) { return slot.index() == index; });
  return found == slots.end() ? nullptr : &*found;
}

uint64_t Records::SlotsHeldBy(const JobEntry& job) {
  const GenerationMachine* generation = job.newest();
  if (generation == nullptr || generation->ended()) return 0;
  uint64_t held = 0;
  for (const RankPlacement& rank : generation->record().ranks()) {
    if (HoldsSlots(*generation, rank)) held += static_cast<uint64_t>(rank.slots_size());
  }
  return held;
}

Records::Holders Records::SlotHolders() const {
  Holders holders;
  for (const JobEntry* job : Live()) {
    const JobId id = job->id();
    const GenerationMachine* generation = job->newest();
    if (generation == nullptr || generation->ended()) continue;
    for (const RankPlacement& rank : generation->record().ranks()) {
      if (!HoldsSlots(*generation, rank)) continue;
      const SlotState state = rank.state() == RANK_STATE_STARTING ? SLOT_STATE_RESERVED : SLOT_STATE_USED;
      for (const uint32_t slot : rank.slots()) holders[NodeId(rank.node())][slot] = {id, state};
    }
  }
  return holders;
}

uint64_t NewestNumber(const Job& job) { return std::max(job.generation(), job.skipped_to()); }

uint64_t NextNumber(const Job& job) { return NewestNumber(job) + 1; }

void Records::SkipNumbers(JobEntry& job, uint64_t to, Transaction& transaction) {
  job.machine.fields().set_skipped_to(to);
  transaction.Touch(job.id());
}

JobEntry* Records::FindJob(const JobId& id) {
  const auto found = jobs.find(id);
  return found == jobs.end() ? nullptr : &found->second;
}

const JobEntry* Records::FindJob(const JobId& id) const {
  const auto found = jobs.find(id);
  return found == jobs.end() ? nullptr : &found->second;
}

NodeEntry* Records::FindNode(const NodeId& id) {
  const auto found = nodes.find(id);
  return found == nodes.end() ? nullptr : &found->second;
}

const NodeEntry* Records::FindNode(const NodeId& id) const {
  const auto found = nodes.find(id);
  return found == nodes.end() ? nullptr : &found->second;
}

JobEntry* Records::NeedJob(const JobId& id, Transaction& transaction) {
  JobEntry* job = FindJob(id);
  if (job == nullptr) transaction.status = absl::NotFoundError(absl::StrCat("no job ", id.value()));
  return job;
}

NodeEntry* Records::NeedNode(const NodeId& id, Transaction& transaction) {
  NodeEntry* node = FindNode(id);
  if (node == nullptr) {
    transaction.status = absl::NotFoundError(absl::StrCat("no node ", id.value(), "; muster nodes lists them"));
  }
  return node;
}

}  // namespace muster::core
