// Between records and the rows of a store.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>

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
    jobs.emplace(id, JobEntry{JobMachine(std::move(job)), {}, {}, {}, 0});
  } else if (absl::StartsWith(row.key, "node/")) {
    Node node;
    if (!node.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    const NodeId id(node.id());
    if (row.key != NodeKey(id)) return Damaged(row.key, absl::StrCat("it holds node ", node.id()));
    if (!NodeState_IsValid(node.state()) || node.state() == NODE_STATE_UNSPECIFIED)
      return Damaged(row.key, "it has no state");
    nodes.emplace(id, NodeEntry{NodeMachine(std::move(node)), {}, 1});
  }
  return absl::OkStatus();
}

absl::Status Core::State::Load(const std::vector<Row>& rows, Now now) {
  for (const Row& row : rows) {
    if (absl::Status s = LoadRow(row); !s.ok()) return s;
  }
  // Generations need their jobs.
  for (const Row& row : rows) {
    if (!absl::StartsWith(row.key, "generation/")) continue;
    Generation generation;
    if (!generation.ParseFromString(row.value)) return Damaged(row.key, "it does not parse");
    JobEntry* job = FindJob(JobId(generation.job()));
    if (job == nullptr) return Damaged(row.key, absl::StrCat("there is no job ", generation.job()));
    const uint64_t number = generation.number();
    if (row.key != GenerationKey(JobId(generation.job()), number)) return Damaged(row.key, "its key is another's");
    job->generations.emplace(number, GenerationMachine(std::move(generation)));
  }
  for (const auto& [id, job] : jobs) {
    if (!job.machine.active()) continue;
    const GenerationMachine* newest = job.newest();
    if (newest == nullptr || newest->record().number() != job.record().generation() || newest->ended()) {
      return Damaged(JobKey(id),
                     absl::StrCat("it is active, but its generation ", job.record().generation(), " is not"));
    }
  }
  Arm(now);
  return absl::OkStatus();
}

// No stored field is a steady instant: every timer starts anew, and every node has yet to return.
void Core::State::Arm(Now now) {
  for (auto& [id, node] : nodes) {
    if (node.machine.state() == NODE_STATE_LIVE) node.machine.GoAway(now);
    if (node.machine.state() == NODE_STATE_AWAY) {
      node.lost_at = now.steady + std::max(options.startup_grace, options.node_grace);
    }
  }
  for (auto& [id, job] : jobs) {
    if (job.machine.state() == JOB_STATE_STARTING) job.start_deadline = now.steady + options.start_deadline;
  }
}

void Core::State::Write(const Turn& turn, Outcome& outcome) const {
  for (const std::string& key : turn.deleted_keys) outcome.rows.push_back({key, std::nullopt});
  for (const JobId& id : turn.jobs) {
    const auto job = jobs.find(id);
    if (job != jobs.end()) outcome.rows.push_back({JobKey(id), Serialise(job->second.record())});
  }
  for (const auto& [id, number] : turn.generations) {
    const auto job = jobs.find(id);
    if (job == jobs.end()) continue;
    const auto generation = job->second.generations.find(number);
    if (generation == job->second.generations.end()) continue;
    outcome.rows.push_back({GenerationKey(id, number), Serialise(generation->second.record())});
  }
  for (const NodeId& id : turn.nodes) {
    const auto node = nodes.find(id);
    if (node != nodes.end()) outcome.rows.push_back({NodeKey(id), Serialise(node->second.record())});
  }
}

}  // namespace muster::core
