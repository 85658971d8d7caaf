// Exchanges between the replicas of a run with local steps: which replicas take part in each, decided once. Private to
// coordinator/core.
//
// A replica offers its contribution to the next exchange of a fragment, fetches those of the others from their ranks,
// and asks until the exchange is closed. It is closed with all that offer once every replica that runs has offered and
// each of them holds the contributions of all, so whoever is part of an exchange can apply it, whatever happens to the
// others. Once the first offer is `patience` old, replicas are left out until that holds for the rest. A replica of
// which only some ranks offer for so long goes on without the exchange: its other ranks have found something else, and
// wait for these. What was decided is on disk before anyone learns of it. A request whose reply has nothing for its
// rank to do need not be repeated until an AskSyncAgain, or Outcome.sync_waits_until.
//
// A replica that an exchange was decided without catches up: it takes the state of one that has applied it. The next
// exchange waits for it as for an offer, since its source would else go on before it asks. If none is left that has,
// the run goes on from the newest state that there is, and no number of an exchange is used again.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "coordinator/core/generations.h"
#include "coordinator/core/records.h"

namespace muster::core {

class Exchanges {
 public:
  // All outlive it.
  Exchanges(const Options* options, Records* records, const Generations* generations)
      : options_(options), records_(records), generations_(generations) {}

  void On(const SyncRank& event, Transaction& transaction);
  // The store is a restored backup: no exchange may get a number that one has had which this store does not know.
  void SkipNumbers(Transaction& transaction);
  // At the end of each transaction: which replicas run and stop decides what others wait for.
  void NoteJobs(Transaction& transaction) const;

 private:
  struct Asked;  // one request, with what it is about
  absl::Status Find(const SyncRank& event, Asked& asked);
  absl::Status CheckLayout(const Asked& asked) const;
  const JobEntry* ReplicaOf(const RunEntry& run, uint32_t replica) const;
  // Of a replica's generation that runs.
  bool IsCurrent(const RunEntry& run, uint32_t replica, uint64_t generation) const;
  // Replicas that an exchange waits for.
  std::set<uint32_t> Expected(const Asked& asked) const;
  // Replicas all of whose ranks offer.
  std::set<uint32_t> Offering(const Asked& asked) const;
  void CloseIfDecided(const Asked& asked, Transaction& transaction);
  void Close(const Asked& asked, const std::set<uint32_t>& members, Transaction& transaction);
  void Behind(const Asked& asked, Transaction& transaction);
  // Of the newest exchange: it was decided, or the rank offers its part.
  void OnBehind(const Asked& asked, Transaction& transaction);
  void OnOffer(const Asked& asked, Transaction& transaction);
  // Replicas whose contributions this rank can fetch now, and its own.
  std::set<uint32_t> Fetchable(const Asked& asked) const;
  void AddPeers(const Asked& asked, const std::set<uint32_t>& replicas, SyncReply& reply) const;
  // Those that run and have applied the fragment's newest exchange on all ranks that a rank could fetch from.
  std::set<uint32_t> Sources(const Asked& asked) const;

  const Options* const options_;
  Records* const records_;
  const Generations* const generations_;
};

// What is kept in memory of the exchanges of all runs: see Core::EntriesOfExchanges.
size_t EntriesOf(const Records& records);

// The largest part of `offering` that can be found by leaving out the replica with most pairs of which one lacks the
// other's contribution, one after the other, until there is no such pair; among equals the last. `holds`: by replica.
std::set<uint32_t> Complete(std::set<uint32_t> offering, const std::map<uint32_t, std::set<uint32_t>>& holds);

}  // namespace muster::core
