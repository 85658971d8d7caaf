// The rendezvous of several ranks on several nodes, with real daemons; the trainers only do the rendezvous
// (worker/agent/fake_trainer).
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/rpc.h"
#include "proto/workers_service.grpc.pb.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

using nlohmann::json;

// Two nodes of two slots, and a job of four ranks. The last rank joins when Go is called.
class RendezvousTest : public testing::Test {
 protected:
  RendezvousTest() {
    // The cluster finds leftover processes by this name.
    std::filesystem::create_symlink(std::filesystem::canonical("worker/agent/fake_trainer"),
                                    bin_.path() + "/muster-trainer");
    cluster_.worker_flags = {"--trainer", bin_.path() + "/muster-trainer"};
  }

  void Start() {
    cluster_.StartCoordinator();
    for (const int node : {0, 1}) cluster_.StartWorker(node, 2);
    ASSERT_TRUE(Eventually([&] { return cluster_.MusterJson({"nodes"}).size() == 2; }, absl::Seconds(30)));
  }

  std::string Submit(int restarts) {
    const std::string path = cluster_.folder() + "/gather.yaml";
    std::ofstream(path) << absl::StrCat(
        "apiVersion: muster/v1\nkind: Job\nname: gather\nmodel: {family: gpt2, size: tiny}\ndata: {tokens: train.bin}\n"
        "strategy: {kind: ddp}\nresources: {ranks: 4}\nbatch: {sequences: 4}\nsteps: 1\ncheckpoint: {path: ",
        cluster_.CheckpointPath("gather"), "}\nmax_restarts: ", restarts, "\n");
    const Ran ran = cluster_.Muster({"submit", "-d", "-o", "name", path});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return std::string(absl::StripAsciiWhitespace(ran.out));
  }

  // Waits until that many ranks have set their key and wait.
  void WaitUntilWaiting(const std::string& id, size_t ranks) {
    EXPECT_TRUE(Eventually(
        [&] {
          size_t waiting = 0;
          for (size_t rank = 0; rank < 4; ++rank) {
            const Ran logs = cluster_.Muster({"logs", id, "--rank", absl::StrCat(rank)});
            waiting += absl::StrContains(logs.out, "waiting") ? 1 : 0;
          }
          return waiting == ranks;
        },
        absl::Seconds(60)));
  }

  void Go() { std::ofstream(cluster_.CheckpointPath("gather") + ".go"); }

  const TemporaryFolder bin_;
  Cluster cluster_;
};

TEST_F(RendezvousTest, CompletesThoughTheCoordinatorIsKilledInItsMiddle) {
  Start();
  const std::string id = Submit(/*restarts=*/0);
  WaitUntilWaiting(id, 3);
  // It forgets three keys and nine waits; the last key is set while the coordinator is down.
  cluster_.KillCoordinator();
  Go();
  cluster_.StartCoordinator();
  EXPECT_TRUE(cluster_.WaitForState(id, "completed"));
  for (int rank = 0; rank < 4; ++rank) {
    const Ran logs = cluster_.Muster({"logs", id, "--rank", absl::StrCat(rank)});
    EXPECT_TRUE(absl::StrContains(logs.out, "all 4 are here")) << logs.out;
  }
  EXPECT_EQ(cluster_.Job(id).value("restarts", 0), 0);

  // The rendezvous is over: ranks neither set nor request keys any more.
  const auto stub = Workers::NewStub(rpc::Dial(cluster_.address()));
  grpc::ClientContext set_context, get_context;
  RendezvousSetRequest set;
  set.mutable_key()->set_job(id);
  set.mutable_key()->set_generation(1);
  set.set_name("late");
  RendezvousSetReply set_reply;
  EXPECT_EQ(stub->RendezvousSet(&set_context, set, &set_reply).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  RendezvousGetRequest get;
  *get.mutable_key() = set.key();
  get.set_name("rank-0");
  RendezvousGetReply get_reply;
  EXPECT_EQ(stub->RendezvousGet(&get_context, get, &get_reply).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(RendezvousTest, ARankThatNeverComesEndsTheGenerationAndIsNamed) {
  cluster_.coordinator_flags = {"--start-deadline=6s"};
  Start();
  const std::string id = Submit(/*restarts=*/0);
  ASSERT_TRUE(cluster_.WaitForState(id, "failed"));
  const json failure = cluster_.Job(id)["failure"];
  EXPECT_EQ(failure["rank"].dump(), "3") << failure.dump();
  const std::string message = failure["exit"].value("message", "");
  EXPECT_TRUE(absl::StrContains(message, "did not arrive at the rendezvous within 6s: rank 3 on ")) << failure.dump();
  EXPECT_TRUE(absl::StrContains(message, failure.value("node", "?"))) << failure.dump();
}

}  // namespace
}  // namespace muster::cluster
