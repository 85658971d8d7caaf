// Joining and trust with the real programs and the commands of docs/security.md. TLS is on a loopback address: a
// coordinator that has an authority uses it on every TCP address.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/testing/program.h"
#include "common/file/read_file.h"
#include "common/tls/certificate.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using cli::Program;

class TrustTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Ran init = cluster_.Muster({"coordinator", "init", "--state-dir", folder() + "/c", "--host", "gpu-head"});
    ASSERT_EQ(init.exit_code, 0) << init.err;
    EXPECT_TRUE(absl::StrContains(init.err, "server certificate for gpu-head, ")) << init.err;
    EXPECT_TRUE(absl::StrContains(init.err, "muster coordinator token create --role worker")) << init.err;
  }

  void StartCoordinator(const std::vector<std::string>& more = {}) {
    cluster_.coordinator_flags = {"--listen", "0.0.0.0:0"};
    cluster_.coordinator_flags.insert(cluster_.coordinator_flags.end(), more.begin(), more.end());
    cluster_.StartCoordinator();
    std::ifstream lines(folder() + "/coordinator.out");
    for (std::string line; std::getline(lines, line);) {
      if (absl::StartsWith(line, "listening on 0.0.0.0:")) port_ = line.substr(line.rfind(':'));
    }
    ASSERT_FALSE(port_.empty());
  }

  const std::string& folder() const { return cluster_.folder(); }
  std::string At(const std::string& host) const { return host + port_; }

  std::string MakeToken(const std::string& role, const std::string& user, const std::string& ttl = "1h") {
    const std::string file = absl::StrCat(folder(), "/token-", tokens_++);
    std::vector<std::string> arguments = {"coordinator", "token", "create", "--role", role, "--ttl", ttl, "-o", file};
    if (!user.empty()) arguments.insert(arguments.end(), {"--user", user});
    const Ran ran = cluster_.Muster(arguments);
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    struct stat info {};
    EXPECT_EQ(stat(file.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    return file;
  }
  std::string IdOf(const std::string& file) {
    const std::string token = ReadWhole(file).value_or("");
    return token.substr(token.find('.', 8) + 1, 8);
  }

  // A worker daemon that does not use the coordinator's socket.
  std::unique_ptr<Program> StartWorker(const std::string& name, const std::string& coordinator,
                                       const std::vector<std::string>& more = {}) {
    const std::string bin = folder() + "/bin";
    fs::create_directories(bin);
    for (const char* program : {"worker/shim/muster-step", "worker/trainer/muster-trainer"}) {
      const fs::path link = bin + "/" + fs::path(program).filename().string();
      if (!fs::exists(fs::symlink_status(link))) fs::create_symlink(fs::canonical(program), link);
    }
    std::vector<std::string> words = {fs::canonical("worker/agent/muster-worker"),
                                      "--coordinator",
                                      coordinator,
                                      "--state-dir",
                                      StateOf(name),
                                      "--run-dir",
                                      folder() + "/" + name,
                                      "--bin-dir",
                                      bin};
    words.insert(words.end(), more.begin(), more.end());
    return std::make_unique<Program>(words, Program::Environment{{"HOME", folder()}});
  }
  std::string StateOf(const std::string& name) const { return folder() + "/" + name + "-state"; }
  std::string Certificate(const std::string& name) const {
    return ReadWhole(StateOf(name) + "/trust/node.pem").value_or("");
  }

  static absl::Time EndOf(const std::string& certificate) {
    const absl::StatusOr<tls::Certificate> read = tls::ReadCertificate(certificate);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? read->validity.end : absl::InfinitePast();
  }

  // Over TLS, as a user on another machine.
  Ran From(const std::string& token_file, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--address", At("127.0.0.1"), "--token-file", token_file});
    return cluster_.Muster(arguments);
  }

  void RunAJob(const std::string& token_file, const std::string& name) {
    const Ran submitted = From(token_file, {"submit", "-d", "-o", "name", cluster_.WriteJob({.name = name})});
    ASSERT_EQ(submitted.exit_code, 0) << submitted.err;
    const std::string job(absl::StripAsciiWhitespace(submitted.out));
    EXPECT_TRUE(cluster_.WaitForState(job, "completed"));
    EXPECT_EQ(cluster_.Job(job).value("owner", ""), "ann");
  }

  void ExpectRefusal(const Ran& ran, int code, const std::string& words) {
    EXPECT_EQ(ran.exit_code, code) << ran.err;
    EXPECT_TRUE(absl::StrContains(ran.err, words)) << ran.err;
    EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1) << "one line: " << ran.err;
  }

  Cluster cluster_;
  std::string port_;
  int tokens_ = 0;
};

TEST_F(TrustTest, AWorkerJoinsOnceAndComesBackWithoutTheToken) {
  StartCoordinator();
  const std::string join = MakeToken("worker", ""), ann = MakeToken("submitter", "ann");
  auto worker = StartWorker("w", At("127.0.0.1"), {"--join-token", join});
  EXPECT_TRUE(worker->WaitForErr("joined the coordinator; "));
  EXPECT_TRUE(worker->WaitForErr("in contact with the coordinator"));
  RunAJob(ann, "first");
  struct stat info {};
  ASSERT_EQ(stat((StateOf("w") + "/trust/node.pem").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(fs::exists(StateOf("w") + "/trust/join.key"));
  fs::remove(join);
  worker->Signal(SIGKILL);
  worker->Wait();
  worker = StartWorker("w", At("127.0.0.1"),
                       {"--join-token", join});  // the flag may stay in a unit file after the token is gone
  EXPECT_TRUE(worker->WaitForErr("in contact with the coordinator"));
  worker->Signal(SIGTERM);
  worker->Wait();
  worker = StartWorker("w", At("127.0.0.1"));
  EXPECT_TRUE(worker->WaitForErr("in contact with the coordinator"));
  RunAJob(ann, "second");
  // The certificate that it holds is valid for this node only.
  worker->Signal(SIGTERM);
  worker->Wait();
  std::ofstream(StateOf("w") + "/node_id") << "another\n";
  const cli::Ended other = StartWorker("w", At("127.0.0.1"))->Wait();
  EXPECT_EQ(other.code, 1);
  EXPECT_TRUE(absl::StrContains(other.err, "this node is another")) << other.err;
}

// It is due when a third of its life is left. On a machine that pauses for longer than that it expires; then a longer
// life is tried.
TEST_F(TrustTest, ACertificateIsRenewedBeforeItEnds) {
  for (const std::string life : {"9s", "36s"}) {
    StartCoordinator({"--node-certificate-life", life});
    const std::string ann = MakeToken("submitter", "ann"), name = "w-" + life;
    auto worker = StartWorker(name, At("127.0.0.1"), {"--join-token", MakeToken("worker", "")});
    ASSERT_TRUE(worker->WaitForErr("joined the coordinator; "));
    const std::string first = Certificate(name);
    ASSERT_FALSE(first.empty());
    // False: it has expired, and is the newest.
    const auto is_renewed = [&](const std::string& old) {
      return Eventually([&] { return Certificate(name) != old || absl::Now() > EndOf(old); }, absl::Minutes(2)) &&
             Certificate(name) != old;
    };
    bool back = is_renewed(first) && is_renewed(Certificate(name));
    if (back) {
      EXPECT_TRUE(worker->WaitForErr("node certificate renewed"));
      ASSERT_TRUE(Eventually([&] { return absl::Now() > EndOf(first); }, absl::Minutes(2)));
      cluster_.KillCoordinator();
      cluster_.coordinator_flags[1] = At("0.0.0.0");
      cluster_.StartCoordinator();
      // The next connection presents the newest one: the first is refused by now.
      back = Eventually([&] {
        const auto nodes = cluster_.MusterJson({"nodes"});
        return std::any_of(nodes.begin(), nodes.end(), [](const auto& node) { return node["state"] == "live"; });
      });
    }
    if (back) return RunAJob(ann, "later");
    EXPECT_GT(absl::Now(), EndOf(Certificate(name))) << "it is valid, and refused";
    worker->Signal(SIGKILL);
    worker->Wait();
    cluster_.KillCoordinator();
  }
  FAIL() << "it was not renewed in time";
}

TEST_F(TrustTest, ARevokedNodeIsOut) {
  StartCoordinator();
  auto worker = StartWorker("w", At("127.0.0.1"), {"--join-token", MakeToken("worker", "")});
  ASSERT_TRUE(worker->WaitForErr("in contact with the coordinator"));
  const std::string node(absl::StripAsciiWhitespace(cluster_.Muster({"nodes", "-o", "name"}).out));
  EXPECT_EQ(cluster_.Muster({"coordinator", "revoke", node}).exit_code, 0);
  EXPECT_TRUE(worker->WaitForErr("the certificate of this node was revoked"));
  EXPECT_EQ(cluster_.Muster({"coordinator", "revoke", "no-such-node"}).exit_code, 2);
}

TEST_F(TrustTest, WorkersSayWhyTheyMayNotJoin) {
  StartCoordinator();
  const auto refused = [&](const std::string& coordinator, const std::vector<std::string>& more) {
    const cli::Ended ended = StartWorker("w", coordinator, more)->Wait();
    EXPECT_EQ(ended.code, 1) << ended.err;
    return ended.err;
  };
  EXPECT_TRUE(absl::StrContains(refused("10.255.255.1:7070", {"--host", "127.0.0.1"}), "join with --join-token"));
  EXPECT_TRUE(absl::StrContains(refused(At("127.0.0.1"), {"--join-token", MakeToken("viewer", "vera")}),
                                "it needs a join token"));
  EXPECT_TRUE(absl::StrContains(refused(At("127.0.0.1"), {"--join-token", folder() + "/nofile"}), "--join-token: "));
  const std::string file = folder() + "/cut";
  std::ofstream(file) << "muster1.abc\n";
  EXPECT_TRUE(absl::StrContains(refused(At("127.0.0.1"), {"--join-token", file}), "perhaps because it was cut off"));
  EXPECT_TRUE(
      absl::StrContains(refused(At("127.0.0.2"), {"--join-token", MakeToken("worker", "")}), "is for gpu-head"));
  const std::string brief = MakeToken("worker", "", "1s");
  ASSERT_TRUE(Eventually(
      [&] {
        return absl::StrContains(cluster_.Muster({"coordinator", "token", "ls"}).out, "expired");
      },
      absl::Seconds(20)));
  EXPECT_TRUE(absl::StrContains(refused(At("127.0.0.1"), {"--join-token", brief}), "expired on"));
  // A worker waits for a coordinator that does not run yet.
  auto early = StartWorker("early", "127.0.0.1:1", {"--join-token", MakeToken("worker", "")});
  EXPECT_TRUE(early->WaitForErr("cannot join yet"));
  early->Signal(SIGTERM);
  EXPECT_EQ(early->Wait().code, 1);
}

TEST_F(TrustTest, ErrorsSayWhatIsWrong) {
  StartCoordinator();
  const std::string vera = MakeToken("viewer", "vera"), ann = MakeToken("submitter", "ann");
  const std::string ca = folder() + "/c/trust/ca.crt";
  EXPECT_EQ(From(vera, {"nodes"}).exit_code, 0);
  EXPECT_EQ(From(vera, {"ps", "--ca", ca}).exit_code, 0);
  EXPECT_EQ(cluster_
                .Shell(absl::StrCat("unset MUSTER_ADDRESS; MUSTER_COORDINATOR=", At("localhost"), " MUSTER_CA=", ca,
                                    " MUSTER_TOKEN=$(cat ", ann, ") muster ps"),
                       folder())
                .exit_code,
            0);
  const std::string job = cluster_.WriteJob({.name = "a"});
  ExpectRefusal(From(vera, {"submit", "-d", job}), 4, "it needs the role submitter or admin");
  ExpectRefusal(From(ann, {"coordinator", "token", "ls"}), 4, "it needs the role admin");
  ExpectRefusal(From(MakeToken("worker", ""), {"ps"}), 4, "this one is for joining workers");

  const auto at = [&](const std::string& host, std::vector<std::string> more) {
    more.insert(more.begin(), {"ps", "--address", host});
    return cluster_.Muster(more);
  };
  ExpectRefusal(at(At("127.0.0.1"), {}), 3, "speaks TLS");
  const auto worker = StartWorker("without-a-token", At("127.0.0.1"));
  EXPECT_TRUE(worker->WaitForErr(" speaks TLS: join with --join-token"));
  worker->Signal(SIGTERM);
  worker->Wait();
  ExpectRefusal(at(At("127.0.0.1"), {"--ca", ca}), 4, "needs a token");
  ExpectRefusal(at(At("127.0.0.2"), {"--token-file", vera}), 4, "certificate of the coordinator at 127.0.0.2");
  ExpectRefusal(at(At("127.0.0.2"), {"--token-file", vera, "--ca", ca}), 4, "is for gpu-head");
  ExpectRefusal(at("10.255.255.1:7070", {}), 2, "10.255.255.1:7070 is another machine: connections to it need TLS");
  ExpectRefusal(at("127.0.0.1:1", {"--token-file", vera}), 3, "no server answers");
  // Another coordinator's authority, and its token.
  ASSERT_EQ(cluster_.Muster({"coordinator", "init", "--state-dir", folder() + "/other"}).exit_code, 0);
  ExpectRefusal(at(At("127.0.0.1"), {"--token-file", vera, "--ca", folder() + "/other/trust/ca.crt"}), 4,
                "not signed by the authority in use");
  const std::string foreign = folder() + "/foreign";
  std::ofstream(foreign) << "muster1." << std::string(64, 'a') << "." << IdOf(vera) << "." << std::string(32, 'b');
  ExpectRefusal(at(At("127.0.0.1"), {"--token-file", foreign}), 4, "not the one that made this token");
  ASSERT_EQ(cluster_.Muster({"coordinator", "token", "revoke", IdOf(vera)}).exit_code, 0);
  ExpectRefusal(From(vera, {"ps"}), 4, "was revoked");
}

}  // namespace
}  // namespace muster::cluster
