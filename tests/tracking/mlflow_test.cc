// A coordinator's jobs in a real MLflow server on loopback: over a server that is killed, a coordinator that is killed,
// and names that are not nice.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/process/spawn.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"
#include "tests/tracking/trackers_test.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(5);  // the server's imports alone take seconds on a busy machine
constexpr char kNote[] = "<script>alert(1)</script> ' OR 1=1 -- \"; DROP TABLE runs";

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

class MlflowServer {
 public:
  explicit MlflowServer(std::string folder) : folder_(std::move(folder)), port_(FreePort()) {
    fs::create_directories(folder_);
  }
  ~MlflowServer() { Kill(); }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }

  void Start() {
    // gunicorn: the other server imports pandas. Without the processes of what is not used here.
    std::vector<std::string> environment = OwnEnvironment();
    environment.insert(environment.end(), {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false", "MLFLOW_DISABLE_TELEMETRY=true",
                                           "HOME=" + folder_, "PYTHONDONTWRITEBYTECODE=1"});
    const std::string line =
        absl::StrCat("exec ", TrackersPython(), " -m mlflow server --host 127.0.0.1 --port ", port_,
                     " --workers 1 --gunicorn-opts --log-level=warning --backend-store-uri sqlite:///", folder_,
                     "/mlflow.db --default-artifact-root ", folder_, "/artifacts > ", folder_, "/log 2>&1");
    const absl::StatusOr<pid_t> pid =
        Spawn({.arguments = {"/bin/bash", "-c", line}, .environment = environment, .leads = Program::Leads::kSession});
    ASSERT_TRUE(pid.ok()) << pid.status();
    pid_ = *pid;
  }
  bool Answers() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool answers = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    return answers;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  std::string Log() const {
    std::ifstream in(folder_ + "/log");
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  const std::string folder_;
  const int port_;
  pid_t pid_ = -1;
};

class MlflowTest : public ::testing::Test {
 protected:
  MlflowTest() : mlflow_(cluster_.folder() + "/mlflow") {
    config_ = cluster_.folder() + "/tracking.yaml";
    std::ofstream(config_) << "tracking:\n- name: mlflow\n  mlflow: {url: \"" << mlflow_.url()
                           << "\"}\n  experiment: \"muster/{project}/{name}\"\n- name: others\n  mlflow: {url: \""
                           << mlflow_.url() << "\"}\n  experiment: others\n  users: [no-one-of-this-name]\n";
    chmod(config_.c_str(), 0600);
    cluster_.coordinator_flags = {"--tracking", config_};
    cluster_.worker_flags = {"--exec-jobs", "on"};
    script_ = cluster_.folder() + "/script";
    // Fails once at $1, and then begins again at its last checkpoint. Ends at $2.
    std::ofstream(script_) << R"(#!/bin/bash
step=0
[ -e "$3" ] && step=$(cat "$3")
while [ $step -lt $2 ]; do
  step=$((step + 1))
  printf '{"step": %d, "loss": %s, "eval/f1": 0.%03d, "../up": 1e300, "a//b": %d}\n' $step \
    $([ $step = 7 ] && echo '"nan"' || echo "$((1000 / step)).25") $step $step >> "$MUSTER_REPORT_FILE"
  if [ $((step % 20)) = 0 ]; then
    echo $step > "$3"
    echo "{\"checkpoint\": \"runs/step-$step.pt\", \"step\": $step}" >> "$MUSTER_REPORT_FILE"
  fi
  [ $step = $1 ] && [ ! -e "$3.failed" ] && touch "$3.failed" && exit 3
  sleep 0.06
done
)";
    chmod(script_.c_str(), 0755);
  }

  std::string SubmitScript(const std::string& name, int fail_at, int steps) {
    const std::string file = absl::StrCat(cluster_.folder(), "/", name, ".yaml");
    std::ofstream(file) << "apiVersion: muster/v1\nkind: Job\nname: " << name << "\nworkload: exec\ncommand: ["
                        << script_ << ", \"" << fail_at << "\", \"" << steps << "\", " << cluster_.folder() << "/at-"
                        << name << "]\nworkdir: " << cluster_.folder()
                        << "\nresources: {ranks: 1}\nenv: [{name: TOKEN, value: secret value}]\n"
                        << "labels: {team: nlp, a//b: \"x=y 'z'\"}\n";
    const Ran ran = cluster_.Muster({"submit", "-d", file, "-o", "name"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return ran.out.substr(0, ran.out.find('\n'));
  }

  // What is different, as the command line sees the job now.
  std::string Differences(const std::string& id, const std::string& name, const std::string& state, size_t at_least,
                          const nlohmann::json& tags) {
    const std::string facts = cluster_.folder() + "/facts.json";
    std::ofstream(facts) << nlohmann::json({{"job", cluster_.Job(id)},
                                            {"metrics", cluster_.MusterJson({"metrics", id})},
                                            {"state", state},
                                            {"at_least", at_least},
                                            {"tags", tags}});
    const Ran ran =
        cluster_.Shell(absl::StrCat("/usr/bin/python3 ", fs::canonical("tests/tracking/check_mlflow.py").string(), " ",
                                    mlflow_.url(), " muster/default/", name, " ", facts),
                       cluster_.folder());
    return ran.exit_code == 0 ? "" : ran.out + ran.err;
  }
  bool AreEqual(const std::string& id, const std::string& name, const std::string& state, size_t at_least,
                const nlohmann::json& tags, std::string& last) {
    return Eventually([&] { return (last = Differences(id, name, state, at_least, tags)).empty(); }, kPatience);
  }
  void AwaitServer() {
    ASSERT_TRUE(Eventually([&] { return mlflow_.Answers(); }, kPatience)) << mlflow_.Log();
  }
  std::string Logged() const {
    std::ifstream in(cluster_.folder() + "/coordinator.log");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  Cluster cluster_;
  MlflowServer mlflow_;
  std::string config_, script_;
};

TEST_F(MlflowTest, EveryPointIsThereOnceOverKillsOfBoth) {
  mlflow_.Start();
  AwaitServer();
  cluster_.StartCoordinator();
  cluster_.StartWorker(0, 2);
  // Steps 141 to 150 of `again` are computed twice.
  const std::string once = SubmitScript("once", 0, 300), again = SubmitScript("again", 150, 300);
  ASSERT_TRUE(cluster_.WaitForStep(once, 60));
  mlflow_.Kill();
  ASSERT_TRUE(cluster_.WaitForStep(once, 120));
  cluster_.KillCoordinator();
  cluster_.StartCoordinator();
  ASSERT_TRUE(cluster_.WaitForStep(once, 160));
  mlflow_.Start();
  AwaitServer();
  // In the middle of what it has to catch up with.
  cluster_.KillCoordinator();
  cluster_.StartCoordinator();
  EXPECT_EQ(cluster_.Muster({"note", once, kNote}).exit_code, 0);
  EXPECT_EQ(cluster_.Muster({"label", once, "best=yes", "team-"}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(once, "completed"));
  ASSERT_TRUE(cluster_.WaitForState(again, "completed"));
  std::string last;
  const nlohmann::json tags = {{"muster.state", "completed"},
                               {"mlflow.note.content", kNote},
                               {"muster.label.best", "yes"},
                               {"muster.label.team", nullptr},
                               {"muster.checkpoint", cluster_.folder() + "/runs/step-300.pt"},
                               {"muster.checkpoint_step", "300"}};
  EXPECT_TRUE(AreEqual(once, "once", "FINISHED", 300 * 4, tags, last)) << last << Logged();
  EXPECT_TRUE(AreEqual(again, "again", "FINISHED", 310 * 4,
                       {{"muster.state", "completed"}, {"muster.restarts", "1"}, {"muster.label.team", "nlp"}}, last))
      << last << Logged();
  // The other destination wants none of these jobs.
  const Ran others = cluster_.Shell(
      absl::StrCat("curl -s '", mlflow_.url(), "/api/2.0/mlflow/experiments/get-by-name?experiment_name=others'"),
      cluster_.folder());
  EXPECT_THAT(others.out, HasSubstr("RESOURCE_DOES_NOT_EXIST"));
  // Nor does a later start send anything again before what is new.
  cluster_.KillCoordinator();
  cluster_.StartCoordinator();
  const std::string third = SubmitScript("third", 0, 20);
  ASSERT_TRUE(cluster_.WaitForState(third, "completed"));
  EXPECT_TRUE(AreEqual(third, "third", "FINISHED", 20 * 4, {{"muster.state", "completed"}}, last)) << last << Logged();
  EXPECT_EQ(Differences(once, "once", "FINISHED", 300 * 4, tags), "");
}

}  // namespace
}  // namespace muster::cluster
