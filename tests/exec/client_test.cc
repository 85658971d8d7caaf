// The Python client from its wheel, against a coordinator with TLS beside its socket.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;

TEST(PythonClient, DoesWhatTheCommandLineDoes) {
  const char* python = std::getenv("MUSTER_PEER_PYTHON");
  ASSERT_NE(python, nullptr) << "run ./test.sh, which sets MUSTER_PEER_PYTHON";
  Cluster cluster;
  const std::string& folder = cluster.folder();
  const Ran init = cluster.Muster({"coordinator", "init", "--state-dir", folder + "/c", "--host", "gpu-head"});
  ASSERT_EQ(init.exit_code, 0) << init.err;
  cluster.coordinator_flags = {"--listen", "127.0.0.1:0"};
  cluster.worker_flags = {"--exec-jobs", "on"};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  std::string address;
  std::ifstream lines(folder + "/coordinator.out");
  for (std::string line; std::getline(lines, line);) {
    if (absl::StartsWith(line, "listening on 127.0.0.1:")) address = line.substr(line.rfind(' ') + 1);
  }
  ASSERT_NE(address, "");
  const std::string token = folder + "/token";
  const Ran made =
      cluster.Muster({"coordinator", "token", "create", "--role", "submitter", "--user", "ann", "-o", token});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::string packages = fs::path(python).parent_path().parent_path().string() + "/scripts";
  const Ran ran = cluster.Shell(
      absl::StrCat("PYTHONPATH=", packages, " ", python, " ", fs::canonical("sdk/python/client_test.py").string(), " ",
                   fs::canonical("sdk/python/muster-0.1.0-py3-none-any.whl").string(), " ", folder, " ", address, " ",
                   token, " ", folder, "/c/trust/ca.crt"),
      folder, absl::Minutes(5));
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
}

// Away for longer than a few attempts, as when its machine restarts. Sleeps of the client are cut short and counted.
TEST(PythonClient, WaitsWhileTheCoordinatorIsAway) {
  const char* python = std::getenv("MUSTER_PEER_PYTHON");
  ASSERT_NE(python, nullptr) << "run ./test.sh, which sets MUSTER_PEER_PYTHON";
  Cluster cluster;
  const std::string& folder = cluster.folder();
  cluster.worker_flags = {"--exec-jobs", "on"};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  std::ofstream(folder + "/wait.py") << R"(
import sys, time
sys.path.insert(0, sys.argv[1])
import muster
real = time.sleep
def sleep(seconds):
    with open("sleeps", "a") as file: file.write("x")
    real(seconds / 10)
time.sleep = sleep
with muster.Client() as client:
    job = client.run(["sh", "-c", "until [ -e end ]; do sleep 0.1; done"], workdir=".")
    print(job["id"], flush=True)
    print(client.wait(job["id"]), flush=True)
)";
  const std::string packages = fs::path(python).parent_path().parent_path().string() + "/scripts";
  const Ran begun = cluster.Shell(absl::StrCat("(PYTHONPATH=", packages, " ", python, " wait.py ",
                                               fs::canonical("sdk/python/muster-0.1.0-py3-none-any.whl").string(),
                                               " > out 2> err; echo $? > code) &"),
                                  folder);
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  const auto text = [&](const std::string& name) {
    std::ifstream in(folder + "/" + name);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  ASSERT_TRUE(Eventually([&] { return absl::EndsWith(text("out"), "\n"); }, absl::Minutes(2))) << text("err");
  const std::string id(absl::StripAsciiWhitespace(text("out")));
  ASSERT_TRUE(cluster.WaitForState(id, "running"));
  cluster.KillCoordinator();
  ASSERT_TRUE(Eventually([&] { return text("sleeps").size() >= 20 || text("code") != ""; }, absl::Minutes(2)));
  ASSERT_EQ(text("code"), "") << text("err");
  cluster.StartCoordinator();
  std::ofstream(folder + "/end") << "now";
  ASSERT_TRUE(Eventually([&] { return absl::EndsWith(text("code"), "\n"); }, absl::Minutes(2))) << text("err");
  EXPECT_EQ(text("code"), "0\n") << text("err");
  EXPECT_EQ(text("out"), id + "\nJOB_STATE_COMPLETED\n");
}

}  // namespace
}  // namespace muster::cluster
