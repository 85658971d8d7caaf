#include "coordinator/core/exchanges.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/core/replicas.h"

namespace muster::core {

struct Exchanges::Asked {
  const SyncRank* event = nullptr;
  const JobEntry* job = nullptr;
  RunEntry* run = nullptr;
  OpenExchange* open = nullptr;
  SyncFragment* fragment = nullptr;
  uint32_t replica = 0;
  const SyncRequest& request() const { return event->request; }
  const Sync& sync() const { return job->record().spec().train().sync(); }
  absl::Duration patience() const { return absl::Seconds(sync().patience_seconds()); }
};

namespace {

// Of an address and of a layout. Requests that wait are kept: an honest address is a host name (at most 253 characters)
// and a port, a layout a SHA-256 and four numbers.
constexpr size_t kMostTextBytes = 512;

absl::Status CheckSize(const SyncRequest& request, uint32_t replicas) {
  for (const auto& [field, text] : {std::pair("address", &request.address()), std::pair("layout", &request.layout())}) {
    if (text->size() <= kMostTextBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("an exchange's ", field, " has ", text->size(),
                                                   " bytes, and at most ", kMostTextBytes, " are accepted"));
  }
  const int held = std::max({request.holds_size(), request.held_generations_size(), request.held_steps_size()});
  if (held <= static_cast<int64_t>(replicas)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a rank holds ", held, " contributions, but its run has ", replicas, " replicas"));
}

// By replica, which contribution the rank has.
std::map<uint32_t, Contribution> HoldsOf(const SyncRequest& request) {
  std::map<uint32_t, Contribution> holds;
  for (int i = 0; i < request.holds_size(); ++i) {
    holds[request.holds(i)] = {i < request.held_generations_size() ? request.held_generations(i) : 0,
                               i < request.held_steps_size() ? request.held_steps(i) : 0};
  }
  return holds;
}

// A replica that restarts within an exchange, or that has gone on without it, makes another contribution. Older workers
// do not say which one they have.
bool Holds(const std::map<uint32_t, Contribution>& holds, uint32_t replica, const Contribution& made) {
  const auto held = holds.find(replica);
  if (held == holds.end()) return false;
  const auto [generation, step] = held->second;
  return (generation == 0 || generation == made.generation) && (step == 0 || made.step == 0 || step == made.step);
}

// Of `offers`, those that all ranks of the replica hold.
std::set<uint32_t> HeldByAll(const OpenExchange::Offer& offer, const std::map<uint32_t, OpenExchange::Offer>& offers) {
  std::set<uint32_t> all;
  for (const auto& [replica, other] : offers) {
    const bool held = std::all_of(offer.holds.begin(), offer.holds.end(),
                                  [&, of = replica, made = Contribution{other.generation, other.step}](
                                      const auto& of_rank) { return Holds(of_rank.second, of, made); });
    if (held) all.insert(replica);
  }
  return all;
}

// All ranks of the replica have applied the newest exchange.
bool HasApplied(const std::map<uint32_t, OpenExchange::Place>& places, const SyncFragment& fragment) {
  return !places.empty() && std::all_of(places.begin(), places.end(),
                                        [&](const auto& of) { return of.second.exchange == fragment.exchange(); });
}

bool Trains(const JobEntry& job) {
  const JobState state = job.machine.state();
  return state == JOB_STATE_STARTING || state == JOB_STATE_RUNNING;
}

}  // namespace

std::set<uint32_t> Complete(std::set<uint32_t> offering, const std::map<uint32_t, std::set<uint32_t>>& holds) {
  while (true) {
    std::map<uint32_t, int> lacking;
    for (const uint32_t of : offering) {
      for (const uint32_t other : offering) {
        if (of != other && !holds.at(of).contains(other)) ++lacking[of], ++lacking[other];
      }
    }
    if (lacking.empty()) return offering;
    const auto most = std::max_element(lacking.begin(), lacking.end(),
                                       [](const auto& a, const auto& b) { return a.second <= b.second; });
    offering.erase(most->first);
  }
}

size_t EntriesOf(const Records& records) {
  size_t entries = 0;
  for (const auto& [id, run] : records.runs) {
    entries += run.layouts.size();
    for (const OpenExchange& open : run.open) {
      entries += open.offers.size() + open.behind.size() + open.excused.size();
      for (const auto& [replica, places] : open.places) entries += places.size();
      for (const auto& [replica, offer] : open.offers) {
        for (const auto& [rank, held] : offer.holds) entries += 1 + held.size();
      }
    }
  }
  return entries;
}

const JobEntry* Exchanges::ReplicaOf(const RunEntry& run, uint32_t replica) const {
  return records_->FindJob(JobOfReplica(run.record.id(), replica));
}

bool Exchanges::IsCurrent(const RunEntry& run, uint32_t replica, uint64_t generation) const {
  const JobEntry* job = ReplicaOf(run, replica);
  return job != nullptr && job->running.has_value() && job->record().generation() == generation;
}

absl::Status Exchanges::Find(const SyncRank& event, Asked& asked) {
  if (absl::Status status = generations_->CheckCurrent(event.rank); !status.ok()) return status;
  asked.event = &event;
  asked.job = records_->FindJob(event.rank.job);
  const auto run = records_->runs.find(asked.sync().run());
  if (run == records_->runs.end()) {
    return absl::InvalidArgumentError(absl::StrCat(event.rank.job.value(), " has no replicas (sync in its spec)"));
  }
  asked.run = &run->second;
  if (absl::Status status = CheckSize(event.request, asked.run->record.replicas()); !status.ok()) return status;
  const uint32_t fragment = event.request.fragment();
  if (fragment >= asked.run->open.size()) {
    return absl::InvalidArgumentError(absl::StrCat("run ", run->first, " has no fragment ", fragment));
  }
  asked.open = &asked.run->open[fragment];
  asked.fragment = asked.run->record.mutable_fragments(static_cast<int>(fragment));
  asked.replica = asked.sync().replica();
  return CheckLayout(asked);
}

absl::Status Exchanges::CheckLayout(const Asked& asked) const {
  for (const auto& [replica, layout] : asked.run->layouts) {
    if (layout.second == asked.request().layout() || !IsCurrent(*asked.run, replica, layout.first)) continue;
    if (replica == asked.replica) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", asked.event->rank.rank, " of replica ", replica, " of ", asked.run->record.id(),
          " divides the model in another way than the replica's other ranks, or than it did before: their ",
          "nodes run different builds or files; make these the same on all nodes, and resume the job"));
    }
    return absl::FailedPreconditionError(
        absl::StrCat("replica ", asked.replica, " of ", asked.run->record.id(), " divides the model over its ranks ",
                     "in another way than replica ", replica, ": their nodes differ; name a strategy that divides it ",
                     "evenly, and slots of the same memory"));
  }
  return absl::OkStatus();
}

std::set<uint32_t> Exchanges::Expected(const Asked& asked) const {
  std::set<uint32_t> expected;
  for (uint32_t replica = 0; replica < asked.run->record.replicas(); ++replica) {
    const JobEntry* job = ReplicaOf(*asked.run, replica);
    if (job != nullptr && Trains(*job) && !asked.open->excused.contains(replica)) expected.insert(replica);
  }
  return expected;
}

std::set<uint32_t> Exchanges::Offering(const Asked& asked) const {
  std::set<uint32_t> offering;
  for (const auto& [replica, offer] : asked.open->offers) {
    const JobEntry* job = ReplicaOf(*asked.run, replica);
    if (job == nullptr || !IsCurrent(*asked.run, replica, offer.generation)) continue;
    if (offer.holds.size() == static_cast<size_t>(job->newest()->record().ranks_size())) offering.insert(replica);
  }
  return offering;
}

void Exchanges::CloseIfDecided(const Asked& asked, Transaction& transaction) {
  OpenExchange& open = *asked.open;
  const std::set<uint32_t> offering = Offering(asked), expected = Expected(asked);
  std::map<uint32_t, std::set<uint32_t>> holds;
  for (const uint32_t replica : offering) holds[replica] = HeldByAll(open.offers.at(replica), open.offers);
  const std::set<uint32_t> complete = Complete(offering, holds);
  if (complete.empty()) return;
  const bool all =
      complete == offering && std::includes(offering.begin(), offering.end(), expected.begin(), expected.end());
  if (!all && transaction.now.steady - *open.first_offer < asked.patience()) return;
  for (const uint32_t replica : expected) {
    if (complete.contains(replica)) continue;
    const JobEntry* job = ReplicaOf(*asked.run, replica);
    transaction.AddEvent(
        job, job->record().generation(), "", "sync.left_out",
        absl::StrCat(job->record().id(), " was left out of exchange ", asked.fragment->highest() + 1,
                     offering.contains(replica) ? ": its ranks and those of others did not reach each other"
                                                : ": it did not come",
                     " within ", absl::FormatDuration(asked.patience()), "; it goes on and catches up"));
  }
  Close(asked, complete, transaction);
}

void Exchanges::Close(const Asked& asked, const std::set<uint32_t>& members, Transaction& transaction) {
  SyncFragment& fragment = *asked.fragment;
  fragment.set_base(fragment.exchange());
  fragment.set_highest(fragment.highest() + 1);
  fragment.set_exchange(fragment.highest());
  fragment.clear_members();
  for (const uint32_t replica : members) {
    SyncMember& member = *fragment.add_members();
    member.set_replica(replica);
    member.set_generation(asked.open->offers.at(replica).generation);
  }
  asked.open->offers.clear();
  asked.open->excused.clear();
  asked.open->first_offer.reset();
  asked.open->first_sourceless.reset();
  transaction.TouchRun(asked.run->record.id());
}

void Exchanges::AddPeers(const Asked& asked, const std::set<uint32_t>& replicas, SyncReply& reply) const {
  for (const uint32_t replica : replicas) {
    const auto places = asked.open->places.find(replica);
    if (places == asked.open->places.end()) continue;
    const auto place = places->second.find(asked.request().source_rank());
    if (place == places->second.end() || !IsCurrent(*asked.run, replica, place->second.generation)) continue;
    SyncPeer& peer = *reply.add_peers();
    peer.set_replica(replica);
    peer.set_address(place->second.address);
    peer.set_generation(place->second.generation);
    const auto offer = asked.open->offers.find(replica);
    if (offer != asked.open->offers.end() && offer->second.generation == place->second.generation) {
      peer.set_step(offer->second.step);
    }
  }
}

std::set<uint32_t> Exchanges::Fetchable(const Asked& asked) const {
  // Ranks with the same share of the model get it from the first one of them.
  const uint32_t source = asked.request().source_rank();
  std::set<uint32_t> replicas = {asked.replica};
  for (const auto& [replica, offer] : asked.open->offers) {
    const auto of_source = offer.holds.find(source);
    if (of_source == offer.holds.end()) continue;
    if (source == asked.event->rank.rank) {
      replicas.insert(replica);
    } else if (replica == asked.replica) {
      for (const auto& [other, made] : asked.open->offers) {
        if (Holds(of_source->second, other, {made.generation, made.step})) replicas.insert(other);
      }
    }
  }
  return replicas;
}

std::set<uint32_t> Exchanges::Sources(const Asked& asked) const {
  std::set<uint32_t> sources;
  for (const auto& [replica, places] : asked.open->places) {
    if (replica != asked.replica && HasApplied(places, *asked.fragment) &&
        IsCurrent(*asked.run, replica, places.begin()->second.generation)) {
      sources.insert(replica);
    }
  }
  return sources;
}

// The newest exchange was decided: with this rank's offer, or without.
void Exchanges::Behind(const Asked& asked, Transaction& transaction) {
  const SyncFragment& fragment = *asked.fragment;
  OpenExchange& open = *asked.open;
  SyncReply& reply = transaction.sync;
  reply.set_exchange(fragment.exchange());
  const auto is_own = [&](const SyncMember& member) {
    return member.replica() == asked.replica && member.generation() == asked.event->rank.generation;
  };
  if (asked.request().offers() && asked.request().exchange() == fragment.base() &&
      std::any_of(fragment.members().begin(), fragment.members().end(), is_own)) {
    reply.set_decision(SyncReply::APPLY);
    for (const SyncMember& member : fragment.members()) reply.add_members(member.replica());
    return;
  }
  open.behind.insert(asked.replica);
  // Other ranks of the replica may be further on: to withdraw their part would only have them offer it again.
  const auto offer = open.offers.find(asked.replica);
  if (offer != open.offers.end() && offer->second.holds.erase(asked.event->rank.rank) > 0) {
    if (offer->second.holds.empty()) open.offers.erase(offer);
    transaction.Do(AskSyncAgain{asked.run->record.id()});
  }
  if (asked.job->machine.state() == JOB_STATE_STOPPING) {
    reply.set_decision(SyncReply::SKIP);
    return;
  }
  reply.set_decision(SyncReply::CATCH_UP);
  AddPeers(asked, Sources(asked), reply);
  if (reply.peers_size() > 0) return;
  if (!open.first_sourceless.has_value()) open.first_sourceless = transaction.now.steady;
  transaction.sync_waits_until = *open.first_sourceless + asked.patience();
}

void Exchanges::OnBehind(const Asked& asked, Transaction& transaction) {
  OpenExchange& open = *asked.open;
  SyncFragment& fragment = *asked.fragment;
  Behind(asked, transaction);
  if (!transaction.sync_waits_until.has_value()) {
    open.first_sourceless.reset();
    return;
  }
  if (transaction.now.steady < *transaction.sync_waits_until) return;
  // No one has the newest one: on from the newest that is left, as of the ranks that have asked.
  uint64_t newest = 0;
  for (const auto& [replica, of_ranks] : open.places) {
    uint64_t all = ~uint64_t{0};
    for (const auto& [rank, place] : of_ranks) {
      all = std::min(all, IsCurrent(*asked.run, replica, place.generation) ? place.exchange : 0);
    }
    if (!of_ranks.empty()) newest = std::max(newest, all);
  }
  fragment.set_exchange(newest);
  fragment.clear_members();
  open.excused.clear();
  open.first_sourceless.reset();
  transaction.TouchRun(asked.run->record.id());
  transaction.AddEvent(asked.job, asked.event->rank.generation, "", "sync.rolled_back",
                       absl::StrCat("no replica of ", asked.run->record.id(), " has the result of exchange ",
                                    fragment.highest(), " any more; the run goes on from exchange ", newest));
  transaction.Do(AskSyncAgain{asked.run->record.id()});  // this request, too, then finds its place
}

void Exchanges::OnOffer(const Asked& asked, Transaction& transaction) {
  OpenExchange& open = *asked.open;
  const SyncRequest& request = asked.request();
  const uint32_t rank = asked.event->rank.rank;
  OpenExchange::Offer& offer = open.offers[asked.replica];
  if (offer.generation != asked.event->rank.generation || offer.step < request.step()) {
    offer = {asked.event->rank.generation, request.step(), transaction.now.steady, {}};
  }
  if (request.step() < offer.step) return;  // of a request that was overtaken
  const std::map<uint32_t, Contribution> holds = HoldsOf(request);
  const auto [held, is_new] = offer.holds.try_emplace(rank);
  const bool changes = is_new || held->second != holds;
  held->second = holds;
  open.excused.erase(asked.replica);
  if (!open.first_offer.has_value()) open.first_offer = transaction.now.steady;
  CloseIfDecided(asked, transaction);
  if (request.exchange() < asked.fragment->exchange()) {
    transaction.Do(AskSyncAgain{asked.run->record.id()});
    return Behind(asked, transaction);
  }
  SyncReply& reply = transaction.sync;
  const SteadyTime gives_up = offer.since + asked.patience();
  if (transaction.now.steady >= gives_up && !Offering(asked).contains(asked.replica)) {
    offer.holds.erase(rank);
    if (offer.holds.empty()) open.offers.erase(asked.replica);
    reply.set_decision(SyncReply::SKIP);
    return;
  }
  if (changes) transaction.Do(AskSyncAgain{asked.run->record.id(), rank});  // they can fetch more
  AddPeers(asked, Fetchable(asked), reply);
  const bool fetches = std::any_of(reply.peers().begin(), reply.peers().end(), [&](const SyncPeer& peer) {
    return !Holds(holds, peer.replica(), {peer.generation(), peer.step()});
  });
  if (fetches) return;
  // Once that has passed, no replica offers on all of its ranks.
  const SteadyTime out_of_patience = *open.first_offer + asked.patience();
  transaction.sync_waits_until = out_of_patience > transaction.now.steady ? out_of_patience : gives_up;
}

void Exchanges::On(const SyncRank& event, Transaction& transaction) {
  Asked asked;
  transaction.status = Find(event, asked);
  if (!transaction.status.ok()) return;
  OpenExchange& open = *asked.open;
  SyncFragment& fragment = *asked.fragment;
  const SyncRequest& request = event.request;
  const AskSyncAgain all{asked.run->record.id()};
  const std::pair<uint64_t, std::string> layout{event.rank.generation, request.layout()};
  if (std::exchange(asked.run->layouts[asked.replica], layout) != layout) transaction.Do(all);
  auto& places = open.places[asked.replica];
  std::erase_if(places, [&](const auto& of) { return of.second.generation != event.rank.generation; });
  const OpenExchange::Place place{event.rank.generation, request.exchange(), request.address()};
  const bool moved = std::exchange(places[event.rank.rank], place) != place;
  // Offers of generations that are gone; patience begins with the first of the others.
  std::erase_if(open.offers, [&](const auto& of) { return !IsCurrent(*asked.run, of.first, of.second.generation); });
  if (open.offers.empty()) open.first_offer.reset();
  SyncReply& reply = transaction.sync;
  reply.set_secret(asked.run->record.secret());

  // The store is older than the ranks: they are right.
  if (request.exchange() > fragment.exchange()) {
    fragment.set_exchange(request.exchange());
    if (request.exchange() > fragment.highest()) {
      fragment.set_highest(request.exchange() + options_->numbers_skipped);
    }
    fragment.clear_members();
    open.offers.clear();
    open.excused.clear();
    open.first_offer.reset();
    transaction.TouchRun(asked.run->record.id());
    transaction.Do(all);
  }
  if (request.exchange() < fragment.exchange()) return OnBehind(asked, transaction);
  if (moved && HasApplied(places, fragment)) transaction.Do(all);  // others can catch up from it
  // Who has just caught up has nothing to offer yet.
  if (HasApplied(places, fragment) && open.behind.erase(asked.replica) > 0) {
    open.excused.insert(asked.replica);
    transaction.Do(all);
  }
  if (asked.job->machine.state() == JOB_STATE_STOPPING) {
    if (open.offers.erase(asked.replica) > 0) transaction.Do(all);
    reply.set_decision(SyncReply::SKIP);
    return;
  }
  reply.set_decision(SyncReply::WAIT);
  reply.set_exchange(fragment.exchange());
  if (request.offers()) OnOffer(asked, transaction);
}

void Exchanges::SkipNumbers(Transaction& transaction) {
  for (auto& [id, run] : records_->runs) {
    for (SyncFragment& fragment : *run.record.mutable_fragments()) {
      fragment.set_highest(fragment.highest() + options_->numbers_skipped);
    }
    transaction.TouchRun(id);
  }
}

void Exchanges::NoteJobs(Transaction& transaction) const {
  std::set<JobId> jobs = transaction.jobs;
  for (const auto& [job, generation] : transaction.generations) jobs.insert(job);
  std::set<std::string> runs;
  for (const JobId& id : jobs) {
    const JobEntry* job = records_->FindJob(id);
    if (job != nullptr) runs.insert(job->record().spec().train().sync().run());
  }
  for (const std::string& run : runs) {
    if (!run.empty()) transaction.Do(AskSyncAgain{run});
  }
}

}  // namespace muster::core
