// Jobs that run a program of the user's: what Core does differently from a training job.
#include <gmock/gmock.h>

#include <algorithm>

#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

JobSpec Script(const std::string& name, uint32_t ranks, uint32_t max_restarts = 3) {
  JobSpec spec;
  spec.set_name(name);
  spec.set_max_restarts(max_restarts);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_exec()->add_command("python");
  EXPECT_TRUE(spec::Resolve({}, spec).empty());
  return spec;
}

WorldOptions Scripts() {
  WorldOptions options;
  options.planner = [](const JobSpec&, const Slots& slots) -> absl::StatusOr<Planned> {
    return PlannedOfProgram(static_cast<uint32_t>(slots.ranks.size()));
  };
  return options;
}

TEST(ExecJobs, RanksKnowTheirNodes) {
  World w(Scripts());
  w.Do(NodeConnected{Hello("m", 2)});
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Script("a", 3));
  const Generation g = w.Newest(id);
  std::map<uint32_t, Assignment> assignments;
  for (const char* node : {"m", "n"}) {
    const Desired desired = w.core->DesiredFor(NodeId(node));
    for (const DesiredRank& rank : desired.ranks()) {
      assignments[rank.key().rank()] = rank.run();
    }
  }
  ASSERT_EQ(assignments.size(), 3u);
  const std::string first = g.ranks(0).node();
  for (const auto& [rank, assignment] : assignments) {
    EXPECT_EQ(assignment.nodes(), 2u);
    EXPECT_EQ(assignment.node_index(), g.ranks(static_cast<int>(rank)).node() == first ? 0u : 1u) << rank;
    EXPECT_EQ(assignment.table_sha256(), "");
    EXPECT_TRUE(assignment.spec().has_exec());
  }
}

TEST(ExecJobs, CompletesWhenEveryRankHas) {
  World w(Scripts());
  w.Do(NodeConnected{Hello("n", 2)});
  const JobId id = w.Submit(Script("a", 2));
  w.ReportRank(id, 0, RANK_STATE_RUNNING);
  w.ReportRank(id, 1, RANK_STATE_RUNNING);
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  w.FinishRank(id, 0);
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
  w.FinishRank(id, 1);
  EXPECT_EQ(w.State(id), JOB_STATE_COMPLETED);
}

// 3 is what the trainer exits with when its loss is not finite; of a script it says nothing.
TEST(ExecJobs, ExitCodesAreTheScriptsOwn) {
  World w(Scripts());
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Script("a", 1, /*max_restarts=*/2));
  for (int i = 0; i < 2; ++i) {
    w.Report(id, RANK_STATE_RUNNING);
    w.Fail(id, 3);
    EXPECT_EQ(w.State(id), JOB_STATE_QUEUED) << i;
    w.PassBackoff();
  }
  w.Report(id, RANK_STATE_RUNNING);
  w.Fail(id, 3);
  EXPECT_EQ(w.State(id), JOB_STATE_FAILED);
  EXPECT_EQ(w.Get(id).restarts(), 2u);
}

TEST(ExecJobs, ACheckpointOfAScriptIsAnEventAndProgress) {
  World w(Scripts());
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Script("a", 1));
  w.Report(id, RANK_STATE_RUNNING);
  RankRecord event{{id, 1, 0}, {}};
  event.record.mutable_checkpoint()->set_step(7);
  event.record.mutable_checkpoint()->set_directory("/scratch/runs/step-7.pt");
  const Outcome out = w.Do(event);
  ASSERT_TRUE(out.status.ok()) << out.status;
  ASSERT_EQ(out.events.size(), 1u);
  EXPECT_EQ(out.events[0].kind(), "checkpoint.reported");
  EXPECT_THAT(out.events[0].message(), HasSubstr("/scratch/runs/step-7.pt"));
  EXPECT_EQ(w.Get(id).progress_step(), 7u);
  EXPECT_EQ(w.Get(id).script_checkpoint().step(), 7u);
  EXPECT_EQ(w.Get(id).script_checkpoint().directory(), "/scratch/runs/step-7.pt");
  EXPECT_TRUE(w.Get(id).checkpoints().empty()) << "nothing of Muster's to resume from, keep or remove";
  // Those of a script that reports one at each step are events once a minute after the first sixteen.
  const auto events_of = [&](uint64_t step) {
    event.record.mutable_checkpoint()->set_step(step);
    return w.Do(event).events.size();
  };
  EXPECT_EQ(events_of(7), 0u) << "known already";
  for (uint64_t step = 8; step < 23; ++step) EXPECT_EQ(events_of(step), 1u) << step;
  EXPECT_EQ(events_of(23), 0u);
  EXPECT_EQ(w.Get(id).script_checkpoint().step(), 23u);
  w.TickAfter(absl::Minutes(1));
  EXPECT_EQ(events_of(24), 1u);
  EXPECT_EQ(events_of(25), 0u);
  event.record.mutable_checkpoint()->set_directory(std::string(2000, 'a'));
  EXPECT_FALSE(w.Do(event).status.ok());
}

TEST(ExecJobs, AnIdleProgramIsAWarning) {
  World w(Scripts());
  w.Do(NodeConnected{Hello("n", 1)});
  const JobId id = w.Submit(Script("a", 1));
  w.Report(id, RANK_STATE_RUNNING);
  RankRecord event{{id, 1, 0}, {}};
  event.record.mutable_idle()->mutable_duration()->set_seconds(1800);
  event.record.mutable_idle()->set_process(4711);
  const Outcome out = w.Do(event);
  ASSERT_TRUE(out.status.ok()) << out.status;
  ASSERT_EQ(out.events.size(), 1u);
  EXPECT_EQ(out.events[0].kind(), "rank.idle");
  EXPECT_THAT(out.events[0].message(), HasSubstr("rank 0 on n"));
  EXPECT_THAT(out.events[0].message(), HasSubstr("for 1800 s"));
  EXPECT_THAT(out.events[0].message(), HasSubstr("py-spy dump --pid 4711"));
  EXPECT_EQ(w.State(id), JOB_STATE_RUNNING);
}

TEST(ExecJobs, RanksThatWaitWhileTheJobReportsAreNoWarning) {
  World w(Scripts());
  w.Do(NodeConnected{Hello("n", 2)});
  const JobId id = w.Submit(Script("a", 2));
  for (const uint32_t rank : {0u, 1u}) w.ReportRank(id, rank, RANK_STATE_RUNNING);
  const auto idle_events = [&](uint32_t rank) {
    RankRecord event{{id, 1, rank}, {}};
    event.record.mutable_idle()->mutable_duration()->set_seconds(60);
    return w.Do(event).events.size();
  };
  RankRecord metrics{{id, 1, 0}, {}};
  metrics.record.mutable_metrics()->set_step(7);
  w.Do(metrics);
  w.clock.Advance(absl::Seconds(59));
  EXPECT_EQ(idle_events(1), 0u);
  w.clock.Advance(absl::Seconds(2));
  EXPECT_EQ(idle_events(1), 1u) << "now the job reports nothing either";
  EXPECT_EQ(idle_events(0), 0u) << "one a minute";
  w.clock.Advance(absl::Minutes(1));
  EXPECT_EQ(idle_events(0), 1u);
}

// Three jobs of a user whose program crashes would otherwise take any node from all others.
TEST(ExecJobs, ProgramsOfOneUserHaveNoNodeDrained) {
  World w(Scripts());
  w.Do(NodeConnected{Hello("n", 1)});
  w.ReportNothing("n", "i1");
  int jobs = 0;
  const auto crash_program_of = [&](const std::string& user, bool then_delete = false) {
    const std::string n = absl::StrCat("crash", ++jobs);
    const JobId id = w.Do(SubmitJob{n, user, Script(n, 1, /*max_restarts=*/0), n}).job;
    ASSERT_EQ(w.State(id), JOB_STATE_STARTING) << w.Get(id).reason();
    NodeObserved event{NodeId("n"), Incarnation(w.core->GetNode(NodeId("n"))->incarnation()), {}};
    ObservedRank& rank = *event.observed.add_ranks();
    rank.mutable_key()->set_job(id.value());
    rank.mutable_key()->set_generation(1);
    rank.set_state(RANK_STATE_EXITED);
    rank.mutable_exit()->set_cause(RankExit::FAILED);
    rank.mutable_exit()->set_signal(11);
    rank.mutable_exit()->set_message("rank 0 was killed by signal 11");
    w.Do(event);
    ASSERT_EQ(w.State(id), JOB_STATE_FAILED);
    if (then_delete) w.Do(DeleteJob{id});
  };
  const auto faulty = [&] { return std::count(w.events.begin(), w.events.end(), "node.faulty"); };
  for (int i = 0; i < 5; ++i) crash_program_of("ann", /*then_delete=*/i % 2 == 0);
  EXPECT_EQ(w.core->GetNode(NodeId("n"))->recent_faults(), 5u);
  crash_program_of("bob");
  EXPECT_EQ(faulty(), 0) << "those of ann count once, also those of jobs that are gone";
  crash_program_of("eve");
  EXPECT_EQ(faulty(), 1) << "programs of three users";
}

TEST(ExecJobs, AStopHasTheGraceOfTheSpec) {
  World w(Scripts());
  w.Do(NodeConnected{Hello("n", 2)});
  JobSpec patient = Script("a", 1);
  patient.mutable_exec()->set_stop_grace_seconds(100);
  const JobId with = w.Submit(patient), without = w.Submit(Script("b", 1));
  std::map<std::string, Stop> stops;
  for (const JobId& id : {with, without}) {
    w.Report(id, RANK_STATE_RUNNING);
    w.Do(PauseJob{id});
  }
  const Desired desired = w.core->DesiredFor(NodeId("n"));
  for (const DesiredRank& rank : desired.ranks()) {
    stops[rank.key().job()] = rank.stop();
  }
  EXPECT_TRUE(stops[with.value()].checkpoint_first());
  EXPECT_EQ(stops[with.value()].deadline().seconds(), stops[without.value()].deadline().seconds() + 100);
}

}  // namespace
}  // namespace muster::core
