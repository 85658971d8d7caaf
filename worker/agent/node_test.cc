// What a node is and has, how a trainer is started on it, and what is kept.
#include "worker/agent/node.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "testing/temporary_folder.h"
#include "worker/agent/command_line.h"
#include "worker/agent/prune.h"
#include "worker/agent/token.h"

namespace muster::agent {
namespace {

TEST(MakeSlots, SharesOfCoresAndMemory) {
  const Machine machine{10, 1000, "cpu"};
  const std::vector<Slot> slots = MakeSlots(machine, {}, 4);
  ASSERT_EQ(slots.size(), 4u);
  EXPECT_EQ(slots[3].index(), 3u);
  EXPECT_EQ(slots[3].cores(), 2u);
  EXPECT_EQ(slots[3].memory_bytes(), 250u);
  EXPECT_EQ(slots[3].device(), DEVICE_CPU);
  EXPECT_EQ(MakeSlots(machine, {}, 100)[99].cores(), 1u) << "never none";
}

TEST(MakeSlots, OnePerGpu) {
  const std::vector<Gpu> gpus = {{"GPU-a", "NVIDIA H200", 5}, {"GPU-b", "NVIDIA H200", 6}};
  const std::vector<Slot> slots = MakeSlots({16, 1000, "cpu"}, gpus, 7);
  ASSERT_EQ(slots.size(), 2u);
  EXPECT_EQ(slots[1].device(), DEVICE_CUDA);
  EXPECT_EQ(slots[1].device_uuid(), "GPU-b");
  EXPECT_EQ(slots[1].memory_bytes(), 6u);
  EXPECT_EQ(slots[1].cores(), 8u);
}

TEST(ReadMachine, FindsThisOne) {
  EXPECT_GE(ReadMachine().cores, 1u);
  EXPECT_GT(ReadMachine().memory_bytes, uint64_t{64} << 20);
  EXPECT_EQ(ReadMachine().instructions.usable, FindInstructions().usable);
}

TEST(CpuOf, SaysWhatTrainersMayUse) {
  Machine machine{10, 1000, "AMD EPYC 9354"};
  machine.instructions = LimitInstructions(InstructionSet::kAvx512Bf16, "AVX2", "");
  const Cpu cpu = CpuOf(machine);
  EXPECT_EQ(cpu.model(), "AMD EPYC 9354");
  EXPECT_EQ(cpu.instruction_set(), "AVX2");
  EXPECT_EQ(cpu.limited_by(), "ONEDNN_MAX_CPU_ISA=AVX2");
}

TEST(IdentifyNode, IdStaysAndIncarnationsDiffer) {
  TemporaryFolder state;
  const Node first = IdentifyNode(state.path()).value();
  const Node second = IdentifyNode(state.path()).value();
  EXPECT_EQ(first.id(), second.id());
  EXPECT_NE(first.incarnation(), second.incarnation());
  EXPECT_EQ(first.boot_id().size(), 36u);
  EXPECT_EQ(first.id()[first.id().size() - 5], '-');
}

TEST(ParseToken, OneTokenOrAWorkersLine) {
  EXPECT_EQ(ParseToken("secret\n").value(), "secret");
  EXPECT_EQ(ParseToken("# of the cluster\nt1 ada admin\n\nt2 node worker\n").value(), "t2");
  EXPECT_EQ(ParseToken("t1 ada admin\n").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseToken("").status().code(), absl::StatusCode::kInvalidArgument);
}

class MakeStartTest : public ::testing::Test {
 protected:
  MakeStartTest() {
    context_.trainer = "/opt/muster-trainer";
    context_.socket = "/run/m/trainer.sock";
    context_.slots = MakeSlots({8, 1000, "cpu"}, {}, 4);
    context_.inherited = {"PATH=/bin", "LD_PRELOAD=/evil.so", "LD_LIBRARY_PATH=/x",
                          "HOME=/h",   "PATHS=/no",           "NCCL_COMM_ID=x"};
    assignment_.set_world(8);
    assignment_.add_slots(1);
    assignment_.add_slots(2);
  }
  bool Has(const rundir::Start& start, const std::string& variable) {
    return std::count(start.environment.begin(), start.environment.end(), variable) == 1;
  }
  StartContext context_;
  Assignment assignment_;
};

TEST_F(MakeStartTest, ArgumentsAndEnvironment) {
  const rundir::RankDir dir("/run/m", {JobId("a"), 3, 5});
  const rundir::Start start = MakeStart(assignment_, {4, 5}, dir, context_);
  EXPECT_EQ(start.argv,
            (std::vector<std::string>{"/opt/muster-trainer", "run", "--socket", "/run/m/trainer.sock", "--rank-dir",
                                      "/run/m/a/3/5", "--job", "a", "--generation", "3", "--rank", "5"}));
  for (const char* variable :
       {"PATH=/bin", "HOME=/h", "MUSTER_JOB_ID=a", "MUSTER_RANK_DIR=/run/m/a/3/5", "RANK=5", "WORLD_SIZE=8",
        "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "OMP_NUM_THREADS=4", "CUDA_VISIBLE_DEVICES="}) {
    EXPECT_TRUE(Has(start, variable)) << variable;
  }
  for (const std::string& variable : start.environment) {
    EXPECT_FALSE(absl::StartsWith(variable, "LD_") || absl::StartsWith(variable, "NCCL_") ||
                 absl::StartsWith(variable, "PATHS"))
        << variable;
  }
}

TEST_F(MakeStartTest, AnotherUserHasAFolderAndAHomeOfItsOwn) {
  const rundir::RankDir dir("/run/m", {JobId("a"), 3, 5});
  context_.inherited = {"PATH=/bin", "HOME=/root", "USER=root", "TMPDIR=/root/tmp"};
  RankUser user{"ann", {61001, 61001, {44}, 027}, "/home/ann"};
  rundir::Start start = MakeStart(assignment_, {5}, dir, context_, user);
  EXPECT_EQ(start.user, user.ids);
  EXPECT_EQ(start.working_directory, "/run/m/a/3/5/trainer");
  EXPECT_EQ(start.argv[5], "/run/m/a/3/5/trainer");
  for (const char* variable :
       {"PATH=/bin", "HOME=/home/ann", "USER=ann", "LOGNAME=ann", "MUSTER_RANK_DIR=/run/m/a/3/5"}) {
    EXPECT_TRUE(Has(start, variable)) << variable;
  }
  for (const std::string& variable : start.environment) EXPECT_FALSE(absl::StrContains(variable, "root")) << variable;
  user.home.clear();
  start = MakeStart(assignment_, {5}, dir, context_, user);
  EXPECT_TRUE(Has(start, "HOME=/run/m/a/3/5/trainer"));
}

TEST_F(MakeStartTest, PluginRootsOnlyForWhatNeedsThem) {
  context_.plugin_roots = {"/opt/a", "/opt/b"};
  const rundir::RankDir dir("/run/m", {JobId("a"), 3, 5});
  EXPECT_EQ(MakeStart(assignment_, {4, 5}, dir, context_).argv.back(), "5");
  assignment_.mutable_spec()->mutable_train()->mutable_model()->mutable_custom();
  const rundir::Start start = MakeStart(assignment_, {4, 5}, dir, context_);
  EXPECT_EQ(*(start.argv.end() - 2), "--plugin-roots");
  EXPECT_EQ(start.argv.back(), "/opt/a,/opt/b");
}

TEST_F(MakeStartTest, TheTrainerGetsTheRootsOfItsFiles) {
  context_.data_roots = {"/data"};
  context_.checkpoint_roots = {"/checkpoints", "/scratch"};
  const rundir::Start start = MakeStart(assignment_, {5}, rundir::RankDir("/run/m", {JobId("a"), 3, 5}), context_);
  EXPECT_EQ(std::vector<std::string>(start.argv.end() - 4, start.argv.end()),
            (std::vector<std::string>{"--data-roots", "/data", "--checkpoint-roots", "/checkpoints,/scratch"}));
}

// LD_PRELOAD and the like are for the program, not for muster-exec and muster-step.
TEST_F(MakeStartTest, AnExecJobHasMusterExecAndNoVariablesOfItsOwn) {
  context_.exec = "/opt/muster-exec";
  context_.data_roots = context_.checkpoint_roots = {"/data"};
  assignment_.mutable_spec()->mutable_exec()->add_command("python");
  EnvVar& variable = *assignment_.mutable_spec()->add_env();
  variable.set_name("LD_PRELOAD");
  variable.set_value("/lib/x.so");
  assignment_.set_device(DEVICE_CUDA);
  const rundir::Start start = MakeStart(assignment_, {4, 5}, rundir::RankDir("/run/m", {JobId("a"), 3, 5}), context_);
  EXPECT_EQ(start.argv[0], "/opt/muster-exec");
  EXPECT_EQ(start.argv.back(), "5") << "no roots: they cannot hold for a program";
  EXPECT_TRUE(Has(start, "LOCAL_RANK=1"));
  EXPECT_FALSE(Has(start, "LD_PRELOAD=/lib/x.so"));
  EXPECT_FALSE(Has(start, "CUBLAS_WORKSPACE_CONFIG=:4096:8"));
}

TEST_F(MakeStartTest, AnImageNeedsTheCommandThatRunsIt) {
  context_.exec = "/opt/muster-exec";
  context_.container_command = {"/usr/bin/podman", "run", "--volume=/a b:/a b", "{image}"};
  assignment_.mutable_spec()->mutable_exec()->add_command("python");
  const rundir::RankDir dir("/run/m", {JobId("a"), 3, 5});
  EXPECT_EQ(MakeStart(assignment_, {5}, dir, context_).argv.back(), "5");
  assignment_.mutable_spec()->mutable_exec()->set_image("python:3.12");
  const rundir::Start start = MakeStart(assignment_, {5}, dir, context_);
  EXPECT_EQ(std::vector<std::string>(start.argv.end() - 4, start.argv.end()),
            (std::vector<std::string>{"--container-word=/usr/bin/podman", "--container-word=run",
                                      "--container-word=--volume=/a b:/a b", "--container-word={image}"}));
}

TEST_F(MakeStartTest, GpusOfItsSlotsAndNoOthers) {
  context_.slots = MakeSlots({8, 1000, "cpu"}, {{"GPU-a", "", 1}, {"GPU-b", "", 1}, {"GPU-c", "", 1}}, 1);
  const rundir::Start start = MakeStart(assignment_, {0}, rundir::RankDir("/r", {JobId("a"), 1, 0}), context_);
  EXPECT_TRUE(Has(start, "CUDA_VISIBLE_DEVICES=GPU-b,GPU-c"));
  // A script takes cuda:LOCAL_RANK of those of its job's ranks on the node.
  context_.local_slots = {2, 0, 1};
  assignment_.mutable_spec()->mutable_exec()->add_command("python");
  EXPECT_TRUE(Has(MakeStart(assignment_, {0}, rundir::RankDir("/r", {JobId("a"), 1, 0}), context_),
                  "CUDA_VISIBLE_DEVICES=GPU-c,GPU-a,GPU-b"));
}

TEST(LibraryVariables, JobThenNodeThenWhatFollows) {
  using Variables = std::map<std::string, std::string>;
  struct Case {
    std::string what;
    Device device;
    std::optional<bool> deterministic;
    std::string interface;
    Variables node, job, expected;
  };
  const Case cases[] = {
      {"nothing is set", DEVICE_CPU, true, "eth0", {}, {}, {}},
      {"CPU ranks get what is set, nothing derived",
       DEVICE_CPU,
       true,
       "eth0",
       {{"NCCL_DEBUG", "WARN"}},
       {{"GLOO_SOCKET_IFNAME", "eth1"}},
       {{"NCCL_DEBUG", "WARN"}, {"GLOO_SOCKET_IFNAME", "eth1"}}},
      {"derived",
       DEVICE_CUDA,
       true,
       "eth0",
       {},
       {},
       {{"NCCL_SOCKET_IFNAME", "=eth0"}, {"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}}},
      {"a job of an older coordinator is deterministic",
       DEVICE_CUDA,
       std::nullopt,
       "",
       {},
       {},
       {{"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}}},
      {"not deterministic, interface unknown", DEVICE_CUDA, false, "", {}, {}, {}},
      {"the node wins over what is derived",
       DEVICE_CUDA,
       false,
       "eth0",
       {{"NCCL_SOCKET_IFNAME", "ib"}},
       {},
       {{"NCCL_SOCKET_IFNAME", "ib"}}},
      {"the job wins over the node",
       DEVICE_CUDA,
       false,
       "eth0",
       {{"NCCL_SOCKET_IFNAME", "ib"}, {"NCCL_DEBUG", "WARN"}},
       {{"NCCL_SOCKET_IFNAME", "^docker"}, {"NCCL_ALGO", "Ring"}},
       {{"NCCL_SOCKET_IFNAME", "^docker"}, {"NCCL_DEBUG", "WARN"}, {"NCCL_ALGO", "Ring"}}},
      {"equal bits on unlike nodes", DEVICE_CPU, true, "", {}, {{"MKL_CBWR", "AVX2"}}, {{"MKL_CBWR", "AVX2"}}},
      {"the job wins over what is derived",
       DEVICE_CUDA,
       false,
       "eth0",
       {},
       {{"NCCL_SOCKET_IFNAME", "eth2"}},
       {{"NCCL_SOCKET_IFNAME", "eth2"}}},
  };
  for (const Case& c : cases) {
    Assignment assignment;
    assignment.set_device(c.device);
    if (c.deterministic.has_value()) assignment.mutable_spec()->mutable_train()->set_deterministic(*c.deterministic);
    for (const auto& [name, value] : c.job) {
      EnvVar& variable = *assignment.mutable_spec()->add_env();
      variable.set_name(name);
      variable.set_value(value);
    }
    StartContext context;
    context.variables = c.node;
    context.interface = c.interface;
    context.mkl_code_path = "AVX512";
    Variables expected = c.expected;
    expected.emplace("MKL_CBWR", "AVX512");  // of the node, unless the case says otherwise
    EXPECT_EQ(LibraryVariables(assignment, context), expected) << c.what;
  }
}

TEST_F(MakeStartTest, VariablesOfJobAndNodeButNotOfTheShell) {
  context_.inherited.push_back("NCCL_DEBUG=TRACE");
  context_.variables = {{"NCCL_IB_DISABLE", "1"}};
  context_.interface = "eth0";
  assignment_.set_device(DEVICE_CUDA);
  EnvVar& variable = *assignment_.mutable_spec()->add_env();
  variable.set_name("NCCL_DEBUG");
  variable.set_value("INFO");
  const rundir::Start start = MakeStart(assignment_, {0}, rundir::RankDir("/r", {JobId("a"), 1, 0}), context_);
  for (const char* set : {"NCCL_DEBUG=INFO", "NCCL_IB_DISABLE=1", "NCCL_SOCKET_IFNAME==eth0"}) {
    EXPECT_TRUE(Has(start, set)) << set;
  }
  EXPECT_FALSE(Has(start, "NCCL_DEBUG=TRACE"));
  EXPECT_FALSE(Has(start, "NCCL_COMM_ID=x"));
}

TEST(ChoosePruned, OldestFirstUntilBothLimitsHold) {
  const auto at = [](int64_t seconds) { return absl::FromUnixSeconds(seconds); };
  const std::vector<DoneFolder> folders = {{"c", 10, at(3)}, {"a", 10, at(1)}, {"b", 10, at(2)}};
  using Paths = std::vector<std::string>;
  EXPECT_EQ(ChoosePruned(folders, {3, 30}), Paths{});
  EXPECT_EQ(ChoosePruned(folders, {2, 30}), (Paths{"a"}));
  EXPECT_EQ(ChoosePruned(folders, {3, 15}), (Paths{"a", "b"}));
  EXPECT_EQ(ChoosePruned(folders, {3, 5}), (Paths{"a", "b", "c"}));
}

// As Pruner does it.
void PruneDone(const std::string& run, const PruneLimits& limits) {
  for (const std::string& path : ChooseDone(run, limits)) {
    const absl::StatusOr<rundir::RankDir> dir = rundir::RankDir::FromPath(path);
    ASSERT_TRUE(dir.ok()) << dir.status();
    EXPECT_EQ(dir->MoveAway(), absl::OkStatus());
  }
  EXPECT_EQ(rundir::RankDir::RemoveGone(run), absl::OkStatus());
}

TEST(PruneDone, NeverRemovesWhatIsNotDone) {
  TemporaryFolder run;
  const rundir::RankDir live(run.path(), {JobId("live"), 1, 0});
  const rundir::RankDir done(run.path(), {JobId("done"), 1, 0});
  ASSERT_TRUE(live.Create({}).ok());
  ASSERT_TRUE(done.Create({}).ok());
  ASSERT_TRUE(done.MarkDone().ok());
  PruneDone(run.path(), {0, 0});
  EXPECT_TRUE(std::filesystem::exists(live.path()));
  EXPECT_FALSE(std::filesystem::exists(run.path() + "/done"));
}

// Whatever it holds, what is being removed is no rank's folder.
TEST(PruneDone, WhatWasMovedAwayIsNoRank) {
  const TemporaryFolder run;
  const rundir::RankDir done(run.path(), {JobId("done"), 1, 0});
  ASSERT_TRUE(done.Create({}).ok());
  std::filesystem::create_directories(done.path() + "/1/0");
  ASSERT_TRUE(done.MoveAway().ok());
  EXPECT_TRUE(std::filesystem::exists(run.path() + "/.gone-1/1/0"));
  EXPECT_FALSE(std::filesystem::exists(run.path() + "/done"));
  EXPECT_TRUE(rundir::RankDir::List(run.path()).empty());
  ASSERT_TRUE(done.Create({}).ok());
  ASSERT_TRUE(done.MoveAway().ok()) << "beside what is left";
  EXPECT_EQ(rundir::RankDir::RemoveGone(run.path()), absl::OkStatus());
  EXPECT_TRUE(std::filesystem::is_empty(run.path()));
}

// Ranks write most of what they leave into subfolders.
TEST(PruneDone, CountsSubfoldersAndFollowsNoLink) {
  const TemporaryFolder run, outside;
  const std::string large(1 << 20, 'x');
  outside.Write("deep/file", large);
  const rundir::RankDir older(run.path(), {JobId("a"), 1, 0}), newer(run.path(), {JobId("b"), 1, 0});
  for (const rundir::RankDir* dir : {&older, &newer}) ASSERT_TRUE(dir->Create({}).ok());
  run.Write("a/1/0/trainer/deep/file", large);
  std::filesystem::create_directory(newer.path() + "/trainer");
  std::filesystem::create_directory_symlink(outside.path(), newer.path() + "/trainer/outside");
  std::filesystem::create_symlink("gone", newer.path() + "/trainer/dangling");
  for (const rundir::RankDir* dir : {&older, &newer}) ASSERT_TRUE(dir->MarkDone().ok());
  PruneDone(run.path(), {256, 3 << 20});
  EXPECT_TRUE(std::filesystem::exists(older.path())) << "both are small enough";
  for (int i = 0; i < 2; ++i) {  // again, by the size that was kept
    PruneDone(run.path(), {256, 512 << 10});
    EXPECT_FALSE(std::filesystem::exists(older.path()));
    EXPECT_TRUE(std::filesystem::exists(newer.path())) << "what a link leads to is not its own";
  }
  EXPECT_TRUE(std::filesystem::exists(outside.path() + "/deep/file"));
}

}  // namespace
}  // namespace muster::agent
