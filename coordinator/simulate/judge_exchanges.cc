// What the judge checks of runs with local steps (coordinator/core/exchanges.h).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/simulate/accounts.h"
#include "coordinator/simulate/judge.h"

namespace muster::simulate {
namespace {

// A reply is made within a turn of the coordinator.
constexpr absl::Duration kSoonAfter = absl::Seconds(1);

std::string TextOf(const Sync& sync, uint32_t fragment, uint64_t exchange) {
  return absl::StrCat("exchange ", exchange, " of fragment ", fragment, " of ", sync.run());
}

}  // namespace

void Judge::RunChanged(const std::string& id, const std::string& bytes) {
  SyncRun run;
  if (!run.ParseFromString(bytes)) return Fail("rows", absl::StrCat(id, " does not parse"));
  RunAccount& account = books_.runs[id];
  account.decided.resize(static_cast<size_t>(run.fragments_size()));
  for (int f = 0; f < run.fragments_size(); ++f) {
    const SyncFragment& now = run.fragments(f);
    const SyncFragment before = f < account.run.fragments_size() ? account.run.fragments(f) : SyncFragment();
    const std::string text = absl::StrCat("exchange ", now.exchange(), " of fragment ", f, " of ", id);
    if (now.highest() < before.highest() || now.exchange() > now.highest()) {
      return Fail("no number of an exchange is used twice",
                  absl::StrCat(text, ": the highest is ", now.highest(), ", and was ", before.highest()));
    }
    // It was decided, or the run goes on from another exchange: who offers now waits for a new one.
    if (now.SerializeAsString() != before.SerializeAsString()) {
      std::erase_if(offers_, [&](const auto& of) {
        return std::get<0>(of.first) == id && std::get<2>(of.first) == static_cast<uint32_t>(f);
      });
    }
    if (now.members().empty()) continue;  // the run goes on from an exchange that some rank has
    std::vector<std::pair<uint32_t, uint64_t>> members;
    for (const SyncMember& member : now.members()) members.emplace_back(member.replica(), member.generation());
    const auto [known, fresh] = account.decided[static_cast<size_t>(f)].emplace(now.exchange(), members);
    if (known->second != members) return Fail("an exchange is decided once", text);
    if (!fresh) continue;
    // An older copy of the store may learn of a newer exchange with the offer that decides the one after it. So may a
    // run that went on from an older one, from a rank that has the newer one and was away.
    const bool known_base =
        now.base() == before.exchange() || account.decided[static_cast<size_t>(f)].contains(now.base());
    const bool next = now.exchange() == before.highest() + 1 && known_base;
    if (restores_ == 0 ? !next : now.exchange() <= before.highest()) {
      return Fail("no number of an exchange is used twice",
                  absl::StrCat(text, ", from ", now.base(), ", follows ", before.exchange(), " when ", before.highest(),
                               " is the highest"));
    }
    for (const auto& [replica, generation] : members) {
      const auto job = books_.jobs.find(JobId(absl::StrCat(id, "-", replica)));
      const bool current = job != books_.jobs.end() && !job->second.generations.empty() &&
                           job->second.generations.rbegin()->first == generation &&
                           !job->second.ended.contains(generation);
      if (!current) {
        return Fail("an exchange counts what generations offer that run",
                    absl::StrCat(text, " has a contribution of generation ", generation, " of replica ", replica));
      }
    }
  }
  account.run = std::move(run);
}

void Judge::Asked(const Ran& ran, const Sync& sync, const SyncRequest& request) {
  OfferAccount& account = offers_[{sync.run(), sync.replica(), request.fragment()}];
  const std::tuple now(ran.name, request.exchange(), coordinator_starts_);
  if (account.of != now) account = {.of = now, .since = {}};
  if (request.offers()) {
    account.since.try_emplace(ran.rank.rank, clock_->Read().steady);
  } else {
    account.since.erase(ran.rank.rank);
  }
}

void Judge::Replied(const Ran& ran, const Sync& sync, const SyncRequest& request, const SyncReply& reply) {
  if (restores_ > 0) return;  // ranks of a lost history may ask in the name of others
  if (reply.decision() == SyncReply::APPLY) {
    const auto run = books_.runs.find(sync.run());
    const std::string text = TextOf(sync, request.fragment(), reply.exchange());
    if (run == books_.runs.end()) return Fail("a decision is on disk before it is applied", text);
    const auto& decided = run->second.decided.at(request.fragment());
    const auto known = decided.find(reply.exchange());
    if (known == decided.end()) return Fail("a decision is on disk before it is applied", text);
    std::vector<uint32_t> members;
    for (const auto& [replica, generation] : known->second) members.push_back(replica);
    if (!std::equal(members.begin(), members.end(), reply.members().begin(), reply.members().end()) ||
        std::find(known->second.begin(), known->second.end(), std::pair(sync.replica(), ran.rank.generation)) ==
            known->second.end()) {
      return Fail("an exchange is decided once",
                  absl::StrCat(text, " was sent to ", ran.rank.ToString(), " with other members than are on disk"));
    }
  }
  OfferAccount& account = offers_[{sync.run(), sync.replica(), request.fragment()}];
  if (account.of != std::tuple(ran.name, request.exchange(), coordinator_starts_)) return;
  if (reply.decision() != SyncReply::WAIT) account.since.erase(ran.rank.rank);  // the coordinator has dropped its offer
  if (reply.decision() != SyncReply::WAIT || !request.offers()) return;
  // All ranks of the replica offer, so the exchange is decided in time, with it or without.
  const auto job = books_.jobs.find(ran.rank.job);
  if (job == books_.jobs.end()) return;
  const auto generation = job->second.generations.find(ran.rank.generation);
  if (generation == job->second.generations.end()) return;
  if (account.since.size() != static_cast<size_t>(generation->second.ranks_size())) return;
  SteadyTime all;
  for (const auto& [rank, since] : account.since) all = std::max(all, since);
  const absl::Duration waited = clock_->Read().steady - all;
  if (waited > absl::Seconds(sync.patience_seconds()) + kSoonAfter) {
    Fail("an exchange does not wait for a late replica",
         absl::StrCat(ran.rank.ToString(), " waits for ", TextOf(sync, request.fragment(), request.exchange() + 1),
                      " since ", absl::FormatDuration(waited)));
  }
}

void Judge::KeptForExchanges(size_t entries) {
  size_t most = 0;
  for (const auto& [id, account] : books_.runs) {
    const size_t replicas = account.run.replicas();
    const auto job = books_.jobs.find(JobId(absl::StrCat(id, "-0")));
    const size_t ranks = replicas * (job == books_.jobs.end() ? 0 : job->second.resources.ranks());
    // Of each rank of each fragment its place and what it holds, at most a contribution of each replica.
    const auto fragments = static_cast<size_t>(account.run.fragments_size());
    most += fragments * (ranks * (2 + replicas) + 3 * replicas) + replicas;
  }
  if (entries > most) {
    Fail("exchanges keep bounded memory", absl::StrCat(entries, " entries, and at most ", most, " have a reason"));
  }
}

void Judge::Exchanged(const Ran& ran, const Sync& sync, uint32_t fragment, uint64_t exchange, uint32_t source,
                      uint64_t content) {
  if (restores_ > 0) return;  // histories may differ in what an exchange was
  const auto [known, fresh] = contents_.emplace(std::tuple(sync.run(), fragment, exchange, source), content);
  if (known->second == content) return;
  Fail("replicas have the same after an exchange",
       absl::StrCat(ran.rank.ToString(), " has another result of ", TextOf(sync, fragment, exchange)));
}

uint64_t Judge::restarts_in_exchanges() const { return restarts_in_exchanges_; }

uint64_t Judge::EventsOf(const std::string& kind) const {
  return static_cast<uint64_t>(
      std::count_if(books_.stream.begin(), books_.stream.end(), [&](const Books::StreamEvent& stored) {
        StateEvent event;
        return event.ParseFromString(stored.bytes) && event.kind() == kind;
      }));
}

}  // namespace muster::simulate
