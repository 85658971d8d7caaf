// Exchanges of a run with local steps: who takes part, what a restart of anything changes, and that replicas never
// differ.
#include "coordinator/core/exchanges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobSpec Replicated(const std::string& name, uint32_t replicas, uint32_t ranks = 1, uint32_t patience_seconds = 30) {
  JobSpec spec = Spec(name, 0, /*max_restarts=*/1000);
  spec.mutable_resources()->set_ranks(ranks);
  Sync& sync = *spec.mutable_train()->mutable_sync();
  sync.set_replicas(replicas);
  sync.set_patience_seconds(patience_seconds);
  sync.set_fragments(1);
  return spec;
}

// A run whose replicas all train, each on a node of its own.
struct Running {
  explicit Running(uint32_t replicas, uint32_t ranks = 1, uint32_t patience_seconds = 30) : w(AnyWorld()) {
    for (uint32_t i = 0; i < replicas; ++i) w.Return(Hello(absl::StrCat("n", i), static_cast<int>(ranks)));
    first = w.Submit(Replicated("dlc", replicas, ranks, patience_seconds));
    run = first.value().substr(0, first.value().size() - 2);
    for (uint32_t i = 0; i < replicas; ++i) Train(i, ranks);
  }
  JobId Of(uint32_t replica) const { return JobId(absl::StrCat(run, "-", replica)); }
  void Train(uint32_t replica, uint32_t ranks = 1) {
    for (uint32_t rank = 0; rank < ranks; ++rank) w.ReportRank(Of(replica), rank, RANK_STATE_RUNNING);
    ASSERT_EQ(w.State(Of(replica)), JOB_STATE_RUNNING);
  }
  // The coordinator, and the nodes' reports to the next one.
  void RestartCoordinator(uint32_t replicas, bool restored = false) {
    w.Restart();
    if (restored) w.Do(StoreRestored{});
    for (uint32_t i = 0; i < replicas; ++i) w.Do(NodeConnected{Hello(absl::StrCat("n", i), 1)});
    for (uint32_t i = 0; i < replicas; ++i) {
      w.Report(Of(i), RANK_STATE_RUNNING, RankExit::CAUSE_UNSPECIFIED, /*full=*/true);
    }
  }
  // It fails, and is placed again.
  void Restart(uint32_t replica) {
    w.Report(Of(replica), RANK_STATE_EXITED, RankExit::FAILED);
    w.PassBackoff();
    Train(replica);
  }
  // Without `generations`, as an older worker.
  Outcome Send(uint32_t replica, uint64_t exchange, bool offers, const std::vector<uint32_t>& holds = {},
               uint32_t rank = 0, const std::string& layout = "even", const std::vector<uint64_t>& generations = {}) {
    SyncRequest request;
    request.set_exchange(exchange);
    request.set_offers(offers);
    for (const uint32_t of : holds) request.add_holds(of);
    for (const uint64_t of : generations) request.add_held_generations(of);
    request.set_address(absl::StrCat("r", replica, ".", rank));
    request.set_layout(layout);
    request.set_source_rank(rank);
    return w.Do(SyncRank{{Of(replica), w.Newest(Of(replica)).number(), rank}, request});
  }
  SyncReply Ask(uint32_t replica, uint64_t exchange, bool offers, const std::vector<uint32_t>& holds = {},
                uint32_t rank = 0) {
    const Outcome outcome = Send(replica, exchange, offers, holds, rank);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    return outcome.sync;
  }

  World w;
  JobId first;
  std::string run;
};

std::string Show(const SyncReply& reply) {
  std::vector<std::string> peers;
  for (const SyncPeer& peer : reply.peers()) peers.push_back(absl::StrCat(peer.replica(), "@", peer.address()));
  return absl::StrCat(SyncReply::Decision_Name(reply.decision()), " ", reply.exchange(), " members ",
                      absl::StrJoin(reply.members(), ","), " peers ", absl::StrJoin(peers, ","));
}

TEST(Exchanges, ASubmittedRunIsAJobForEachReplica) {
  World w(AnyWorld());
  JobSpec spec = Replicated("dlc", 3);
  spec.mutable_train()->mutable_checkpoint()->set_path("/c/all");
  const SubmitJob submit{.request_id = "once", .owner = "me", .spec = spec, .suffix = "abcd", .secret = "s3"};
  EXPECT_EQ(w.Do(submit).job.value(), "dlc-abcd-0");
  EXPECT_EQ(w.Do(submit).job.value(), "dlc-abcd-0") << "a request that is sent again is the same run";
  ASSERT_EQ(w.core->ListJobs(true).size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    const Job job = w.Get(JobId(absl::StrCat("dlc-abcd-", i)));
    EXPECT_EQ(job.spec().train().checkpoint().path(), absl::StrCat("/c/all/replica-", i));
    EXPECT_EQ(job.spec().train().sync().replica(), i);
    EXPECT_EQ(job.spec().train().sync().run(), "dlc-abcd");
  }
  const Outcome taken = w.Do(SubmitJob{.request_id = "r2", .owner = "me", .spec = spec, .suffix = "efgh"});
  EXPECT_THAT(std::string(taken.status.message()), HasSubstr("belongs to job"));
  EXPECT_EQ(w.core->ListJobs(true).size(), 3u) << "a run that is refused leaves no replica behind";
  w.Restart();
  ASSERT_EQ(w.core->FindReplicas("dlc").value().size(), 3u);
  EXPECT_EQ(w.core->FindReplicas("dlc-abcd-1").value().size(), 1u);
  EXPECT_FALSE(w.core->Find("dlc-abcd").ok());
  const std::vector<JobId> replicas = w.core->FindReplicas("dlc-abcd").value();
  for (const JobId& id : replicas) {
    EXPECT_TRUE(w.rows.contains("run/dlc-abcd"));
    w.Do(CancelJob{id});
    w.Do(DeleteJob{id});
  }
  EXPECT_FALSE(w.rows.contains("run/dlc-abcd"));
  w.Restart();
}

// Two jobs with one request would be a damaged store at the next start.
TEST(Exchanges, ARunWithoutItsFirstReplicaStillHasItsRequest) {
  World w(AnyWorld());
  const SubmitJob submit{.request_id = "once", .owner = "me", .spec = Replicated("dlc", 2), .suffix = "abcd"};
  const JobId first = w.Do(submit).job;
  w.Do(CancelJob{first});
  ASSERT_TRUE(w.Do(DeleteJob{first}).status.ok());
  const absl::Status again = w.Do(submit).status;
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("request id once belongs to the run of dlc-abcd-1"));
  w.Restart();
  EXPECT_EQ(w.core->ListJobs(true).size(), 1u);
}

TEST(Exchanges, AreClosedOnceAllHoldWhatAllOffer) {
  Running r(3);
  EXPECT_EQ(Show(r.Ask(0, 0, true, {0})), "WAIT 0 members  peers 0@r0.0");
  EXPECT_EQ(Show(r.Ask(1, 0, true, {1})), "WAIT 0 members  peers 0@r0.0,1@r1.0");
  EXPECT_EQ(Show(r.Ask(0, 0, true, {0, 1})), "WAIT 0 members  peers 0@r0.0,1@r1.0");
  EXPECT_EQ(Show(r.Ask(2, 0, true, {0, 1, 2})), "WAIT 0 members  peers 0@r0.0,1@r1.0,2@r2.0");
  EXPECT_EQ(Show(r.Ask(1, 0, true, {0, 1, 2})), "WAIT 0 members  peers 0@r0.0,1@r1.0,2@r2.0");
  EXPECT_EQ(Show(r.Ask(0, 0, true, {0, 1, 2})), "APPLY 1 members 0,1,2 peers ");
  r.w.Restart();  // what was decided is on disk
  EXPECT_EQ(Show(r.Ask(2, 0, true, {0, 1, 2})), "APPLY 1 members 0,1,2 peers ");
  EXPECT_EQ(Show(r.Ask(1, 0, true, {0, 1, 2})), "APPLY 1 members 0,1,2 peers ");
  EXPECT_EQ(Show(r.Ask(1, 1, false)), "WAIT 1 members  peers ");
  EXPECT_EQ(Show(r.Ask(1, 1, true, {1})), "WAIT 1 members  peers 1@r1.0");
}

TEST(Exchanges, AReplicaThatComesLateIsLeftOutAndCatchesUp) {
  Running r(3);
  r.Ask(0, 0, true, {0, 1});
  r.Ask(1, 0, true, {0, 1});
  r.w.clock.Advance(absl::Seconds(29));
  EXPECT_EQ(r.Ask(0, 0, true, {0, 1}).decision(), SyncReply::WAIT);
  r.w.clock.Advance(absl::Seconds(1));
  const Outcome closed = r.Send(0, 0, true, {0, 1});
  EXPECT_EQ(Show(closed.sync), "APPLY 1 members 0,1 peers ");
  ASSERT_EQ(closed.events.size(), 1u);
  EXPECT_EQ(closed.events[0].kind(), "sync.left_out");
  EXPECT_THAT(closed.events[0].message(), HasSubstr("-2 was left out of exchange 1: it did not come within 30s"));
  EXPECT_EQ(Show(r.Ask(2, 0, true, {2})), "CATCH_UP 1 members  peers ") << "no one has applied it yet";
  r.Ask(1, 1, false);
  EXPECT_EQ(Show(r.Ask(2, 0, true, {2})), "CATCH_UP 1 members  peers 1@r1.0");
  // The next exchange waits until it has caught up, so that it can, and no longer.
  r.Ask(0, 1, true, {0, 1});
  EXPECT_EQ(r.Ask(1, 1, true, {0, 1}).decision(), SyncReply::WAIT);
  r.Ask(2, 1, false);
  EXPECT_EQ(Show(r.Ask(1, 1, true, {0, 1})), "APPLY 2 members 0,1 peers ");
}

TEST(Exchanges, AReplicaThatDoesNotRunIsNotWaitedFor) {
  Running r(2);
  r.w.Report(r.Of(1), RANK_STATE_EXITED, RankExit::FAILED);
  EXPECT_EQ(Show(r.Ask(0, 0, true, {0})), "APPLY 1 members 0 peers ");
}

TEST(Exchanges, AnOfferOfAGenerationThatIsGoneDoesNotCount) {
  Running r(2);  // of older workers, which do not say of which generation they hold what
  r.Ask(1, 0, true, {1});
  r.Restart(1);
  EXPECT_EQ(r.Ask(0, 0, true, {0, 1}).decision(), SyncReply::WAIT);
  r.Ask(1, 0, true, {0, 1});
  EXPECT_EQ(Show(r.Ask(0, 0, true, {0, 1})), "APPLY 1 members 0,1 peers ");
  // A replica that died before it applied has other contributions now.
  r.Restart(1);
  r.Ask(0, 1, false);
  EXPECT_EQ(Show(r.Ask(1, 0, true, {0, 1})), "CATCH_UP 1 members  peers 0@r0.0");
}

// Replica 1 resumes from a checkpoint within an exchange, and offers something else than what replica 0 has fetched.
TEST(Exchanges, AContributionOfAGenerationThatIsGoneIsFetchedAgain) {
  Running r(3, /*ranks=*/1, /*patience_seconds=*/3600);
  const auto offer = [&](uint32_t replica, const std::vector<uint32_t>& holds, const std::vector<uint64_t>& of) {
    return r.Send(replica, 0, true, holds, 0, "even", of);
  };
  offer(1, {1}, {1});
  EXPECT_EQ(offer(0, {0}, {1}).sync.peers(1).generation(), 1u);
  offer(0, {0, 1}, {1, 1});
  r.Restart(1);
  offer(2, {0, 2}, {1, 1});
  offer(1, {0, 1, 2}, {1, 2, 1});
  const Outcome other = offer(2, {0, 1, 2}, {1, 2, 1});
  EXPECT_EQ(Show(other.sync), "WAIT 0 members  peers 0@r0.0,1@r1.0,2@r2.0") << "replica 0 has another one";
  const Outcome stale = offer(0, {0, 1, 2}, {1, 1, 1});
  EXPECT_EQ(Show(stale.sync), "WAIT 0 members  peers 0@r0.0,1@r1.0,2@r2.0");
  EXPECT_EQ(stale.sync.peers(1).generation(), 2u);
  EXPECT_EQ(stale.sync_waits_until, std::nullopt) << "it can fetch";
  EXPECT_EQ(Show(offer(0, {0, 1, 2}, {1, 2, 1}).sync), "APPLY 1 members 0,1,2 peers ");
}

// The other ranks of a replica fetch what its first one has, which may be of a generation that is gone.
TEST(Exchanges, ARankDoesNotFetchWhatItsSourceHasOfAGenerationThatIsGone) {
  Running r(2, /*ranks=*/2, /*patience_seconds=*/3600);
  const auto ask = [&](uint32_t replica, uint32_t rank, uint64_t generation, const std::vector<uint64_t>& of) {
    SyncRequest request;
    request.set_offers(true);
    for (const uint32_t held : {0, 1}) request.add_holds(held);
    for (const uint64_t held : of) request.add_held_generations(held);
    request.set_address(absl::StrCat("r", replica, ".", rank));
    request.set_layout("even");
    return r.w.Do(SyncRank{{r.Of(replica), generation, rank}, request}).sync;
  };
  ask(1, 0, 1, {1, 1});
  ask(0, 0, 1, {1, 1});
  EXPECT_EQ(Show(ask(0, 1, 1, {1, 1})), "WAIT 0 members  peers 0@r0.0,1@r1.0");
  for (const uint32_t rank : {0, 1}) r.w.ReportRank(r.Of(1), rank, RANK_STATE_EXITED, RankExit::FAILED);
  r.w.PassBackoff();
  r.Train(1, 2);
  ask(1, 0, 2, {1, 2});
  EXPECT_EQ(Show(ask(0, 1, 1, {1, 1})), "WAIT 0 members  peers 0@r0.0");
  ask(0, 0, 1, {1, 2});
  EXPECT_EQ(Show(ask(0, 1, 1, {1, 1})), "WAIT 0 members  peers 0@r0.0,1@r1.0");
}

// A generation that has gone on without the exchange offers something else to it later.
TEST(Exchanges, AContributionOfAnotherStepIsFetchedAgain) {
  Running r(2, /*ranks=*/1, /*patience_seconds=*/3600);
  const auto offer = [&](uint32_t replica, uint64_t step, const std::map<uint32_t, uint64_t>& held) {
    SyncRequest request;
    request.set_offers(true);
    request.set_step(step);
    for (const auto& [of, made_after] : held) {
      request.add_holds(of);
      request.add_held_generations(1);
      request.add_held_steps(made_after);
    }
    request.set_address(absl::StrCat("r", replica, ".0"));
    request.set_layout("even");
    return r.w.Do(SyncRank{{r.Of(replica), 1, 0}, request});
  };
  offer(1, 4, {{1, 4}});
  EXPECT_EQ(offer(0, 6, {{0, 6}}).sync.peers(1).step(), 4u);
  EXPECT_TRUE(offer(0, 6, {{0, 6}, {1, 4}}).sync_waits_until.has_value());
  EXPECT_EQ(Show(offer(1, 8, {{0, 6}, {1, 8}}).sync), "WAIT 0 members  peers 0@r0.0,1@r1.0") << "0 has another one";
  const Outcome stale = offer(0, 6, {{0, 6}, {1, 4}});
  EXPECT_EQ(stale.sync.peers(1).step(), 8u);
  EXPECT_EQ(stale.sync_waits_until, std::nullopt) << "it can fetch";
  EXPECT_EQ(offer(1, 4, {{0, 6}, {1, 4}}).sync.decision(), SyncReply::WAIT) << "a request that was overtaken";
  EXPECT_EQ(Show(offer(0, 6, {{0, 6}, {1, 8}}).sync), "APPLY 1 members 0,1 peers ");
}

// Rank 1 has fetched a state to catch up with, and waits for rank 0 to have it, too; but since then the run has gone on
// from an older exchange.
TEST(Exchanges, ARankThatOffersWithoutTheOthersOfItsReplicaGivesUp) {
  Running r(2, /*ranks=*/2);
  const SteadyTime begin = r.w.clock.Read().steady;
  EXPECT_EQ(r.Send(0, 0, true, {0}, 0).sync_waits_until, begin + absl::Seconds(30));
  r.w.clock.Advance(absl::Seconds(10));
  EXPECT_EQ(r.Send(1, 0, true, {1}, 0).sync.decision(), SyncReply::WAIT);
  r.w.clock.Advance(absl::Seconds(20));
  EXPECT_EQ(r.Ask(0, 0, true, {0}, 0).decision(), SyncReply::SKIP);
  const Outcome other = r.Send(1, 0, true, {1}, 0);
  EXPECT_EQ(other.sync.decision(), SyncReply::WAIT) << "its own patience is not over";
  EXPECT_EQ(other.sync_waits_until, begin + absl::Seconds(40));
  // Once all of its ranks offer, it takes part.
  r.Ask(0, 0, true, {0}, 0);
  EXPECT_EQ(Show(r.Ask(0, 0, true, {0}, 1)), "APPLY 1 members 0 peers ");
}

TEST(Exchanges, ThoseThatDoNotReachEachOtherAreSeparated) {
  Running r(3);
  r.Ask(0, 0, true, {0, 1});
  r.Ask(1, 0, true, {0, 1, 2});
  r.Ask(2, 0, true, {1, 2});  // 0 and 2 lack each other's
  r.w.clock.Advance(absl::Seconds(30));
  const Outcome closed = r.Send(1, 0, true, {0, 1, 2});
  EXPECT_EQ(Show(closed.sync), "APPLY 1 members 0,1 peers ");
  EXPECT_THAT(closed.events.at(0).message(), HasSubstr("did not reach each other"));
}

TEST(Exchanges, AllRanksOfAReplicaMustHold) {
  Running r(2, /*ranks=*/2);
  r.Ask(0, 0, true, {0, 1}, 0);
  r.Ask(0, 0, true, {0, 1}, 1);
  r.Ask(1, 0, true, {0, 1}, 0);
  EXPECT_EQ(r.Ask(1, 0, true, {1}, 1).decision(), SyncReply::WAIT);
  EXPECT_EQ(Show(r.Ask(1, 0, true, {0, 1}, 1)), "APPLY 1 members 0,1 peers ");
}

TEST(Exchanges, IfNoOneHasTheNewestTheRunGoesOnFromWhatThereIs) {
  Running r(2);
  for (const uint32_t of : {0, 1, 0}) r.Ask(of, 0, true, {0, 1});
  r.Restart(0), r.Restart(1);  // both from before exchange 1
  EXPECT_EQ(Show(r.Ask(0, 0, false)), "CATCH_UP 1 members  peers ");
  EXPECT_EQ(Show(r.Ask(1, 0, false)), "CATCH_UP 1 members  peers ");
  r.w.clock.Advance(absl::Seconds(30));
  r.Ask(0, 0, false);
  EXPECT_EQ(Show(r.Ask(0, 0, false)), "WAIT 0 members  peers ");
  for (const uint32_t of : {0, 1}) r.Ask(of, 0, true, {0, 1});
  EXPECT_EQ(Show(r.Ask(0, 0, true, {0, 1})), "APPLY 2 members 0,1 peers ") << "no number is used twice";
}

// Exchange 1 is not in the backup: replicas 0 and 1 have it, and may be away when those that lack it go on.
TEST(Exchanges, ARestoredBackupSkipsNumbers) {
  Running r(4);
  const auto backup = r.w.rows;
  r.w.options.numbers_skipped = 500;
  r.RestartCoordinator(4);
  for (const uint32_t of : {0, 1, 2, 3, 0}) r.Ask(of, 0, true, {0, 1, 2, 3});
  ASSERT_EQ(Show(r.Ask(0, 0, true, {0, 1, 2, 3})), "APPLY 1 members 0,1,2,3 peers ");

  r.w.rows = backup;
  r.w.Restart();
  r.w.Do(StoreRestored{});
  for (const uint32_t of : {2, 3}) {  // alone
    r.w.Do(NodeConnected{Hello(absl::StrCat("n", of), 1)});
    r.w.Report(r.Of(of), RANK_STATE_RUNNING, RankExit::CAUSE_UNSPECIFIED, /*full=*/true);
  }
  for (const uint32_t of : {2, 3, 2}) r.Ask(of, 0, true, {2, 3});
  r.w.clock.Advance(absl::Seconds(30));
  r.Ask(2, 0, true, {2, 3});
  EXPECT_EQ(Show(r.Ask(3, 0, true, {2, 3})), "APPLY 501 members 2,3 peers ");
}

// Without a mark that it was restored, the store learns from a rank that it is old.
TEST(Exchanges, ARankWithAnUnknownExchangeMakesTheNextOnesSkipNumbers) {
  Running r(2);
  r.w.options.numbers_skipped = 500;
  r.RestartCoordinator(2);
  EXPECT_EQ(Show(r.Ask(0, 7, false)), "WAIT 7 members  peers ");
  EXPECT_EQ(Show(r.Ask(1, 7, false)), "WAIT 7 members  peers ");
  for (const uint32_t of : {0, 1}) r.Ask(of, 7, true, {0, 1});
  EXPECT_EQ(Show(r.Ask(0, 7, true, {0, 1})), "APPLY 508 members 0,1 peers ") << "8 may be one that others know";
}

// Whether requests that wait are to be repeated: of this source rank, or of all ranks.
bool AsksAgain(const Outcome& outcome, uint32_t source_rank = 0) {
  return std::any_of(outcome.actions.begin(), outcome.actions.end(), [&](const Action& action) {
    const auto* again = std::get_if<AskSyncAgain>(&action);
    return again != nullptr && again->source_rank.value_or(source_rank) == source_rank;
  });
}

TEST(Exchanges, ARequestWithNothingToDoIsRepeatedOnlyWhenItsReplyMayChange) {
  Running r(2);
  const SteadyTime begin = r.w.clock.Read().steady;
  for (const uint32_t replica : {0, 1}) {
    EXPECT_EQ(r.Send(replica, 0, false).sync_waits_until, std::nullopt) << "it is up to date";
  }
  EXPECT_EQ(r.Send(0, 0, true, {0}).sync_waits_until, begin + absl::Seconds(30)) << "patience";
  const Outcome other = r.Send(1, 0, true, {1});
  EXPECT_EQ(other.sync_waits_until, std::nullopt) << "it can fetch";
  EXPECT_TRUE(AsksAgain(other));
  EXPECT_FALSE(AsksAgain(other, /*source_rank=*/1)) << "only ranks that fetch from rank 0 can do more";
  r.w.clock.Advance(absl::Seconds(10));
  const Outcome holds = r.Send(1, 0, true, {0, 1});
  EXPECT_EQ(holds.sync_waits_until, begin + absl::Seconds(30));
  EXPECT_TRUE(AsksAgain(holds));
  EXPECT_FALSE(AsksAgain(r.Send(1, 0, true, {0, 1}))) << "two that wait would wake each other for ever";
  const Outcome closed = r.Send(0, 0, true, {0, 1});
  EXPECT_EQ(closed.sync.decision(), SyncReply::APPLY);
  EXPECT_EQ(closed.sync_waits_until, std::nullopt);
  EXPECT_TRUE(AsksAgain(closed, /*source_rank=*/7));

  EXPECT_EQ(r.Send(0, 1, true, {0}).sync_waits_until, begin + absl::Seconds(40));
  EXPECT_TRUE(AsksAgain(r.w.Report(r.Of(1), RANK_STATE_EXITED, RankExit::FAILED))) << "it is no longer waited for";
}

TEST(Exchanges, ARankFetchesFromItsSourceOnceThatHoldsIt) {
  Running r(2, /*ranks=*/2);
  const auto ask = [&](uint32_t replica, uint32_t rank, const std::vector<uint32_t>& holds) {
    SyncRequest request;
    request.set_offers(true);
    for (const uint32_t of : holds) request.add_holds(of);
    request.set_address(absl::StrCat("r", replica, ".", rank));
    request.set_layout("even");
    return r.w.Do(SyncRank{{r.Of(replica), r.w.Newest(r.Of(replica)).number(), rank}, request});
  };
  ask(0, 0, {0});
  EXPECT_EQ(Show(ask(1, 1, {1}).sync), "WAIT 0 members  peers ") << "its source has not come";
  EXPECT_EQ(Show(ask(1, 0, {1}).sync), "WAIT 0 members  peers 0@r0.0,1@r1.0");
  const Outcome before = ask(1, 1, {1});
  EXPECT_EQ(Show(before.sync), "WAIT 0 members  peers 1@r1.0") << "its source has only its own";
  EXPECT_TRUE(before.sync_waits_until.has_value());
  EXPECT_TRUE(AsksAgain(ask(1, 0, {0, 1})));
  EXPECT_EQ(Show(ask(1, 1, {1}).sync), "WAIT 0 members  peers 0@r0.0,1@r1.0");
}

TEST(Exchanges, RefusesOtherLayoutsAndJobsWithoutReplicas) {
  Running r(2);
  r.Ask(0, 0, false);
  const Outcome other = r.Send(1, 0, false, {}, 0, "uneven");
  EXPECT_EQ(other.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status.message()), HasSubstr("in another way than replica 0"));
  World w(AnyWorld());
  w.Return(Hello("n", 1));
  const JobId alone = w.Submit(Spec("alone"));
  EXPECT_EQ(w.Do(SyncRank{{alone, 1, 0}, {}}).status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(w.Do(SyncRank{{alone, 2, 0}, {}}).status.code(), absl::StatusCode::kFailedPrecondition);
}

// Else two of its requests that wait would replace each other's layout, and wake each other, for ever.
TEST(Exchanges, RefusesAnotherLayoutOfTheSameGeneration) {
  Running r(2, /*ranks=*/2);
  r.Ask(0, 0, true, {0}, 0);
  const Outcome other = r.Send(0, 0, true, {0}, 1, "uneven");
  EXPECT_EQ(other.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other.status.message()), HasSubstr("rank 1 of replica 0 of "));
  EXPECT_FALSE(AsksAgain(other, /*source_rank=*/0));
  EXPECT_FALSE(AsksAgain(r.Send(0, 0, true, {0}, 0), /*source_rank=*/0));
  Running restarted(2);
  restarted.Ask(0, 0, false);
  restarted.Restart(0);
  EXPECT_TRUE(restarted.Send(0, 0, false, {}, 0, "uneven").status.ok()) << "a new generation may have other nodes";
}

// Requests that wait are kept.
TEST(Exchanges, RefusesRequestsLargerThanAnyHonestOne) {
  Running r(2);
  const auto send = [&](const std::string& address, const std::string& layout, int holds, int generations) {
    SyncRequest request;
    request.set_address(address);
    request.set_layout(layout);
    for (int i = 0; i < holds; ++i) request.add_holds(0);
    for (int i = 0; i < generations; ++i) request.add_held_generations(1);
    return r.w.Do(SyncRank{{r.Of(0), 1, 0}, request}).status;
  };
  EXPECT_EQ(send(std::string(513, 'a'), "", 0, 0).message(),
            "an exchange's address has 513 bytes, and at most 512 are accepted");
  EXPECT_EQ(send("", std::string(513, 'a'), 0, 0).message(),
            "an exchange's layout has 513 bytes, and at most 512 are accepted");
  EXPECT_EQ(send("", "", 3, 0).message(), "a rank holds 3 contributions, but its run has 2 replicas");
  EXPECT_EQ(send("", "", 0, 3).message(), "a rank holds 3 contributions, but its run has 2 replicas");
  EXPECT_EQ(send("", "", 3, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(send(std::string(512, 'a'), std::string(512, 'a'), 2, 2).ok());
}

TEST(Exchanges, RanksOfAReplicaAtDifferentExchangesDoNotWakeEachOtherForEver) {
  Running r(2, /*ranks=*/2);
  r.Ask(0, 1, true, {0}, 0);
  for (int turn = 0; turn < 3; ++turn) {
    const Outcome older = r.Send(0, 0, false, {}, 1);
    EXPECT_EQ(Show(older.sync), "CATCH_UP 1 members  peers ");
    EXPECT_FALSE(AsksAgain(older));
    EXPECT_FALSE(AsksAgain(r.Send(0, 1, true, {0}, 0)));
  }
  EXPECT_TRUE(AsksAgain(r.Send(0, 1, true, {0}, 1))) << "all of it has caught up: it is not waited for";
  const Outcome back = r.Send(0, 0, true, {0}, 1);
  EXPECT_TRUE(AsksAgain(back)) << "its part does not count any more";
  EXPECT_FALSE(AsksAgain(r.Send(0, 0, true, {0}, 1)));
  for (const uint32_t rank : {0, 1}) r.Ask(1, 1, true, {0, 1}, rank);
  EXPECT_EQ(r.Ask(0, 1, true, {0, 1}, 0).decision(), SyncReply::WAIT) << "one rank of replica 0 does not offer";
  EXPECT_EQ(Show(r.Ask(0, 1, true, {0, 1}, 1)), "APPLY 1002 members 0,1 peers ");
}

TEST(Exchanges, AReplicaThatStopsAppliesOnlyWhatWasDecided) {
  Running r(2);
  r.Ask(1, 0, true, {1});
  r.w.Do(PauseJob{r.Of(1)});
  EXPECT_EQ(r.Ask(1, 0, true, {1}).decision(), SyncReply::SKIP);
  EXPECT_EQ(Show(r.Ask(0, 0, true, {0})), "APPLY 1 members 0 peers ");
  EXPECT_EQ(r.Ask(1, 0, true, {1}).decision(), SyncReply::SKIP);
}

TEST(Exchanges, CompleteLeavesOutAsFewAsNeeded) {
  const auto of = [](const std::map<uint32_t, std::set<uint32_t>>& holds) {
    std::set<uint32_t> all;
    for (const auto& [replica, held] : holds) all.insert(replica);
    return Complete(all, holds);
  };
  EXPECT_THAT(of({}), ElementsAre());
  EXPECT_THAT(of({{3, {3}}}), ElementsAre(3));
  EXPECT_THAT(of({{0, {1}}, {1, {0}}}), ElementsAre(0, 1));
  EXPECT_THAT(of({{0, {}}, {1, {0}}}), ElementsAre(0)) << "among equals the last one goes";
  EXPECT_THAT(of({{0, {2, 3}}, {1, {}}, {2, {0, 3}}, {3, {0, 2}}}), ElementsAre(0, 2, 3));
}

// Replicas that crash, come late, lose each other and go back to checkpoints, and a coordinator that restarts: whoever
// has an exchange has the same content, and when the trouble ends all of them meet again. A reply that has nothing to
// do stays so until the core says otherwise, so a call that waits for it is not forgotten.
TEST(Exchanges, ReplicasNeverDifferWhateverHappens) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto one_of = [&](uint32_t n) { return random() % n == 0; };
    constexpr uint32_t kReplicas = 3;
    Running r(kReplicas);
    struct Contribution {
      uint64_t generation = 0;
      uint64_t content = 0;  // different each time that one is made
    };
    struct Replica {
      uint64_t exchange = 0, saved = 0;
      bool offers = false;
      std::map<uint32_t, Contribution> holds;  // by replica, its own included
    };
    std::vector<Replica> all(kReplicas);
    std::map<uint64_t, std::string> content = {{0, "start"}};
    uint64_t contributions = 0;
    std::optional<decltype(r.w.rows)> backup;  // while no replica has begun another generation since
    // The replicas' newest requests, as far as they wait.
    struct Waiting {
      uint64_t exchange;
      bool offers;
      std::vector<uint32_t> holds;
      std::vector<uint64_t> generations;
      SteadyTime until;
    };
    std::map<uint32_t, Waiting> waiting;
    const auto drop_woken = [&] {
      if (!r.w.asked_again.empty()) waiting.clear();
      r.w.asked_again.clear();
    };
    const auto check_waiting = [&] {
      drop_woken();
      for (const auto& [of, asked] : waiting) {
        if (r.w.clock.Read().steady >= asked.until) continue;
        const Outcome outcome = r.Send(of, asked.exchange, asked.offers, asked.holds, 0, "even", asked.generations);
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        ASSERT_TRUE(outcome.sync_waits_until.has_value())
            << "seed " << seed << ": replica " << of << " would sleep on " << Show(outcome.sync);
        ASSERT_TRUE(r.w.asked_again.empty()) << "seed " << seed << ": to repeat a request changes something";
      }
    };
    const auto step = [&](uint32_t of, bool trouble) {
      Replica& own = all[of];
      if (!own.offers && (!trouble || one_of(3))) {
        const uint64_t generation = r.w.Newest(r.Of(of)).number();
        own = {own.exchange, own.saved, true, {{of, {generation, ++contributions}}}};
      }
      std::vector<uint32_t> holds;
      std::vector<uint64_t> generations;
      for (const auto& [replica, held] : own.holds) holds.push_back(replica), generations.push_back(held.generation);
      const Outcome outcome = r.Send(of, own.exchange, own.offers, holds, 0, "even", generations);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status;
      const SyncReply& reply = outcome.sync;
      waiting.erase(of);
      if (outcome.sync_waits_until.has_value()) {
        waiting[of] = {own.exchange, own.offers, holds, generations, *outcome.sync_waits_until};
      }
      drop_woken();
      switch (reply.decision()) {
        case SyncReply::WAIT:
          for (const SyncPeer& peer : reply.peers()) {
            const Replica& other = all[peer.replica()];
            const auto held = own.holds.find(peer.replica());
            if (held != own.holds.end() && held->second.generation == peer.generation()) continue;
            if (!other.offers || other.exchange != own.exchange || (trouble && one_of(4))) continue;
            own.holds[peer.replica()] = {peer.generation(), other.holds.at(peer.replica()).content};
          }
          return;
        case SyncReply::APPLY: {
          std::string made = content.at(own.exchange);
          for (const uint32_t member : reply.members()) {
            ASSERT_TRUE(own.holds.contains(member)) << "seed " << seed;
            absl::StrAppend(&made, " ", member, ":", own.holds.at(member).content);
          }
          const auto [known, fresh] = content.emplace(reply.exchange(), made);
          ASSERT_EQ(known->second, made) << "seed " << seed << ": two results of exchange " << reply.exchange();
          own = {reply.exchange(), own.saved, false, {}};
          return;
        }
        case SyncReply::CATCH_UP:
          for (const SyncPeer& peer : reply.peers()) {
            if (all[peer.replica()].exchange != reply.exchange()) continue;
            ASSERT_TRUE(content.contains(reply.exchange()));
            own = {reply.exchange(), own.saved, false, {}};
            return;
          }
          return;  // asks again, with the same offer
        default:
          FAIL() << "no one stops";
      }
    };
    for (int turn = 0; turn < 200; ++turn) {
      const uint32_t of = random() % kReplicas;
      if (one_of(40)) {
        r.Restart(of);
        all[of] = {all[of].saved, all[of].saved, false, {}};
        waiting.erase(of);
        backup.reset();
      }
      if (one_of(15)) backup = r.w.rows;
      if (one_of(20)) all[of].saved = all[of].exchange;
      if (one_of(30)) {
        const bool restored = backup.has_value() && one_of(2);
        if (restored) r.w.rows = *backup;
        ++r.w.options.numbers_skipped;
        r.RestartCoordinator(kReplicas, restored);
        waiting.clear();
      }
      if (one_of(10)) r.w.clock.Advance(absl::Seconds(random() % 40));
      check_waiting();
      if (testing::Test::HasFatalFailure()) return;
      step(of, /*trouble=*/true);
      if (testing::Test::HasFatalFailure()) return;
    }
    for (int turn = 0; turn < 60; ++turn) {
      r.w.clock.Advance(absl::Seconds(3));
      for (uint32_t of = 0; of < kReplicas; ++of) step(of, /*trouble=*/false);
      if (testing::Test::HasFatalFailure()) return;
    }
    const uint64_t reached = all[0].exchange;
    EXPECT_GT(reached, 0u) << "seed " << seed;
    for (const Replica& replica : all) {
      EXPECT_LE(replica.exchange > reached ? replica.exchange - reached : reached - replica.exchange, 1u)
          << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace muster::core
