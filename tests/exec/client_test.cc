// The Python client from its wheel, against a coordinator with TLS beside its socket.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

}  // namespace
}  // namespace muster::cluster
