#include "coordinator/spec/resolve_exec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/spec/plan.h"
#include "coordinator/spec/resolve.h"

namespace muster::spec {
namespace {

using ::testing::HasSubstr;

JobSpec GoodProgram() {
  JobSpec spec;
  spec.set_name("train");
  spec.mutable_exec()->add_command("python");
  spec.mutable_exec()->add_command("train.py");
  return spec;
}

// What is wrong with it after `change`: "path: message" lines.
std::string Wrong(const std::function<void(JobSpec&)>& change) {
  JobSpec spec = GoodProgram();
  change(spec);
  std::string text;
  for (const SpecError& e : Resolve({}, spec)) absl::StrAppend(&text, e.path(), ": ", e.message(), "\n");
  return text;
}

TEST(ResolveExec, FillsInDefaultsOnce) {
  JobSpec spec = GoodProgram();
  ASSERT_TRUE(Resolve({}, spec).empty());
  EXPECT_EQ(spec.resources().ranks(), 1u);
  EXPECT_EQ(spec.max_restarts(), 3u);
  ASSERT_EQ(spec.exec().launchers_size(), 1);
  EXPECT_EQ(spec.exec().launchers(0), LAUNCHER_TORCHRUN);
  EXPECT_EQ(spec.exec().stop_grace_seconds(), 0);
  EXPECT_EQ(spec.exec().progress_timeout_seconds(), 1800);
  EXPECT_FALSE(spec.has_train());
  const std::string before = spec.SerializeAsString();
  ASSERT_TRUE(Resolve({}, spec).empty());
  EXPECT_EQ(spec.SerializeAsString(), before);
}

TEST(ResolveExec, EveryMistakeHasItsPath) {
  EXPECT_EQ(Wrong([](JobSpec&) {}), "");
  const auto exec = [](const std::function<void(Exec&)>& change) {
    return Wrong([&](JobSpec& spec) { change(*spec.mutable_exec()); });
  };
  EXPECT_THAT(exec([](Exec& e) { e.clear_command(); }), HasSubstr("command: missing"));
  EXPECT_THAT(exec([](Exec& e) { e.set_command(0, ""); }), HasSubstr("command[0]: is empty"));
  EXPECT_THAT(exec([](Exec& e) { e.set_command(1, std::string("a\0b", 3)); }), HasSubstr("command[1]: holds a zero"));
  EXPECT_THAT(exec([](Exec& e) { e.set_command(1, std::string(70'000, 'a')); }), HasSubstr("at most 65536"));
  EXPECT_THAT(exec([](Exec& e) {
                for (int i = 0; i < 1023; ++i) e.add_command("a");
              }),
              HasSubstr("command: has 1025 entries"));
  EXPECT_THAT(exec([](Exec& e) { e.set_workdir("runs"); }), HasSubstr("workdir: \"runs\" is relative"));
  EXPECT_THAT(exec([](Exec& e) { e.set_workdir("/" + std::string(5000, 'a')); }), HasSubstr("workdir: has 5001 bytes"));
  EXPECT_EQ(exec([](Exec& e) { e.set_image("registry.local:5000/team/train@sha256:0123"); }), "");
  EXPECT_THAT(exec([](Exec& e) { e.set_image("--privileged"); }), HasSubstr("image: \"--privileged\" begins with -"));
  EXPECT_THAT(exec([](Exec& e) { e.set_image("a b"); }), HasSubstr("image: holds a space"));
  EXPECT_THAT(exec([](Exec& e) { e.set_image("a\x1b[2J"); }), HasSubstr("image: holds a space or a character"));
  EXPECT_THAT(exec([](Exec& e) { e.set_image(std::string(513, 'a')); }), HasSubstr("image: has 513 bytes"));
  EXPECT_THAT(exec([](Exec& e) {
                e.add_launchers(LAUNCHER_SLURM);
                e.add_launchers(LAUNCHER_SLURM);
              }),
              HasSubstr("launchers[1]: occurs twice"));
  EXPECT_THAT(exec([](Exec& e) { e.add_launchers(LAUNCHER_UNSPECIFIED); }), HasSubstr("launchers[0]: not a value"));
  EXPECT_THAT(exec([](Exec& e) { e.set_stop_grace_seconds(-1); }), HasSubstr("stop_grace_seconds: must be 0 to 3600"));
  EXPECT_THAT(exec([](Exec& e) { e.set_progress_timeout_seconds(2e6); }), HasSubstr("progress_timeout_seconds: must"));
  EXPECT_THAT(Wrong([](JobSpec& s) { s.mutable_resources()->set_ranks(0); }), HasSubstr("resources.ranks"));
}

TEST(ResolveExec, AnyVariableButThoseOfMuster) {
  const auto with = [](const std::string& name, const std::string& value) {
    return Wrong([&](JobSpec& spec) {
      spec.add_env()->set_name(name);
      spec.mutable_env(0)->set_value(value);
    });
  };
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "HF_HOME", "OMP_NUM_THREADS", "a_b1"}) {
    EXPECT_EQ(with(name, "x"), "") << name;
  }
  EXPECT_EQ(with("EMPTY", ""), "");
  for (const char* name : {"RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "MUSTER_REPORT_FILE", "CUDA_VISIBLE_DEVICES",
                           "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"}) {
    EXPECT_THAT(with(name, "x"), HasSubstr("env[0].name: " + std::string(name) + " is set by Muster")) << name;
  }
  EXPECT_THAT(with("1A", "x"), HasSubstr("is not a name for a variable"));
  EXPECT_THAT(with("A-B", "x"), HasSubstr("is not a name for a variable"));
  EXPECT_THAT(with("A", std::string(5000, 'x')), HasSubstr("env[0].value: has 5000 bytes"));
  EXPECT_THAT(Wrong([](JobSpec& spec) {
                for (int i = 0; i < 2; ++i) spec.add_env()->set_name("A");
              }),
              HasSubstr("env[1].name: A occurs twice"));
}

// A script knows by itself how to go on with other ranks.
TEST(ResolveExec, FewerRanksNeedNoCheckpointPath) {
  EXPECT_EQ(Wrong([](JobSpec& spec) {
              spec.mutable_resources()->set_ranks(4);
              spec.mutable_resources()->set_min_ranks(2);
            }),
            "");
  EXPECT_THAT(Wrong([](JobSpec& spec) { spec.mutable_resources()->set_min_ranks(2); }), HasSubstr("min_ranks"));
}

TEST(ResolveExec, ThePlanIsWhereItsRanksRun) {
  JobSpec spec = GoodProgram();
  spec.mutable_resources()->set_ranks(3);
  ASSERT_TRUE(Resolve({}, spec).empty());
  const auto made = MakePlan(spec, AnySlots(spec, *strategies::FindHardware("cpu")));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->reply.ranks_size(), 3);
  EXPECT_EQ(made->reply.parameters(), 0u);
  EXPECT_EQ(made->planned->roles.size(), 3u);
  EXPECT_EQ(made->planned->table_sha256, "") << "the worker would fetch it";
  EXPECT_EQ(made->reply.schedule_digest(), made->planned->digests.at(0));
}

}  // namespace
}  // namespace muster::spec
