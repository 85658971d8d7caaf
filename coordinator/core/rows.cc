// Converts between records and the rows of a store.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/state.h"

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

absl::Status Damaged(const std::string& key, const std::string& why) {
  return absl::DataLossError(absl::StrCat("the store's row ", key, " is damaged: ", why,
                                          "; restore a backup of state.db (muster backup makes them)"));
}

// The highest step that the record shows as done.
uint64_t DoneStep(const Job& job) {
  const uint64_t published = job.checkpoints().empty() ? 0 : job.checkpoints().rbegin()->step();
  return std::max(published, job.progress_step());
}

// The phase in which the previous coordinator ended.
TimeTracker::Phase PhaseOf(const JobEntry& job) {
  using Phase = TimeTracker::Phase;
  const GenerationMachine* newest = job.newest();
  // Whether that generation ended by a pause, which is not a fault.
  const auto paused = [&](uint64_t number) {
    const auto found = job.generations.find(number);
    return found == job.generations.end() || found->second.record().reason() == END_REASON_PREEMPTED;
  };
  switch (job.machine.state()) {
    case JOB_STATE_QUEUED:
      return newest == nullptr || paused(job.record().generation()) ? Phase::kQueued : Phase::kRecovering;
    case JOB_STATE_STARTING:
      return paused(job.record().generation() - 1) ? Phase::kStarting : Phase::kRecovering;
    case JOB_STATE_STOPPING:
      return job.record().stop_intent() == STOP_INTENT_REQUEUE ? Phase::kRecovering : Phase::kRunning;
    case JOB_STATE_RUNNING:
      return Phase::kRunning;
    case JOB_STATE_PAUSED:
      return Phase::kPaused;
    default:
      return Phase::kOver;
  }
}

}  // namespace

std::string JobKey(const JobId& job) { return absl::StrCat("job/", job.value()); }

std::string GenerationKey(const JobId& job, uint64_t generation) {
  return absl::StrFormat("generation/%s/%010d", job.value(), generation);
}

std::string NodeKey(const NodeId& node) { return absl::StrCat("node/", node.value()); }

absl::Status Core::State::LoadRow(const Row& row) {
  if (absl::StartsWith(row.key, "job/")) {
    Job job;
    if (!job.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    const JobId id(job.id());
    if (row.key != JobKey(id)) return Damaged(row.key, absl::StrCat("it holds job ", job.id()));
    if (!JobState_IsValid(job.state()) || job.state() == JOB_STATE_UNSPECIFIED)
      return Damaged(row.key, "it has no state");
    next_sequence = std::max(next_sequence, job.sequence() + 1);
    by_request[job.request_id()] = id;
    AddFolder(job);
    jobs.emplace(id, JobEntry{.machine = JobMachine(std::move(job))});
  } else if (absl::StartsWith(row.key, "node/")) {
    Node node;
    if (!node.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    const NodeId id(node.id());
    if (row.key != NodeKey(id)) return Damaged(row.key, absl::StrCat("it holds node ", node.id()));
    if (!NodeState_IsValid(node.state()) || node.state() == NODE_STATE_UNSPECIFIED)
      return Damaged(row.key, "it has no state");
    const std::string boot = node.boot_id();
    nodes.emplace(id, NodeEntry{.machine = NodeMachine(std::move(node)), .boot = boot});
  }
  return absl::OkStatus();
}

absl::Status Core::State::Load(const std::vector<Row>& rows, Now now) {
  for (const Row& row : rows) {
    if (absl::Status s = LoadRow(row); !s.ok()) return s;
  }
  // Generations need their jobs, which are loaded by now.
  for (const Row& row : rows) {
    if (!absl::StartsWith(row.key, "generation/")) continue;
    Generation generation;
    if (!generation.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    JobEntry* job = FindJob(JobId(generation.job()));
    if (job == nullptr) return Damaged(row.key, absl::StrCat("there is no job ", generation.job()));
    const uint64_t number = generation.number();
    if (row.key != GenerationKey(JobId(generation.job()), number)) return Damaged(row.key, "its key is another's");
    if (!GenerationState_IsValid(generation.state()) || generation.state() == GENERATION_STATE_UNSPECIFIED) {
      return Damaged(row.key, "it has no state");
    }
    job->generations.emplace(number, GenerationMachine(std::move(generation)));
  }
  if (absl::Status s = CheckRows(); !s.ok()) return s;
  Arm(now);
  return absl::OkStatus();
}

// Rows that are valid by themselves may still contradict each other.
absl::Status Core::State::CheckRows() const {
  std::map<uint64_t, JobId> sequences;
  std::map<std::pair<std::string, uint32_t>, JobId> slots;
  for (const auto& [id, job] : jobs) {
    const std::string key = JobKey(id);
    if (const auto [other, fresh] = sequences.emplace(job.record().sequence(), id); !fresh) {
      return Damaged(key, absl::StrCat("it has the same sequence number as ", other->second.value()));
    }
    if (by_request.at(job.record().request_id()) != id) {
      return Damaged(key, absl::StrCat("its request is that of ", by_request.at(job.record().request_id()).value()));
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
        for (const uint32_t slot : placement.slots()) {
          const auto [other, fresh] = slots.emplace(std::pair(placement.node(), slot), id);
          if (!fresh) return Damaged(generation_key, absl::StrCat("it shares a slot with ", other->second.value()));
        }
      }
    }
  }
  return absl::OkStatus();
}

// No stored field is a steady-clock time: every timer restarts, and every node must reconnect.
void Core::State::Arm(Now now) {
  for (auto& [id, node] : nodes) {
    if (node.machine.state() == NODE_STATE_LIVE) node.machine.GoAway(now);
    if (node.machine.state() == NODE_STATE_AWAY) {
      node.lost_at = now.steady + std::max(options.timeouts.startup_grace, options.timeouts.node_grace);
    }
  }
  for (const auto& [id, node] : nodes) {
    if (node.record().draining() || node.record().leaving() || node.machine.state() == NODE_STATE_LOST)
      emptying.insert(id);
  }
  if (!emptying.empty()) more_work = now.steady;
  for (auto& [id, job] : jobs) {
    const JobState state = job.machine.state();
    job.time = TimeTracker(job.record().time_breakdown(), PhaseOf(job), DoneStep(job.record()), now.steady);
    job.time_kept = now.steady;
    if (state == JOB_STATE_RUNNING && RunsOnFewer(job)) job.grow_at = now.steady + options.grow_after;
    if (state == JOB_STATE_QUEUED && job.record().restarts_without_progress() > 0) {
      job.not_before = now.steady + Backoff(job.record());
    }
    if (state == JOB_STATE_STARTING) job.start_deadline = now.steady + TimeoutsOf(job.record()).start;
    if (!job.machine.active()) continue;
    const Generation& generation = job.newest()->record();
    if (state == JOB_STATE_STOPPING) {
      job.stop_overdue = now.steady + 2 * StopDeadline(job.record(), generation.reason());
    }
    plans.Ask(id, Plans::Purpose::kGeneration, SpecOf(job.record(), generation), PlacedSlots(generation), {});
    more_work = now.steady;  // a tick, which takes the request along
  }
}

void Core::State::KeepTimeBreakdowns(const Transaction& transaction) {
  for (const JobId& id : transaction.jobs) {
    JobEntry* job = FindJob(id);
    if (job == nullptr) continue;
    *job->machine.fields().mutable_time_breakdown() = job->time.UpTo(transaction.now.steady);
    job->time_kept = transaction.now.steady;
  }
}

void Core::State::Write(const Transaction& transaction, Outcome& outcome) const {
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
    outcome.rows.push_back({GenerationKey(id, number), Serialise(generation->second.record())});
  }
  for (const NodeId& id : transaction.nodes) {
    const auto node = nodes.find(id);
    if (node != nodes.end()) outcome.rows.push_back({NodeKey(id), Serialise(node->second.record())});
  }
}

}  // namespace muster::core
