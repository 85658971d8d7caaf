#include "coordinator/simulate/replica.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/simulate/coordinator.h"
#include "coordinator/simulate/hash.h"
#include "coordinator/simulate/worker_node.h"

namespace muster::simulate {
namespace {

// Of one request, below what a call may take (coordinator.cc).
constexpr absl::Duration kSyncWait = absl::Seconds(2);
// Between two requests: of a rank that is frozen, that got no reply, or that could not fetch what it was named.
constexpr absl::Duration kFrozenRetry = absl::Seconds(2), kAwayRetry = absl::Milliseconds(500),
                         kFetchRetry = absl::Seconds(1);

uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  AddToHash(text, hash);
  return hash;
}

}  // namespace

Replica::Replica(World* world, const Gang* gang, const Sync& sync)
    : world_(world), gang_(gang), sync_(sync), alike_(HashOf(sync.run()) % 2 == 0), outers_(sync.fragments()) {}

std::optional<uint32_t> Replica::DueAfter(uint64_t step) const {
  for (uint32_t fragment = 0; fragment < sync_.fragments(); ++fragment) {
    const uint64_t offset = (uint64_t{fragment} + 1) * sync_.every() / sync_.fragments() % sync_.every();
    if (step % sync_.every() == offset) return fragment;
  }
  return std::nullopt;
}

void Replica::Exchange(uint32_t fragment, bool offers, std::function<void()> done) {
  Random& random = world_->random;
  fragment_ = fragment;
  offers_ = false;
  parts_.clear();
  done_ = std::move(done);
  const uint64_t round = ++round_;
  const absl::Duration patience = absl::Seconds(sync_.patience_seconds());
  absl::Duration late;
  if (offers && !world_->calm && random.Percent(10)) {
    world_->Count("replica late for an exchange");
    late = random.Between(absl::ZeroDuration(), 2 * patience);
  }
  if (offers && !world_->calm && random.Percent(10)) {
    world_->Count("replica out of reach of the others");
    unreachable_until_ = world_->agenda.now() + late + random.Between(absl::Seconds(1), 2 * patience);
  }
  world_->agenda.After(late, [this, round, offers] {
    if (round == round_ && gang_->Intact()) Depart(offers);
  });
}

void Replica::Depart(bool offers) {
  const uint64_t round = ++round_;
  offers_ = offers;
  parts_.clear();
  for (const auto& [rank, member] : gang_->members()) {
    Part& part = parts_[rank];
    if (offers) {
      // Ranks with the same share contribute the same.
      const uint64_t content = HashOf(absl::StrCat(member->id.job.value(), " ", member->name, " ", SourceOf(rank), " ",
                                                   fragment_, " ", gang_->step(), " ", round));
      part.held[sync_.replica()] = {content, member->id.generation, gang_->step()};
    }
  }
  for (const auto& [rank, member] : gang_->members()) Ask(member, round);
}

SyncRequest Replica::RequestOf(const Process& process, uint32_t fragment, bool offers) const {
  SyncRequest request;
  request.mutable_key()->set_job(process.id.job.value());
  request.mutable_key()->set_generation(process.id.generation);
  request.mutable_key()->set_rank(process.id.rank);
  request.set_fragment(fragment);
  request.set_exchange(outers_[fragment].exchange);
  request.set_offers(offers);
  if (offers) {
    for (const auto& [replica, held] : parts_.at(process.id.rank).held) {
      request.add_holds(replica);
      request.add_held_generations(held.generation);
      request.add_held_steps(held.step);
    }
    request.set_step(gang_->step());
  }
  request.set_address(absl::StrCat(process.id.job.value(), " ", process.name, " ", process.id.rank));
  request.set_layout("even");
  request.set_source_rank(SourceOf(process.id.rank));
  return request;
}

void Replica::Call(const Member& member, const SyncRequest& request, absl::Duration wait, const Answered& answered) {
  const auto got = std::make_shared<SyncReply>();
  const Ran ran{member->id, member->name};
  const auto work = [=, this](server::Turn& turn, const Coordinator::Reply& reply) {
    absl::Status current = turn.core().CheckCurrent(ran.rank);
    if (current.ok() && !turn.core().HasArrived(ran.rank)) {
      current = turn.Handle(core::RankArrived{ran.rank}).status;
    }
    if (!current.ok()) return turn.AfterCommit([reply, current] { reply(current); });
    world_->judge.Asked(ran, sync_, request);
    turn.sync_calls().Begin(turn, {ran.rank, request}, turn.now().steady + wait,
                            [=, this, life = world_->coordinator->life()](const absl::StatusOr<SyncReply>& made) {
                              if (!life->alive()) return;  // as the reply
                              if (made.ok()) world_->judge.Replied(ran, sync_, request, *got = *made);
                              reply(made.status());
                            });
    world_->judge.KeptForExchanges(turn.core().EntriesOfExchanges());
  };
  world_->coordinator->Call(work, member->node->reaches_coordinator(), [got, answered](const absl::Status& status) {
    answered(status.ok() ? absl::StatusOr<SyncReply>(*got) : status);
  });
}

void Replica::Ask(const Member& member, uint64_t round) {
  if (!member->alive || round != round_) return;
  const auto again = [=, this](absl::Duration after) {
    world_->agenda.After(after, [=, this] { Ask(member, round); });
  };
  if (member->frozen) return again(kFrozenRetry);
  Call(member, RequestOf(*member, fragment_, offers_), kSyncWait, [=, this](const absl::StatusOr<SyncReply>& reply) {
    if (!member->alive || round != round_) return;
    if (member->frozen) return again(kFrozenRetry);
    if (absl::IsInvalidArgument(reply.status()) && world_->judge.restores() == 0) {
      world_->judge.Fail("a rank of a replica may exchange", reply.status().ToString());
    }
    if (!reply.ok()) return again(kAwayRetry);
    Act(member, round, *reply);
  });
}

void Replica::Act(const Member& member, uint64_t round, const SyncReply& reply) {
  Part& part = parts_.at(member->id.rank);
  switch (reply.decision()) {
    case SyncReply::WAIT:
      if (!offers_) {
        part.result = Result{};
        return Arrive(round);
      }
      break;
    case SyncReply::APPLY:
      Apply(*member, reply);
      return Arrive(round);
    case SyncReply::CATCH_UP:
      return FetchState(member, round, reply);
    case SyncReply::SKIP:
      part.result = Result{.kind = Kind::kSkip};
      return Arrive(round);
    default:
      return world_->judge.Fail("a rank of a replica may exchange", reply.ShortDebugString());
  }
  const absl::Duration delay = world_->random.Between(absl::Milliseconds(10), absl::Milliseconds(500));
  world_->agenda.After(delay, [=, this] {
    if (!member->alive || round != round_) return;
    const bool got = !member->frozen && FetchOffers(*member, reply);
    world_->agenda.After(got ? absl::ZeroDuration() : kFetchRetry, [=, this] { Ask(member, round); });
  });
}

const Replica* Replica::Reach(const std::string& address, uint32_t& rank) const {
  const std::vector<std::string> parts = absl::StrSplit(address, ' ');
  uint64_t name = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &name) || !absl::SimpleAtoi(parts[2], &rank)) return nullptr;
  const Gang* const gang = world_->gangs->Find(JobId(parts[0]), name);
  if (gang == nullptr || gang->replica() == nullptr) return nullptr;
  const auto member = gang->members().find(rank);
  if (member == gang->members().end() || !member->second->alive || member->second->frozen) return nullptr;
  if (gang == gang_) return this;
  const SteadyTime now = world_->agenda.now();
  return now < unreachable_until_ || now < gang->replica()->unreachable_until_ ? nullptr : gang->replica();
}

bool Replica::FetchOffers(const Process& process, const SyncReply& reply) {
  // Ranks with the same share of the model get it from the first one of them.
  std::string first;
  for (const SyncPeer& peer : reply.peers()) {
    if (peer.replica() == sync_.replica()) first = peer.address();
  }
  Part& part = parts_.at(process.id.rank);
  bool got = false;
  for (const SyncPeer& peer : reply.peers()) {
    if (peer.replica() == sync_.replica()) continue;
    const auto older = part.held.find(peer.replica());
    const bool same_step = older != part.held.end() && older->second.step == peer.step();
    if (same_step && older->second.generation == peer.generation()) continue;
    uint32_t rank = 0;
    const bool source = SourceOf(process.id.rank) == process.id.rank;
    const Replica* const from = Reach(source ? peer.address() : first, rank);
    if (from == nullptr || !from->offers_ || from->fragment_ != fragment_ || world_->random.Percent(5)) continue;
    if (from->outers_[fragment_].exchange != outers_[fragment_].exchange) continue;
    const auto offered = from->parts_.find(rank);
    if (offered == from->parts_.end() || !offered->second.held.contains(peer.replica())) continue;
    part.held[peer.replica()] = {offered->second.held.at(peer.replica()).content, peer.generation(), peer.step()};
    got = true;
  }
  return got;
}

void Replica::FetchState(const Member& member, uint64_t round, const SyncReply& reply) {
  const absl::Duration delay = world_->random.Between(absl::Milliseconds(10), absl::Milliseconds(500));
  world_->agenda.After(delay, [=, this] {
    if (!member->alive || round != round_) return;
    for (const SyncPeer& peer : reply.peers()) {
      uint32_t rank = 0;
      const Replica* const from = member->frozen ? nullptr : Reach(peer.address(), rank);
      if (from == nullptr || world_->random.Percent(5)) continue;
      const Outer& outer = from->outers_[fragment_];
      if (outer.exchange != reply.exchange()) continue;
      const auto content = outer.content.find(rank);
      const uint64_t state = content == outer.content.end() ? 0 : content->second;
      parts_.at(member->id.rank).result = Result{Kind::kCatchUp, reply.exchange(), state};
      return Arrive(round);
    }
    world_->agenda.After(kFetchRetry, [=, this] { Ask(member, round); });
  });
}

void Replica::Apply(const Process& process, const SyncReply& reply) {
  Part& part = parts_.at(process.id.rank);
  const Outer& outer = outers_[fragment_];
  const auto before = outer.content.find(SourceOf(process.id.rank));
  std::string text = absl::StrCat(before == outer.content.end() ? 0 : before->second);
  for (const uint32_t of : reply.members()) {
    const auto held = part.held.find(of);
    if (held == part.held.end()) {
      return world_->judge.Fail("replicas apply what they hold",
                                absl::StrCat(process.id.ToString(), " lacks replica ", of, " of exchange ",
                                             reply.exchange(), " of fragment ", fragment_));
    }
    absl::StrAppend(&text, " ", of, ":", held->second.content);
  }
  part.result = Result{Kind::kApply, reply.exchange(), HashOf(text)};
}

// A collective: all ranks find the same, or all catch up with what is decided.
void Replica::Arrive(uint64_t round) {
  if (round != round_ || world_->judge.failed() || !gang_->Intact()) return;
  for (const auto& [rank, part] : parts_) {
    if (!part.result.has_value()) return;
  }
  const bool frozen = std::any_of(gang_->members().begin(), gang_->members().end(),
                                  [](const auto& member) { return member.second->frozen; });
  if (frozen) return world_->agenda.After(kFrozenRetry, [this, round] { Arrive(round); });
  const Result& first = *parts_.begin()->second.result;
  for (const auto& [rank, part] : parts_) {
    if (part.result->kind == first.kind && part.result->exchange == first.exchange) continue;
    world_->Count("ranks of a replica asked before and after a decision");
    return Depart(/*offers=*/false);
  }
  Take(first);
}

void Replica::Take(const Result& result) {
  if (result.kind == Kind::kApply || result.kind == Kind::kCatchUp) {
    world_->Count(result.kind == Kind::kApply ? "exchange applied" : "replica caught up");
    Outer& outer = outers_[fragment_];
    outer.exchange = result.exchange;
    outer.content.clear();
    for (const auto& [rank, member] : gang_->members()) {
      const uint64_t content = parts_.at(rank).result->content;
      outer.content[rank] = content;
      world_->judge.Exchanged({member->id, member->name}, sync_, fragment_, result.exchange, SourceOf(rank), content);
    }
    const uint64_t round = round_;
    for (const auto& [rank, member] : gang_->members()) Report(member, round, fragment_);
  }
  const std::function<void()> done = std::exchange(done_, nullptr);
  done();
}

void Replica::Report(const Member& member, uint64_t round, uint32_t fragment) {
  if (!member->alive || round != round_) return;
  const auto again = [=, this] { world_->agenda.After(kAwayRetry, [=, this] { Report(member, round, fragment); }); };
  if (member->frozen) return again();
  Call(member, RequestOf(*member, fragment, /*offers=*/false), absl::ZeroDuration(),
       [again](const absl::StatusOr<SyncReply>& reply) {
         if (!reply.ok()) again();
       });
}

}  // namespace muster::simulate
