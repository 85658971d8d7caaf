#include "coordinator/core/core.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/spec/resolve.h"

namespace muster::core {
namespace {

JobSpec Spec(const std::string& name, int priority = 0, uint32_t max_restarts = 3, uint64_t steps = 100) {
  JobSpec spec;
  spec.set_name(name);
  spec.set_priority(priority);
  spec.set_max_restarts(max_restarts);
  Train& train = *spec.mutable_train();
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_data()->set_tokens("/t.bin");
  train.mutable_checkpoint()->set_path("/c");
  train.set_steps(steps);
  EXPECT_TRUE(spec::Resolve({}, spec).empty());
  return spec;
}

Node Hello(const std::string& id, int slots, const std::string& incarnation = "i1") {
  Node node;
  node.set_id(id);
  node.set_hostname(id + ".host");
  node.set_boot_id("boot");
  node.set_incarnation(incarnation);
  for (int i = 0; i < slots; ++i) {
    node.add_slots()->set_index(i);
    node.mutable_slots(i)->set_device(DEVICE_CPU);
  }
  return node;
}

// A Core with its store: every outcome is applied to the rows as the shell does.
class World {
 public:
  explicit World(Options o = {}) : options(o) { core = Core::Recover(options, {}, clock.Read()).value(); }

  Outcome Do(const Event& event) {
    Outcome out = core->Handle(event, clock.Read());
    EXPECT_TRUE(out.status.ok() || (out.rows.empty() && out.events.empty() && out.actions.empty()))
        << "a refused event changes nothing";
    EXPECT_LE(out.rows.size(), 100u);
    for (const RowChange& row : out.rows) {
      if (row.value.has_value())
        rows[row.key] = *row.value;
      else
        rows.erase(row.key);
    }
    for (const StateEvent& e : out.events) told.push_back(e.kind());
    return out;
  }
  JobId Submit(const JobSpec& spec) {
    const std::string n = absl::StrCat(++requests);
    return Do(SubmitJob{"r" + n, "me", spec, "s" + n}).job;
  }
  void Restart() {
    std::vector<Row> all;
    for (const auto& [key, value] : rows) all.push_back({key, value});
    auto recovered = Core::Recover(options, all, clock.Read());
    ASSERT_TRUE(recovered.ok()) << recovered.status();
    core = *std::move(recovered);
  }
  Job Get(const JobId& id) { return core->GetJob(id).value(); }
  JobState State(const JobId& id) { return Get(id).state(); }
  Generation Newest(const JobId& id) { return core->ListGenerations(id).at(0); }

  // What a worker would report of rank 0 of the job's newest generation.
  Outcome Report(const JobId& id, RankState state, RankExit::Cause cause = RankExit::CAUSE_UNSPECIFIED,
                 bool full = false) {
    const Generation g = Newest(id);
    NodeObserved event{
        NodeId(g.ranks(0).node()), Incarnation(core->GetNode(NodeId(g.ranks(0).node()))->incarnation()), {}};
    event.observed.set_full(full);
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(g.number());
    rank.set_state(state);
    rank.mutable_exit()->set_cause(cause);
    if (cause == RankExit::FAILED) rank.mutable_exit()->set_message("rank 0 was killed by signal 9 (SIGKILL)");
    return Do(event);
  }
  Outcome Checkpoint(const JobId& id, uint64_t step, uint64_t generation = 0) {
    RankRecord event{{id, generation == 0 ? Newest(id).number() : generation, 0}, {}};
    event.record.mutable_checkpoint()->set_step(step);
    event.record.mutable_checkpoint()->set_directory(absl::StrCat("step-", step));
    return Do(event);
  }
  void Finish(const JobId& id) {
    RankRecord event{{id, Newest(id).number(), 0}, {}};
    event.record.mutable_finished()->set_step(100);
    EXPECT_TRUE(Do(event).status.ok());
    Report(id, RANK_STATE_EXITED, RankExit::COMPLETED);
  }
  void PassBackoff() {
    clock.Advance(absl::Minutes(2));
    Do(Tick{});
  }

  Options options;
  FakeClock clock;
  std::map<std::string, std::string> rows;
  std::vector<std::string> told;
  std::unique_ptr<Core> core;
  int requests = 0;
};

TEST(Core, AJobRunsToItsEnd) {
  World w;
  const JobId id = w.Submit(Spec("a"));
  EXPECT_EQ(w.Get(id).reason(), "1st in the queue: no node has joined that takes ranks");
  const Outcome joined = w.Do(NodeConnected{Hello("n", 1)});
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  // The row of the generation is in the commit that comes before the action.
  EXPECT_TRUE(std::any_of(joined.rows.begin(), joined.rows.end(),
                          [](const RowChange& r) { return absl::StartsWith(r.key, "generation/"); }));
  EXPECT_TRUE(std::holds_alternative<SendDesired>(joined.actions.back()));
  const Desired desired = w.core->DesiredFor(NodeId("n"));
  ASSERT_EQ(desired.ranks_size(), 1);
  const Assignment& assignment = desired.ranks(0).run();
  EXPECT_EQ(assignment.schedule_digest(), w.Newest(id).schedule_digest());
  EXPECT_EQ(assignment.device(), DEVICE_CPU);
  EXPECT_GT(assignment.table().units_size(), 0);

  w.Report(id, RANK_STATE_RUNNING);
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  w.Finish(id);
  EXPECT_EQ(w.State(id), JOB_STATE_COMPLETED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_COMPLETED);
  EXPECT_EQ(w.core->DesiredFor(NodeId("n")).ranks_size(), 0);
  EXPECT_EQ(w.told, (std::vector<std::string>{"job.queued", "node.joined", "generation.starting", "job.running",
                                              "rank.exited", "generation.ended", "job.completed"}));
}

TEST(Core, SubmitIsIdempotentByRequest) {
  World w;
  const Outcome first = w.Do(SubmitJob{"r", "me", Spec("a"), "xxxx"});
  const Outcome again = w.Do(SubmitJob{"r", "me", Spec("a"), "yyyy"});
  EXPECT_EQ(again.job, first.job);
  EXPECT_TRUE(again.rows.empty());
  EXPECT_EQ(w.Do(SubmitJob{"r", "me", Spec("b"), "zzzz"}).status.code(), absl::StatusCode::kAlreadyExists);
  w.Restart();
  EXPECT_EQ(w.Do(SubmitJob{"r", "me", Spec("a"), "wwww"}).job, first.job);
  EXPECT_NE(w.Do(SubmitJob{"r2", "me", Spec("a"), "xxxx"}).job, first.job) << "a taken id is not given twice";
}

TEST(Core, TheQueueIsOrderedAndSaysWhy) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId a = w.Submit(Spec("a")), b = w.Submit(Spec("b")), c = w.Submit(Spec("c", 5));
  EXPECT_EQ(w.State(a), JOB_STATE_STARTING);
  EXPECT_EQ(w.Get(c).queue_position(), 1u);
  EXPECT_EQ(w.Get(b).queue_position(), 2u);
  EXPECT_EQ(w.Get(b).reason(), absl::StrCat("2nd in the queue: needs 1 slot, 0 of 1 free (in use: ", a.value(), ")"));
  w.Finish(a);
  EXPECT_EQ(w.State(c), JOB_STATE_STARTING) << "the higher priority goes first";
  EXPECT_EQ(w.State(b), JOB_STATE_QUEUED);
}

TEST(Core, AFailedRankRestartsFromTheNewestCheckpointWithBackoff) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  EXPECT_TRUE(w.Checkpoint(id, 50).status.ok());
  EXPECT_EQ(w.core->DesiredFor(NodeId("n")).ranks(0).run().published_size(), 1);
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_TRUE(absl::StrContains(w.Get(id).reason(), "SIGKILL")) << w.Get(id).reason();
  EXPECT_EQ(w.Get(id).failure().rank(), 0u);
  ASSERT_TRUE(w.core->NextTick().has_value());
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << "not before its back-off is over";
  w.clock.Advance(absl::Seconds(1));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w.Newest(id).number(), 2u);
  EXPECT_EQ(w.Newest(id).resume_from().step(), 50u);
}

TEST(Core, RestartsWithoutProgressEndTheJob) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a", 0, 2));
  for (int i = 0; i < 2; ++i) {
    w.Report(id, RANK_STATE_RUNNING);
    w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
    EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << i;
    w.PassBackoff();
  }
  w.Checkpoint(id, 10);  // progress: the count begins anew
  for (int i = 0; i < 2; ++i) {
    w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
    EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << i;
    w.PassBackoff();
  }
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(w.Get(id).reason(), "SIGKILL")) << w.Get(id).reason();
  EXPECT_FALSE(w.Get(id).failure().hint().empty());
}

TEST(Core, CancelInEveryState) {
  World w;
  const JobId queued = w.Submit(Spec("a"));
  EXPECT_TRUE(w.Do(CancelJob{queued}).status.ok());
  EXPECT_EQ(w.State(queued), JOB_STATE_CANCELLED);
  EXPECT_TRUE(w.Do(CancelJob{queued}).status.ok()) << "twice is once";
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId running = w.Submit(Spec("b")), next = w.Submit(Spec("c"));
  w.Report(running, RANK_STATE_RUNNING);
  w.Do(CancelJob{running});
  EXPECT_EQ(w.State(running), JOB_STATE_STOPPING);
  const Desired desired = w.core->DesiredFor(NodeId("n"));
  ASSERT_TRUE(desired.ranks(0).has_stop());
  EXPECT_TRUE(desired.ranks(0).stop().checkpoint_first());
  EXPECT_EQ(w.State(next), JOB_STATE_QUEUED) << "the slot is held until the rank has ended";
  w.Checkpoint(running, 7);  // the last one, on the way out
  w.Report(running, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(running), JOB_STATE_CANCELLED);
  EXPECT_EQ(w.Get(running).checkpoints_size(), 1);
  EXPECT_EQ(w.State(next), JOB_STATE_STARTING);
  w.Finish(next);
  EXPECT_EQ(w.Do(CancelJob{next}).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(w.Do(CancelJob{JobId("nobody")}).status.code(), absl::StatusCode::kNotFound);
}

TEST(Core, PauseAndResume) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(PauseJob{id});
  w.Checkpoint(id, 30);
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_PAUSED);
  EXPECT_EQ(w.Get(id).restarts(), 0u) << "a pause is no restart";
  w.PassBackoff();
  EXPECT_EQ(w.State(id), JOB_STATE_PAUSED);
  w.Do(ResumeJob{id});
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  EXPECT_EQ(w.Newest(id).resume_from().step(), 30u);
  w.Do(PauseJob{id});
  w.Do(ResumeJob{id});  // before it has stopped
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
  w.Do(PauseJob{id});
  w.Do(CancelJob{id});  // overrides
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_CANCELLED);
}

TEST(Core, AJobThatFinishesWhileItIsStoppedHasCompleted) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(CancelJob{id});
  w.Finish(id);
  EXPECT_EQ(w.State(id), JOB_STATE_COMPLETED);
}

TEST(Core, AnExitInGoodOrderBeforeTheLastStepIsNoEnd) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Report(id, RANK_STATE_EXITED, RankExit::COMPLETED);  // no Finished record: somebody sent SIGTERM
  EXPECT_EQ(w.Newest(id).number(), 2u);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING);
}

TEST(Core, OnlyTheCurrentGenerationPublishesAndOnlyForward) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Checkpoint(id, 10);
  w.Checkpoint(id, 10);
  EXPECT_EQ(w.Get(id).checkpoints_size(), 1) << "a repeated report publishes once";
  w.Report(id, RANK_STATE_EXITED, RankExit::FAILED);
  w.PassBackoff();
  EXPECT_EQ(w.Checkpoint(id, 20, 1).status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(w.Checkpoint(id, 20).status.ok());
  w.Checkpoint(id, 30);
  EXPECT_EQ(w.Get(id).checkpoints_size(), 2) << "keep: 2";
  EXPECT_EQ(w.Get(id).checkpoints(0).step(), 20u);
}

TEST(Core, ANodeThatStaysAwayIsLost) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  EXPECT_EQ(w.core->ListNodes()[0].slots(0).state(), SLOT_STATE_UNKNOWN);
  w.clock.JumpWall(absl::Hours(100));  // decides nothing
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  w.clock.Advance(absl::Seconds(11));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_LOST);
  // It returns with its rank: not wanted any more.
  w.Do(NodeConnected{Hello("n", 1)});
  EXPECT_EQ(w.core->DesiredFor(NodeId("n")).ranks_size(), 0);
  w.PassBackoff();
  EXPECT_EQ(w.core->DesiredFor(NodeId("n")).ranks(0).key().generation(), 2u);
}

TEST(Core, ANodeThatReturnsInTimeGoesOn) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});
  w.Do(NodeConnected{Hello("n", 1, "i2")});  // the daemon was restarted
  w.Report(id, RANK_STATE_RUNNING, RankExit::CAUSE_UNSPECIFIED, /*full=*/true);
  w.Do(NodeDisconnected{NodeId("n"), Incarnation("i1")});  // late: of the predecessor
  w.clock.Advance(absl::Minutes(1));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  EXPECT_EQ(w.Newest(id).number(), 1u);
}

TEST(Core, ARankThatAFullReportDoesNotKnowHasVanished) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  NodeObserved nothing{NodeId("n"), Incarnation("i1"), {}};
  nothing.observed.set_full(true);
  w.Do(nothing);
  EXPECT_EQ(w.State(id), JOB_STATE_STARTING) << "it was not started yet, and will be";
  w.Report(id, RANK_STATE_RUNNING);
  w.Do(nothing);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Get(id).failure().exit().cause(), RankExit::VANISHED);
}

TEST(Core, TwoDaemonsOfOneIdOrDevice) {
  World w;
  Node a = Hello("n", 1);
  a.mutable_slots(0)->set_device_uuid("GPU-1");
  w.Do(NodeConnected{a});
  Node same_host = a;
  same_host.set_incarnation("i2");
  const Outcome replaced = w.Do(NodeConnected{same_host});
  EXPECT_TRUE(replaced.status.ok());
  EXPECT_TRUE(std::holds_alternative<CloseStream>(replaced.actions[0]));
  Node other_host = a;
  other_host.set_hostname("elsewhere");
  other_host.set_incarnation("i3");
  const absl::Status id_taken = w.Do(NodeConnected{other_host}).status;
  EXPECT_EQ(id_taken.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(absl::StrContains(id_taken.message(), "n.host"));
  Node other = Hello("m", 1);
  other.mutable_slots(0)->set_device_uuid("GPU-1");
  EXPECT_EQ(w.Do(NodeConnected{other}).status.code(), absl::StatusCode::kAlreadyExists);
  NodeObserved stale{NodeId("n"), Incarnation("i1"), {}};
  EXPECT_EQ(w.Do(stale).status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Core, DrainMovesJobsAway) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a"));
  w.Report(id, RANK_STATE_RUNNING);
  EXPECT_TRUE(w.Do(DrainNode{NodeId("n")}).status.ok());
  EXPECT_TRUE(w.core->DesiredFor(NodeId("n")).ranks(0).stop().checkpoint_first());
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_QUEUED);
  EXPECT_EQ(w.Newest(id).reason(), END_REASON_DRAINED);
  w.Do(NodeConnected{Hello("m", 1)});
  EXPECT_EQ(w.Newest(id).ranks(0).node(), "m");
  w.Do(UndrainNode{NodeId("n")});
  EXPECT_FALSE(w.core->GetNode(NodeId("n"))->draining());
  EXPECT_EQ(w.Do(DrainNode{NodeId("x")}).status.code(), absl::StatusCode::kNotFound);
}

TEST(Core, ARankThatNeverBeginsFailsAtItsDeadline) {
  World w;
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Spec("a", 0, 0));
  w.clock.Advance(absl::Minutes(5));
  w.Do(Tick{});
  EXPECT_EQ(w.State(id), JOB_STATE_STOPPING);
  w.Report(id, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
  EXPECT_TRUE(absl::StrContains(w.Get(id).failure().exit().message(), "rank 0 on n"))
      << w.Get(id).failure().exit().message();
}

TEST(Core, DeleteForgetsAnEndedJob) {
  World w;
  const JobId id = w.Submit(Spec("a"));
  EXPECT_EQ(w.Do(DeleteJob{id}).status.code(), absl::StatusCode::kFailedPrecondition);
  w.Do(CancelJob{id});
  const Outcome out = w.Do(DeleteJob{id});
  EXPECT_TRUE(std::holds_alternative<ForgetJob>(out.actions[0]));
  EXPECT_TRUE(w.rows.empty());
  EXPECT_TRUE(w.Do(DeleteJob{id}).status.ok()) << "a retry";
}

TEST(Core, FindTakesUniquePrefixes) {
  World w;
  const JobId a = w.Submit(Spec("alpha"));
  w.Submit(Spec("beta"));
  w.Submit(Spec("beta"));
  EXPECT_EQ(*w.core->Find("al"), a);
  EXPECT_EQ(w.core->Find("beta").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(w.core->Find("gamma").status().code(), absl::StatusCode::kNotFound);
}

TEST(Core, DamagedRowsAreNamed) {
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

// ---- Random histories: after every event the recovered core shows the same, and the invariants hold. ----

std::string Shown(const Core& core, bool timers_matter) {
  std::string out;
  for (Job job : core.ListJobs(true)) {
    if (!timers_matter) job.clear_reason();
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

// One random event that could come from a user, a node, or a late message.
Event RandomEvent(std::mt19937& random, World& w, std::set<std::string>& accepted) {
  const auto pick_job = [&] {
    const std::vector<Job> jobs = w.core->ListJobs(true);
    return jobs.empty() ? JobId("none") : JobId(jobs[random() % jobs.size()].id());
  };
  const NodeId node(absl::StrCat("n", random() % 3));
  switch (random() % 14) {
    case 0:
    case 1: {
      const std::string n = absl::StrCat(random() % 1000);
      const std::string id = absl::StrCat("j-", n);
      if (!accepted.contains(id)) accepted.insert(id);
      return SubmitJob{"r" + n, "me", Spec("j", static_cast<int>(random() % 2), random() % 3), n};
    }
    case 2:
      return CancelJob{pick_job()};
    case 3:
      return PauseJob{pick_job()};
    case 4:
      return ResumeJob{pick_job()};
    case 5:
      return random() % 4 == 0 ? Event(DrainNode{node}) : Event(UndrainNode{node});
    case 6:
      return NodeConnected{Hello(node.value(), 1 + static_cast<int>(random() % 2), absl::StrCat("i", random() % 2))};
    case 7:
      return NodeDisconnected{node, Incarnation(absl::StrCat("i", random() % 2))};
    default:
      break;
  }
  const JobId job = pick_job();
  const std::vector<Generation> generations = w.core->ListGenerations(job);
  if (generations.empty() || random() % 5 == 0) return Tick{};
  const Generation& g = generations[random() % std::min<size_t>(generations.size(), 2)];
  if (random() % 2) {
    RankRecord record{{job, g.number(), 0}, {}};
    if (random() % 4 == 0) {
      record.record.mutable_finished()->set_step(100);
    } else {
      record.record.mutable_checkpoint()->set_step(random() % 100);
    }
    return record;
  }
  NodeObserved seen{NodeId(g.ranks(0).node()), Incarnation(absl::StrCat("i", random() % 2)), {}};
  seen.observed.set_full(random() % 4 == 0);
  if (random() % 5) {
    ObservedRank& rank = *seen.observed.add_ranks();
    rank.mutable_key()->set_job(job.value());
    rank.mutable_key()->set_generation(g.number());
    rank.set_state(random() % 2 ? RANK_STATE_RUNNING : RANK_STATE_EXITED);
    rank.mutable_exit()->set_cause(static_cast<RankExit::Cause>(1 + random() % 6));
  }
  return seen;
}

TEST(Core, RandomHistoriesRecoverAndKeepTheInvariants) {
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    World w;
    std::set<std::string> accepted;
    for (int i = 0; i < 60; ++i) {
      std::set<std::string> wanted = accepted;
      const Event event = RandomEvent(random, w, wanted);
      const Outcome out = w.Do(event);
      if (out.status.ok() && !out.job.empty()) accepted.insert(out.job.value());
      w.clock.Advance(absl::Milliseconds(random() % 6000));
      ASSERT_NO_FATAL_FAILURE(CheckInvariants(*w.core, accepted)) << "seed " << seed << " event " << i;
      const std::string before = Shown(*w.core, false);
      std::vector<Row> rows;
      for (const auto& [key, value] : w.rows) rows.push_back({key, value});
      auto recovered = Core::Recover(w.options, rows, w.clock.Read());
      ASSERT_TRUE(recovered.ok()) << recovered.status();
      ASSERT_EQ(Shown(**recovered, false), before) << "seed " << seed << " event " << i;
      if (random() % 10 == 0) w.core = *std::move(recovered);  // the coordinator was restarted
    }
  }
}

TEST(Core, EqualEventsGiveEqualBytes) {
  const auto run = [] {
    std::mt19937 random(42);
    World w;
    std::set<std::string> accepted;
    std::string all;
    for (int i = 0; i < 300; ++i) {
      const Outcome out = w.Do(RandomEvent(random, w, accepted));
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
