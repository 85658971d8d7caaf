#include "coordinator/core/node_health.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"
#include "common/utf8.h"

namespace muster::core {
namespace {

constexpr int kFaultsKept = 64;  // of a node
constexpr size_t kFaultBytes = 512;
constexpr size_t kFaultsNamed = 3, kDrainReasonBytes = 1024;
// A single job may be at fault itself; when a second one fails on the node, its worker checks the machine again.
constexpr uint32_t kSuspicious = 2;
constexpr absl::Duration kClockTolerance = absl::Minutes(1);

// Faults of one job count once, so that no job has nodes drained by itself. Of exec jobs those of one user do, who may
// submit a program that crashes as often as they like.
uint32_t ScoreOf(const Node& node) {
  std::set<std::string> suspects;
  uint32_t own = 0;
  for (const NodeFault& fault : node.faults()) {
    if (fault.job().empty()) {
      ++own;
    } else {
      suspects.insert(fault.user().empty() ? fault.job() : absl::StrCat("programs of ", fault.user()));
    }
  }
  return own + static_cast<uint32_t>(suspects.size());
}

}  // namespace

void NodeHealth::Recover(Now now) {
  for (auto& [id, node] : records_->nodes) {
    node.fault_times.assign(static_cast<size_t>(node.record().faults_size()), now.steady);
    if (!node.fault_times.empty()) with_faults_.insert(id);
  }
}

void NodeHealth::Take(const NodeId& id, NodeEntry& node, const Preflight* preflight, Transaction& transaction) {
  Node& fields = node.machine.fields();
  const std::string before = fields.has_preflight() ? ProblemsOf(fields.preflight()) : "";
  transaction.Touch(id);
  if (preflight == nullptr) {
    fields.clear_preflight();
    fields.clear_wanted_preflight();
    return;
  }
  // A new daemon is checking the machine: until it has, what its predecessor found is not known to be over.
  if (!preflight->has_time() && !before.empty()) return;
  *fields.mutable_preflight() = *preflight;
  // At its start a daemon does not know yet which one is wanted, and finds what that would.
  if (preflight->number() == 0) fields.mutable_preflight()->set_number(fields.wanted_preflight());
  const std::string problems = ProblemsOf(*preflight);
  if (problems == before) return;
  if (problems.empty()) {
    return transaction.AddEvent(
        nullptr, 0, id.value(), "node.ready",
        absl::StrCat("node ", id.value(), " takes ranks again: its worker found no problem with the machine"));
  }
  transaction.AddEvent(
      nullptr, 0, id.value(), "node.unready",
      absl::StrCat("node ", id.value(), " takes no new ranks: ", problems, "; its worker checks again every minute"));
}

void NodeHealth::CompareClocks(const NodeId& id, absl::Time of_worker, Transaction& transaction) {
  if (absl::AbsDuration(of_worker - transaction.now.wall) <= kClockTolerance) return;
  transaction.AddEvent(
      nullptr, 0, id.value(), "node.clock",
      absl::StrCat("the clock of node ", id.value(), " is ", Difference(of_worker, transaction.now.wall),
                   " the coordinator's: certificates, tokens and times in logs may be wrong; check NTP on both"));
}

void NodeHealth::AskAgain(const NodeId& id, NodeEntry& node, Transaction& transaction) {
  Node& fields = node.machine.fields();
  if (!fields.has_preflight() || ProblemsOf(fields.preflight()).empty()) return;
  fields.set_wanted_preflight(std::max(fields.wanted_preflight(), fields.preflight().number()) + 1);
  transaction.Touch(id);
  transaction.ChangeDesired(id);
}

std::vector<NodeId> NodeHealth::Judge(Transaction& transaction) {
  std::vector<NodeId> drained;
  for (Transaction::Fault& fault : std::exchange(transaction.faults, {})) {
    NodeEntry* node = records_->FindNode(fault.node);
    if (node == nullptr) continue;
    Node& fields = node->machine.fields();
    if (fields.faults_size() == kFaultsKept) {
      DropFaults(*node, [first = true](const NodeFault&, SteadyTime) mutable { return std::exchange(first, false); });
    }
    NodeFault& kept = *fields.add_faults();
    *kept.mutable_time() = ToProto(transaction.now.wall);
    kept.set_job(fault.job.value());
    const JobEntry* job = records_->FindJob(fault.job);
    if (job != nullptr && job->record().spec().has_exec()) kept.set_user(job->record().owner());
    kept.set_what(std::move(fault.what));
    ShortenUtf8(kFaultBytes, *kept.mutable_what());
    node->fault_times.push_back(transaction.now.steady);
    with_faults_.insert(fault.node);
    transaction.Touch(fault.node);
    DropFaults(*node, [&](const NodeFault&, SteadyTime at) {
      return transaction.now.steady - at > options_->node_fault_window;
    });
    const uint32_t score = ScoreOf(node->record());
    if (score >= options_->node_fault_limit && Drain(fault.node, *node, transaction)) drained.push_back(fault.node);
    const bool waits = fields.wanted_preflight() > fields.preflight().number();
    if (score >= kSuspicious && fields.has_preflight() && !waits) {
      fields.set_wanted_preflight(fields.preflight().number() + 1);
      transaction.ChangeDesired(fault.node);
    }
  }
  return drained;
}

void NodeHealth::ForgetOld(Transaction& transaction) {
  for (auto id = with_faults_.begin(); id != with_faults_.end() && !transaction.Full();) {
    NodeEntry* node = records_->FindNode(*id);
    const auto is_old = [&](const NodeFault&, SteadyTime at) {
      return transaction.now.steady - at > options_->node_fault_window;
    };
    if (node != nullptr && DropFaults(*node, is_old)) transaction.Touch(*id);
    id = node == nullptr || node->fault_times.empty() ? with_faults_.erase(id) : std::next(id);
  }
}

bool NodeHealth::MayDrainAnother() const {
  size_t all = 0, drained = 0;
  for (const auto& [id, node] : records_->nodes) {
    if (node.machine.state() == NODE_STATE_LOST) continue;
    ++all;
    drained += !node.record().drain_reason().empty();
  }
  if (all < 2) return false;
  const auto share = static_cast<size_t>(options_->most_drained_share * static_cast<double>(all));
  return drained < std::max<size_t>(1, share);
}

bool NodeHealth::Drain(const NodeId& id, NodeEntry& node, Transaction& transaction) const {
  const Node& record = node.record();
  if (record.draining()) return false;
  std::string why =
      absl::StrCat(ScoreOf(record), " faults in ", absl::FormatDuration(options_->node_fault_window), ": ");
  std::set<std::string> named;
  for (auto fault = record.faults().rbegin(); fault != record.faults().rend() && named.size() < kFaultsNamed; ++fault) {
    const std::string what = fault->job().empty() ? fault->what() : absl::StrCat(fault->job(), ", ", fault->what());
    if (named.insert(what).second) absl::StrAppend(&why, named.size() == 1 ? "" : "; ", what);
  }
  ShortenUtf8(kDrainReasonBytes, why);
  if (!MayDrainAnother()) {
    transaction.AddEvent(
        nullptr, 0, id.value(), "node.faulty",
        absl::StrCat("node ", id.value(), " had ", why, "; it is not drained, since too few nodes would be left"));
    return false;
  }
  node.machine.fields().set_draining(true);
  node.machine.fields().set_drain_reason(why);
  transaction.AddEvent(nullptr, 0, id.value(), "node.drained",
                       absl::StrCat("node ", id.value(), " is drained by the coordinator: ", why,
                                    "; when it is repaired: muster undrain ", id.value()));
  return true;
}

}  // namespace muster::core
