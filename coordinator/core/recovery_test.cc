// Recovery from stored rows. Any history leads to rows that restore the same state.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

TEST(Recovery, DamagedRowsAreNamed) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  for (const auto& [key, value] : w.rows) {
    std::vector<Row> rows;
    for (const auto& [k, v] : w.rows) rows.push_back({k, k == key ? "\xff\xff\xff garbage" : v});
    const absl::Status status = Core::Recover({}, rows, w.clock.Read()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_TRUE(absl::StrContains(status.message(), key)) << status;
  }
}

TEST(Recovery, RowsThatContradictEachOtherAreNamed) {
  World w;
  w.Do(NodeConnected{Hello("n", 2)});
  const JobId a = w.Submit(Spec("a")), b = w.Submit(Spec("b"));
  const std::string job_a = "job/" + a.value(), job_b = "job/" + b.value();
  const std::string generation_b = "generation/" + b.value() + "/0000000001";
  const auto change = [&](const std::string& key, auto message, const auto& edit) {
    std::map<std::string, std::string> rows = w.rows;
    EXPECT_TRUE(message.ParseFromString(rows.at(key)));
    edit(message);
    rows[key] = message.SerializeAsString();
    return rows;
  };
  const auto without = [&](const std::string& key) {
    std::map<std::string, std::string> rows = w.rows;
    rows.erase(key);
    return rows;
  };
  const struct {
    const char* what;
    std::map<std::string, std::string> rows;
    std::string named;
  } kCases[] = {
      {"no generation", without(generation_b), job_b},
      {"no job", without(job_b), generation_b},
      {"no node", without("node/n"), "generation/" + a.value() + "/0000000001"},
      {"one request twice", change(job_b, Job(), [](Job& j) { j.set_request_id("r1"); }), job_a},
      {"one place twice", change(job_b, Job(), [](Job& j) { j.set_sequence(1); }), job_b},
      {"ended with a live generation", change(job_b, Job(), [](Job& j) { j.set_state(JOB_STATE_FAILED); }), job_b},
      {"a slot twice", change(generation_b, Generation(), [](Generation& g) { g.mutable_ranks(0)->set_slots(0, 0); }),
       generation_b},
      {"unknown state", change(job_b, Job(), [](Job& j) { j.set_state(static_cast<JobState>(99)); }), job_b},
  };
  for (const auto& test : kCases) {
    std::vector<Row> rows;
    for (const auto& [key, value] : test.rows) rows.push_back({key, value});
    const absl::Status status = Core::Recover({}, rows, w.clock.Read()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << test.what;
    EXPECT_TRUE(absl::StrContains(status.message(), test.named)) << test.what << ": " << status;
  }
}

// Two stages of two shards of two tensor ranks, as a build stored them whose roles had no shard_in_stage: owner
// (stage * 2 + shard) * 2 + tensor.
TEST(Recovery, RanksOfAnOlderBuildHaveTheirShards) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("n", 8)});
  JobSpec spec = Gang("p", 8);
  spec.mutable_train()->mutable_parallel()->set_pipeline(2);
  const JobId id = w.Submit(spec);
  ASSERT_EQ(w.Newest(id).ranks_size(), 8);
  const auto shards_of = [&](const std::vector<uint32_t>& owners) {
    Generation stored = w.Newest(id);
    for (uint32_t rank = 0; rank < 8; ++rank) {
      RankRole& role = *stored.mutable_ranks(static_cast<int>(rank))->mutable_role();
      role.Clear();
      role.set_rank(rank), role.set_stage(rank / 4), role.set_tensor(rank % 2), role.set_shard(owners[rank]);
    }
    w.rows["generation/" + id.value() + "/0000000001"] = stored.SerializeAsString();
    w.Restart();
    const Generation restored = w.Newest(id);
    std::vector<uint32_t> shards;
    for (const RankPlacement& rank : restored.ranks()) shards.push_back(rank.role().shard_in_stage());
    return shards;
  };
  EXPECT_EQ(shards_of({0, 1, 2, 3, 4, 5, 6, 7}), (std::vector<uint32_t>{0, 0, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(shards_of({0, 0, 0, 0, 0, 0, 0, 0}), (std::vector<uint32_t>(8, 0))) << "no mesh has such owners";
}

// Pairs that share sequences, as a build stored them whose roles had no context.
TEST(Recovery, RanksOfAnOlderBuildHaveTheirPartOfSequences) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("n", 4)});
  JobSpec spec = Gang("c", 4);
  spec.mutable_train()->mutable_parallel()->set_context(2);
  const JobId id = w.Submit(spec);
  Generation stored = w.Newest(id);
  ASSERT_EQ(stored.ranks_size(), 4);
  for (RankPlacement& rank : *stored.mutable_ranks()) rank.mutable_role()->clear_context();
  w.rows["generation/" + id.value() + "/0000000001"] = stored.SerializeAsString();
  w.Restart();
  std::vector<uint32_t> parts;
  const Generation restored = w.Newest(id);
  for (const RankPlacement& rank : restored.ranks()) parts.push_back(rank.role().context());
  EXPECT_EQ(parts, (std::vector<uint32_t>{0, 1, 0, 1}));
}

// ---- Random histories: after every event the recovered core shows the same, and the invariants hold. ----

std::string Shown(const Core& core) {
  std::string out;
  for (Job job : core.ListJobs(true)) {
    // Backoffs restart, and nodes are away: only that may change why a job waits.
    if (job.state() == JOB_STATE_QUEUED) job.clear_reason();
    absl::StrAppend(&out, job.SerializeAsString(), "|");
    for (const Generation& g : core.ListGenerations(JobId(job.id()))) absl::StrAppend(&out, g.SerializeAsString());
  }
  return out;
}

void CheckInvariants(const Core& core, const std::set<std::string>& accepted) {
  std::set<std::string> seen;
  std::map<std::pair<std::string, uint32_t>, std::string> slots;
  for (const Job& job : core.ListJobs(true)) {
    seen.insert(job.id());
    if (job.state() == JOB_STATE_QUEUED) {
      ASSERT_FALSE(job.reason().empty());
      ASSERT_GT(job.queue_position(), 0u);
    }
    int current = 0;
    for (const Generation& g : core.ListGenerations(JobId(job.id()))) {
      if (g.state() == GENERATION_STATE_ENDED) continue;
      ++current;
      ASSERT_EQ(g.number(), job.generation());
      for (const RankPlacement& r : g.ranks()) {
        const NodeState node = core.GetNode(NodeId(r.node()))->state();
        ASSERT_TRUE(r.state() == RANK_STATE_EXITED || node != NODE_STATE_LOST) << "a rank on a lost node";
        if (r.state() == RANK_STATE_EXITED && g.state() == GENERATION_STATE_STOPPING) continue;  // its slot is free
        ASSERT_TRUE(slots.emplace(std::pair(r.node(), r.slots(0)), job.id()).second) << "a slot is used twice";
      }
    }
    const bool active =
        job.state() == JOB_STATE_STARTING || job.state() == JOB_STATE_RUNNING || job.state() == JOB_STATE_STOPPING;
    ASSERT_EQ(current, active ? 1 : 0) << job.ShortDebugString();
    for (int i = 1; i < job.checkpoints_size(); ++i)
      ASSERT_LT(job.checkpoints(i - 1).step(), job.checkpoints(i).step());
  }
  ASSERT_EQ(seen, accepted) << "accepted jobs neither vanish nor appear";
}

// The job of a random event: mostly one that runs, so that histories make progress.
JobId PickJob(std::mt19937& random, const Core& core) {
  const std::vector<Job> jobs = core.ListJobs(true);
  if (jobs.empty()) return JobId("none");
  std::vector<std::string> active;
  for (const Job& job : jobs) {
    if (job.generation() > 0 && core.IsCurrent(JobId(job.id()), job.generation())) active.push_back(job.id());
  }
  if (!active.empty() && random() % 4 != 0) return JobId(active[random() % active.size()]);
  return JobId(jobs[random() % jobs.size()].id());
}

// A random report of a rank, of its job's newest generation or a stale one.
Event RandomNews(std::mt19937& random, World& w, const JobId& job) {
  const std::vector<Generation> generations = w.core->ListGenerations(job);
  if (generations.empty()) return Tick{};
  const Generation& g = generations[random() % 5 == 0 ? generations.size() - 1 : 0];
  const RankPlacement& rank = g.ranks(static_cast<int>(random() % g.ranks_size()));
  if (random() % 3 == 0) {
    RankRecord record{{job, g.number(), rank.rank()}, {}};
    if (random() % 2 == 0) {
      record.record.mutable_finished()->set_step(100);
    } else {
      record.record.mutable_checkpoint()->set_step(random() % 100);
      record.record.mutable_checkpoint()->set_directory("step");
    }
    return record;
  }
  NodeObserved seen{NodeId(rank.node()), Incarnation(absl::StrCat("i", random() % 2)), {}};
  seen.observed.set_full(random() % 8 == 0);
  if (random() % 8 == 0) return seen;
  ObservedRank& news = *seen.observed.add_ranks();
  news.mutable_key()->set_job(job.value());
  news.mutable_key()->set_generation(g.number());
  news.mutable_key()->set_rank(rank.rank());
  const bool ends = rank.finished() || random() % 4 == 0;
  news.set_state(ends ? RANK_STATE_EXITED : static_cast<RankState>(1 + random() % 3));
  news.mutable_exit()->set_cause(rank.finished() ? RankExit::COMPLETED
                                                 : static_cast<RankExit::Cause>(1 + random() % 6));
  return seen;
}

// One random event that could come from a user, a node, or a late message.
Event RandomEvent(std::mt19937& random, World& w) {
  const JobId job = PickJob(random, *w.core);
  const NodeId node(absl::StrCat("n", random() % 3));
  const std::string number = absl::StrCat(random() % 20);
  switch (random() % 24) {
    case 0:
    case 1: {
      JobSpec spec = Spec("j", static_cast<int>(random() % 2), random() % 3);
      spec.mutable_resources()->set_ranks(1 + random() % 3);
      return SubmitJob{"r" + number, "me", spec, number};
    }
    case 2:
      return random() % 2 ? Event(CancelJob{job}) : Event(ResumeJob{job});
    case 3:
      return PauseJob{job};
    case 4:
      return ResumeJob{job};
    case 5:
      return random() % 4 == 0 ? Event(DrainNode{node}) : Event(UndrainNode{node});
    case 6:
    case 7:
      return NodeConnected{Hello(node.value(), 1 + static_cast<int>(random() % 2), absl::StrCat("i", random() % 2))};
    case 8:
      return NodeDisconnected{node, Incarnation(absl::StrCat("i", random() % 2))};
    case 9:
      return Tick{};
    default:
      return RandomNews(random, w, job);
  }
}

// A backup of generation 1 is restored while generation 3 runs on a worker.
TEST(Recovery, AnOlderCopyDoesNotUseANumberAgain) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Spec("j"));
  w.Report(id, RANK_STATE_RUNNING);
  ASSERT_EQ(w.Newest(id).number(), 1u);
  w.Restart();  // the copy
  w.Do(NodeConnected{.node = Hello("a", 1, "i2"), .generations = {{id, 3}, {JobId("unknown"), 7}}});
  EXPECT_EQ(w.events.back(), "job.outdated");
  w.Do(NodeConnected{.node = Hello("a", 1, "i3"), .generations = {{id, 2}}});
  w.Restart();
  w.Return(Hello("a", 1, "i4"));  // it does not have generation 1 any more
  w.PassBackoff();
  EXPECT_EQ(w.Newest(id).number(), 1004u) << "nodes that are not back may have had more than the three";
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
}

// Of more jobs than one commit has room for, and the node takes ranks at once.
TEST(Recovery, AnOlderCopyUsesNoNumberOfAnyJobAgain) {
  World w(AnyWorld());
  std::map<JobId, uint64_t> seen;
  for (int i = 0; i < 200; ++i) seen[w.Submit(Spec(absl::StrCat("j", i)))] = 3;
  w.Restart();  // the copy
  w.Alone(NodeConnected{.node = Hello("a", 200), .generations = seen});
  NodeObserved nothing{NodeId("a"), Incarnation("i1"), {}};
  nothing.observed.set_full(true);
  w.Alone(nothing);
  w.Pass(absl::Minutes(1));
  for (const auto& [id, number] : seen) {
    ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
    EXPECT_GT(w.Newest(id).number(), number);
  }
}

// The worker has the same old records each time, and a generation of the first restore may still be known elsewhere.
TEST(Recovery, ABackupThatIsRestoredTwiceGivesOtherNumbers) {
  World w(AnyWorld());
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId id = w.Submit(Spec("j"));
  w.Report(id, RANK_STATE_RUNNING);
  const auto backup = w.rows;
  std::set<uint64_t> numbers;
  for (const uint64_t skipped : {2000, 3000}) {
    w.rows = backup;
    w.options.numbers_skipped = skipped;
    w.Restart();
    w.Do(StoreRestored{});
    const std::string incarnation = absl::StrCat("i", skipped);
    w.Do(NodeConnected{.node = Hello("a", 1, incarnation), .generations = {{id, 500'000}}});
    w.Return(Hello("a", 1, incarnation));
    w.PassBackoff();
    numbers.insert(w.Newest(id).number());
  }
  EXPECT_EQ(numbers, (std::set<uint64_t>{502'001, 503'001}));
}

// Before any node is back: one without ranks may be the first, and take a job whose later generations others have.
TEST(Recovery, ARestoredBackupSkipsNumbers) {
  World w(AnyWorld());
  w.options.numbers_skipped = 5000;
  w.Restart();
  w.Do(NodeConnected{Hello("a", 1)});
  const JobId running = w.Submit(Spec("runs")), waiting = w.Submit(Spec("waits"));
  w.Report(running, RANK_STATE_RUNNING);
  w.Restart();  // from the backup
  const Outcome restored = w.Do(StoreRestored{});
  EXPECT_EQ(w.events.back(), "store.restored");
  EXPECT_EQ(
      restored.events.back().message(),
      "this store was restored from a backup: changes made after it are lost; generations and exchanges of replicas "
      "skip 5000 numbers, so that none is used twice");
  w.Restart();
  w.Do(NodeConnected{Hello("b", 1)});
  EXPECT_EQ(w.Newest(waiting).number(), 5001u) << "though no worker has reported a generation";
  EXPECT_EQ(w.Newest(running).number(), 1u) << "what runs goes on";
}

TEST(Recovery, RandomHistoriesRecoverAndKeepTheInvariants) {
  std::map<JobState, int> seen;  // a history that never completes a job would prove little
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    World w(AnyWorld());
    std::set<std::string> accepted;
    for (int i = 0; i < 60; ++i) {
      const Outcome out = w.Do(RandomEvent(random, w));
      if (out.status.ok() && !out.job.empty()) accepted.insert(out.job.value());
      w.clock.Advance(absl::Milliseconds(random() % 6000));
      ASSERT_NO_FATAL_FAILURE(CheckInvariants(*w.core, accepted)) << "seed " << seed << " event " << i;
      const std::string before = Shown(*w.core);
      std::vector<Row> rows;
      for (const auto& [key, value] : w.rows) rows.push_back({key, value});
      auto recovered = Core::Recover(w.options, rows, w.clock.Read());
      ASSERT_TRUE(recovered.ok()) << recovered.status();
      ASSERT_EQ(Shown(**recovered), before) << "seed " << seed << " event " << i;
      if (random() % 10 == 0) w.core = *std::move(recovered);  // the coordinator was restarted
      for (const Job& job : w.core->ListJobs(true)) ++seen[job.state()];
    }
  }
  for (int state = JOB_STATE_QUEUED; state <= JOB_STATE_CANCELLED; ++state) {
    EXPECT_GT(seen[static_cast<JobState>(state)], 50) << JobState_Name(static_cast<JobState>(state));
  }
}

TEST(Recovery, EqualEventsGiveEqualBytes) {
  const auto run = [] {
    std::mt19937 random(42);
    World w(AnyWorld());
    std::string all;
    for (int i = 0; i < 300; ++i) {
      const Outcome out = w.Do(RandomEvent(random, w));
      for (const RowChange& row : out.rows) absl::StrAppend(&all, row.key, "=", row.value.value_or("-"), "\n");
      for (const StateEvent& e : out.events) absl::StrAppend(&all, e.SerializeAsString(), "\n");
      absl::StrAppend(&all, out.actions.size(), out.reason, "\n");
      w.clock.Advance(absl::Milliseconds(random() % 6000));
    }
    return all;
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace muster::core
