// deploy/docker without a container engine (deploy/docker/try.sh needs one): what its files promise, and the services
// of compose.yaml with their own commands, health checks and volumes, each on a host in a network namespace.
//
// Has its own main: the hosts are made once, before anything else.
#include <gtest/gtest.h>
#include <signal.h>
#include <yaml-cpp/yaml.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/testing/program.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"
#include "tests/cluster/hosts.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::optional<cluster::Hosts>& TheHosts() {
  static auto& hosts = *new std::optional<cluster::Hosts>();
  return hosts;
}

fs::path Root() { return fs::canonical("WORKSPACE").parent_path(); }

std::string Read(const fs::path& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// ---- Dockerfiles ----

struct Instruction {
  std::string word;  // "COPY"
  std::string rest;
};

struct Stage {
  std::string from, name;
  std::vector<Instruction> instructions;
};

// The stages, with the ARGs before the first one put in.
std::vector<Stage> StagesOf(const std::string& dockerfile) {
  std::string text = std::regex_replace(dockerfile, std::regex("(^|\n)#[^\n]*"), "");
  text = absl::StrReplaceAll(text, {{"\\\n", " "}});
  std::map<std::string, std::string> arguments;
  std::vector<Stage> stages;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    const std::pair<std::string, std::string> split = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    if (split.first == "ARG" && stages.empty()) {
      const std::pair<std::string, std::string> argument = absl::StrSplit(split.second, absl::MaxSplits('=', 1));
      arguments[argument.first] = argument.second;
    } else if (split.first == "FROM") {
      std::string from = split.second;
      for (const auto& [name, value] : arguments) from = absl::StrReplaceAll(from, {{"${" + name + "}", value}});
      const std::pair<std::string, std::string> named = absl::StrSplit(from, absl::MaxSplits(" AS ", 1));
      stages.push_back({named.first, named.second, {}});
    } else {
      EXPECT_FALSE(stages.empty()) << line;
      if (!stages.empty()) stages.back().instructions.push_back({split.first, split.second});
    }
  }
  return stages;
}

const std::regex& ByDigest() {
  static const auto& digest = *new std::regex("[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}");
  return digest;
}

class DockerfileTest : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string text_ = Read(Root() / "deploy/docker" / GetParam());
  const std::vector<Stage> stages_ = StagesOf(text_);
};

TEST_P(DockerfileTest, EveryImageIsNamedByItsDigest) {
  EXPECT_GE(stages_.size(), 3u);
  for (const Stage& stage : stages_) {
    EXPECT_TRUE(stage.from == "scratch" || std::regex_match(stage.from, ByDigest())) << stage.from;
  }
}

// LibTorch is fetched in a stage that sees the script that fetches it and the list of hashes, and nothing else;
// packages are installed in one that sees setup.sh. Our sources come after both.
TEST_P(DockerfileTest, AChangeOfOursFetchesNothingAgain) {
  int fetches = 0, installs = 0;
  for (const Stage& stage : stages_) {
    std::set<std::string> seen;
    for (const Instruction& instruction : stage.instructions) {
      if (instruction.word == "COPY" && !absl::StartsWith(instruction.rest, "--from=")) {
        const std::vector<std::string> words = absl::StrSplit(instruction.rest, ' ', absl::SkipEmpty());
        seen.insert(words.begin(), words.end() - 1);
      }
      if (instruction.word != "RUN") continue;
      if (absl::StrContains(instruction.rest, "fetch_torch.sh ")) {
        ++fetches;
        for (const std::string& file : seen) {
          EXPECT_TRUE(file == "tools/fetch_torch.sh" || std::regex_match(file, std::regex("tools/torch\\w*\\.txt")))
              << file;
        }
      }
      if (absl::StrContains(instruction.rest, "setup.sh packages")) {
        ++installs;
        EXPECT_EQ(seen, std::set<std::string>{"tools/setup.sh"});
      }
      // Everything from an index of Python packages comes by fetch_torch.sh, which asks for hashes.
      EXPECT_FALSE(std::regex_search(instruction.rest, std::regex("pip3? +(install|download)|curl|wget")))
          << instruction.rest;
    }
  }
  EXPECT_EQ(fetches, 1);
  EXPECT_EQ(installs, 1);
}

TEST_P(DockerfileTest, TheImageSaysWhatItIsAndRunsAsItsOwnUser) {
  const Stage& last = stages_.back();
  std::string labels, user, version, copied;
  for (const Instruction& instruction : last.instructions) {
    // A new revision makes no layer again.
    if (instruction.word == "RUN" || instruction.word == "COPY") {
      EXPECT_EQ(labels + version, "") << instruction.rest;
    }
    if (instruction.word == "LABEL") labels += instruction.rest;
    if (instruction.word == "USER") user = instruction.rest;
    if (instruction.word == "COPY") absl::StrAppend(&copied, instruction.rest, "\n");
    if (absl::StartsWith(instruction.rest, "VERSION=")) version = instruction.rest.substr(8);
    // LibTorch is a layer of its own below what changes with each build.
    EXPECT_FALSE(absl::StrContains(instruction.rest, "/opt/muster /opt/muster")) << instruction.rest;
  }
  for (const char* label : {"title=", "description=", "version=\"${VERSION}\"", "revision=\"${REVISION}\"",
                            "licenses=\"Apache-2.0\"", "base.name="}) {
    EXPECT_TRUE(absl::StrContains(labels, absl::StrCat("org.opencontainers.image.", label))) << label;
  }
  EXPECT_EQ(user, "muster");
  EXPECT_TRUE(absl::StrContains(Read(Root() / "common/version.h"), absl::StrCat("\"", version, "\";"))) << version;
  EXPECT_LT(copied.find("/opt/muster/site"), copied.find("/opt/muster/bin"));
  // At the top: podman of Debian 12 reads no Dockerfile.dockerignore.
  EXPECT_EQ(Read(Root() / ".dockerignore"), ".git\nbazel-*\nbin/\ndata/\ndist/\nruns/\n");
  EXPECT_FALSE(fs::exists(Root() / "deploy/docker" / absl::StrCat(GetParam(), ".dockerignore")));
}

INSTANTIATE_TEST_SUITE_P(All, DockerfileTest, ::testing::Values("Dockerfile", "Dockerfile.cuda"));

TEST(Wheels, EachHasAHash) {
  for (const char* list : {"torch.txt", "torch_cuda.txt", "torch_cuda_run.txt"}) {
    std::set<std::string> names;
    for (const absl::string_view line : absl::StrSplit(Read(Root() / "tools" / list), '\n', absl::SkipWhitespace())) {
      if (line[0] == '#') continue;
      EXPECT_TRUE(std::regex_match(std::string(line), std::regex("[a-z0-9-]+==\\S+ --hash=sha256:[0-9a-f]{64}")))
          << list << ": " << line;
      names.emplace(line);
    }
    EXPECT_FALSE(names.empty()) << list;
    // What is compiled against is what runs.
    if (std::string(list) != "torch_cuda_run.txt") continue;
    for (const absl::string_view line :
         absl::StrSplit(Read(Root() / "tools/torch_cuda.txt"), '\n', absl::SkipWhitespace())) {
      EXPECT_TRUE(line[0] == '#' || names.contains(std::string(line))) << line;
    }
  }
}

// ---- compose.yaml ----

// With "<<" put in, which yaml-cpp leaves to its readers.
YAML::Node Merged(const YAML::Node& node) {
  if (node.IsSequence()) {
    YAML::Node out(YAML::NodeType::Sequence);
    for (const YAML::Node& item : node) out.push_back(Merged(item));
    return out;
  }
  if (!node.IsMap()) return YAML::Clone(node);
  YAML::Node out(YAML::NodeType::Map);
  for (const auto& field : node) {
    if (field.first.as<std::string>() != "<<") continue;
    for (const auto& inherited : Merged(field.second)) out[inherited.first.as<std::string>()] = inherited.second;
  }
  for (const auto& field : node) {
    if (field.first.as<std::string>() != "<<") out[field.first.as<std::string>()] = Merged(field.second);
  }
  return out;
}

class ComposeTest : public ::testing::Test {
 protected:
  using Strings = std::vector<std::string>;

  // "${NAME:-default}" as `variables_` says.
  std::string Filled(std::string text) const {
    std::smatch found;
    while (std::regex_search(text, found, std::regex("\\$\\{(\\w+):-([^}]*)\\}"))) {
      const auto given = variables_.find(found[1]);
      const std::string value = given == variables_.end() ? found[2].str() : given->second;
      text = found.prefix().str() + value + found.suffix().str();
    }
    return text;
  }
  Strings List(const YAML::Node& node) const {
    Strings list;
    for (const YAML::Node& item : node) list.push_back(Filled(item.as<std::string>()));
    return list;
  }
  YAML::Node Service(const std::string& name) const { return services_[name]; }
  static bool Once(const YAML::Node& service) { return service["restart"].as<std::string>("") == "no"; }
  // "worker-1:/var/lib/muster:ro" as {"worker-1", "/var/lib/muster"}.
  std::vector<std::pair<std::string, std::string>> VolumesOf(const YAML::Node& service) const {
    std::vector<std::pair<std::string, std::string>> volumes;
    for (const std::string& text : List(service["volumes"])) {
      const Strings parts = absl::StrSplit(text, ':');
      volumes.emplace_back(parts[0], parts[1]);
    }
    return volumes;
  }

  std::map<std::string, std::string> variables_;
  const YAML::Node compose_ = Merged(YAML::LoadFile(Root() / "deploy/docker/compose.yaml"));
  const YAML::Node services_ = compose_["services"];
};

TEST_F(ComposeTest, EveryServiceHasLimitsRotatedLogsAndAHealthCheckOfItsOwn) {
  std::set<std::string> names;
  for (const auto& entry : services_) {
    const std::string name = entry.first.as<std::string>();
    const YAML::Node service = entry.second;
    names.insert(name);
    const std::string image = Filled(service["image"].as<std::string>());
    EXPECT_TRUE(image == "muster:cpu" || image == "muster:cuda" || std::regex_match(image, ByDigest())) << image;
    EXPECT_EQ(service["logging"]["driver"].as<std::string>(), "json-file") << name;
    EXPECT_EQ(service["logging"]["options"]["max-size"].as<std::string>(), "10m") << name;
    EXPECT_EQ(service["logging"]["options"]["max-file"].as<std::string>(), "5") << name;
    // docker-compose 1 ignores deploy.resources.limits.
    EXPECT_TRUE(std::regex_match(Filled(service["mem_limit"].as<std::string>()), std::regex("[0-9]+[mg]"))) << name;
    const YAML::Node deploy = service["deploy"];
    EXPECT_FALSE(deploy.IsDefined() && deploy["resources"]["limits"].IsDefined()) << name;
    EXPECT_GT(service["pids_limit"].as<int>(), 0) << name;
    EXPECT_EQ(List(service["cap_drop"]), Strings{"ALL"}) << name;
    EXPECT_EQ(List(service["security_opt"]), Strings{"no-new-privileges:true"}) << name;
    for (const std::string& port : List(service["ports"])) EXPECT_TRUE(absl::StartsWith(port, "127.0.0.1:")) << port;
    if (Once(service)) continue;
    EXPECT_EQ(service["restart"].as<std::string>(), "unless-stopped") << name;
    const Strings check = List(service["healthcheck"]["test"]);
    ASSERT_GE(check.size(), 2u) << name;
    // By the program itself, not by its port.
    const std::string asks = absl::StrContains(name, "worker") ? "muster --timeout 3s worker health"
                             : name == "coordinator"           ? "muster --timeout 3s version"
                             : name == "prometheus"            ? "promtool query instant"
                                                               : "/api/health";
    EXPECT_TRUE(absl::StrContains(absl::StrJoin(check, " "), asks)) << absl::StrJoin(check, " ");
    // State that outlives the container, in a volume that no other service has.
    std::set<std::string> own;
    for (const auto& [volume, path] : VolumesOf(service)) {
      if (compose_["volumes"][volume].IsDefined() && volume != "socket" && volume != "join") own.insert(volume);
    }
    EXPECT_EQ(own, std::set<std::string>{name});
  }
  EXPECT_EQ(names, (std::set<std::string>{"trust", "coordinator", "token", "worker-1", "worker-2", "worker-gpu",
                                          "prometheus", "grafana"}));
}

TEST_F(ComposeTest, TheProjectHasItsNameInEveryCompose) {
  EXPECT_FALSE(compose_["name"].IsDefined()) << "docker-compose 1 refuses the file";
  EXPECT_EQ(Read(Root() / "deploy/docker/.env"), "COMPOSE_PROJECT_NAME=muster\n");
}

TEST_F(ComposeTest, GpusAndMonitoringAreProfiles) {
  std::map<std::string, std::string> profiles;
  for (const auto& entry : services_) {
    profiles[entry.first.as<std::string>()] = absl::StrJoin(List(entry.second["profiles"]), ",");
  }
  EXPECT_EQ(profiles["worker-gpu"], "gpu");
  EXPECT_EQ(profiles["prometheus"], "monitoring");
  EXPECT_EQ(profiles["grafana"], "monitoring");
  for (const char* always : {"trust", "coordinator", "token", "worker-1", "worker-2"}) EXPECT_EQ(profiles[always], "");
  const YAML::Node device = Service("worker-gpu")["deploy"]["resources"]["reservations"]["devices"][0];
  EXPECT_EQ(device["driver"].as<std::string>(), "nvidia");
  EXPECT_EQ(List(device["capabilities"]), Strings{"gpu"});
}

TEST_F(ComposeTest, PrometheusAndGrafanaReadFilesThatAreHere) {
  const TemporaryFolder folder;
  for (const char* name : {"prometheus", "grafana"}) {
    for (const auto& [host, path] : VolumesOf(Service(name))) {
      if (host[0] != '.') continue;
      const fs::path file = Root() / "deploy/docker" / host;
      EXPECT_TRUE(fs::is_regular_file(file)) << file;
      fs::create_directories(folder.path() + fs::path(path).parent_path().string());
      fs::copy_file(file, folder.path() + path);
    }
  }
  const std::string config = folder.path() + "/etc/prometheus/prometheus.yml";
  const cli::Ended checked = cli::RunToEnd({"/usr/bin/promtool", "check", "config", config}, {});
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
  // Each daemon with metrics is a target.
  const std::string targets = Read(config);
  for (const char* target : {"coordinator:9464", "worker-1", "worker-2", "worker-gpu", "port: 9465"}) {
    EXPECT_TRUE(absl::StrContains(targets, target)) << target;
  }
  const YAML::Node source =
      YAML::LoadFile(folder.path() + "/etc/grafana/provisioning/datasources/muster.yml")["datasources"][0];
  EXPECT_EQ(source["type"].as<std::string>(), "prometheus");
  EXPECT_EQ(source["url"].as<std::string>(), "http://prometheus:9090");
  const YAML::Node provider =
      YAML::LoadFile(folder.path() + "/etc/grafana/provisioning/dashboards/muster.yml")["providers"][0];
  EXPECT_TRUE(fs::exists(folder.path() + provider["options"]["path"].as<std::string>() + "/muster.json"));
  EXPECT_EQ(Service("grafana")["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].as<std::string>(),
            provider["options"]["path"].as<std::string>() + "/muster.json");
}

// The services as Compose starts them: a host and a name for each, its volumes as folders, and the image's environment.
class RunningServices : public ComposeTest {
 protected:
  RunningServices() {
    bin_ = folder_.path() + "/bin";
    fs::create_directories(bin_);
    for (const char* target : {"cli/muster", "coordinator/muster-coordinator", "worker/agent/muster-worker",
                               "worker/shim/muster-step", "worker/exec/muster-exec", "worker/trainer/muster-trainer"}) {
      const fs::path program = fs::canonical(cli::ProgramPath(target));
      fs::copy_file(program, bin_ + "/" + program.filename().string());
    }
    variables_["MUSTER_DATA"] = folder_.path() + "/data";
    variables_["MUSTER_HOST"] = TheHosts()->Address(0);
    fs::create_directories(folder_.path() + "/data");
  }
  ~RunningServices() override {
    for (auto& [name, program] : running_) program->Signal(SIGTERM);
    for (auto& [name, program] : running_) program->Wait(absl::Seconds(60));
  }

  static int HostOf(const std::string& name) { return name == "worker-1" ? 1 : name == "worker-2" ? 2 : 0; }

  // A command in a service's container.
  std::vector<std::string> In(const std::string& name, const Strings& command) {
    std::vector<std::pair<std::string, std::string>> paths;
    for (const auto& [volume, path] : VolumesOf(Service(name))) {
      const std::string host = volume[0] == '/' ? volume : folder_.path() + "/v/" + volume;
      fs::create_directories(host);
      fs::permissions(host, fs::perms::owner_all);
      paths.emplace_back(path, host);
    }
    paths.emplace_back("coordinator:7070", TheHosts()->Address(0) + ":7070");
    std::vector<std::string> words = TheHosts()->Enter(HostOf(name));
    const std::string state = absl::StrReplaceAll("/var/lib/muster", paths),
                      address = absl::StrReplaceAll("unix:/run/muster/coordinator.sock", paths);
    words.insert(words.end(), {"/usr/bin/env", absl::StrCat("PATH=", bin_, ":/usr/sbin:/usr/bin:/sbin:/bin"),
                               "XDG_STATE_HOME=" + state, "MUSTER_ADDRESS=" + address, "HOME=" + state, "unshare",
                               "--uts", "sh", "-c", "hostname \"$0\"; exec \"$@\"", name});
    for (const std::string& word : command) words.push_back(absl::StrReplaceAll(word, paths));
    return words;
  }
  void Start(const std::string& name) {
    std::vector<std::string> words = In(name, List(Service(name)["command"]));
    words.insert(words.begin(),
                 {"/bin/sh", "-c", absl::StrCat("exec \"$@\" >>", folder_.path(), "/", name, ".log 2>&1"), "sh"});
    running_[name] = std::make_unique<cli::Program>(words, cli::Program::Environment{});
  }
  cli::Ended RunIn(const std::string& name, const Strings& command) { return cli::RunToEnd(In(name, command), {}); }
  int Check(const std::string& name) {
    Strings test = List(Service(name)["healthcheck"]["test"]);
    EXPECT_EQ(test[0], "CMD");
    test.erase(test.begin());
    return RunIn(name, test).code;
  }
  bool Healthy(const std::string& name) {
    return Eventually([&] { return Check(name) == 0; }, absl::Seconds(60));
  }
  std::string Logs() const {
    std::string all;
    for (const auto& [name, program] : running_) {
      absl::StrAppend(&all, "== ", name, "\n", Read(absl::StrCat(folder_.path(), "/", name, ".log")));
    }
    return all;
  }
  std::set<std::string> Nodes(const std::string& state) {
    std::set<std::string> nodes;
    for (const json& node : json::parse(RunIn("coordinator", {"muster", "nodes", "-o", "json"}).out)) {
      if (node["state"] == state) nodes.insert(node["id"]);
    }
    return nodes;
  }

  const TemporaryFolder folder_;
  std::string bin_;
  std::map<std::string, std::unique_ptr<cli::Program>> running_;
};

TEST_F(RunningServices, TrainAndStayTheSameNodesInNewContainers) {
  ASSERT_EQ(RunIn("trust", List(Service("trust")["command"])).code, 0);
  EXPECT_NE(Check("coordinator"), 0);
  Start("coordinator");
  ASSERT_TRUE(Healthy("coordinator")) << Logs();
  const cli::Ended token = RunIn("token", List(Service("token")["command"]));
  ASSERT_EQ(token.code, 0) << token.err;
  // A second `up` makes a new one.
  ASSERT_EQ(RunIn("token", List(Service("token")["command"])).code, 0);
  for (const char* worker : {"worker-1", "worker-2"}) {
    EXPECT_NE(Check(worker), 0);
    Start(worker);
  }
  for (const char* worker : {"worker-1", "worker-2"}) ASSERT_TRUE(Healthy(worker)) << Logs();
  const std::set<std::string> nodes = Nodes("live");
  EXPECT_EQ(nodes.size(), 2u) << Logs();

  // A job on both, with its data and checkpoints where every container has them.
  std::ofstream(folder_.path() + "/data/text") << Read(Root() / "LICENSE");
  const cli::Ended prepared = RunIn(
      "coordinator", {"muster", "data", "prepare", "/data/text", "/data/train.bin", "--validation", "/data/val.bin"});
  ASSERT_EQ(prepared.code, 0) << prepared.err;
  fs::copy_file(Root() / "examples/gpt2_tiny_ddp.yaml", folder_.path() + "/data/job.yaml");
  const cli::Ended submitted =
      RunIn("coordinator", {"muster", "submit", "-d", "-f", "/data/job.yaml", "--set", "steps=3", "--set",
                            "resources.ranks=2", "--set", "optimizer.lr_schedule.warmup_steps=1", "-o", "name"});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  const cli::Ended watched = RunIn("coordinator", {"muster", "watch", "@last"});
  EXPECT_EQ(watched.code, 0) << watched.out << watched.err << Logs();

  // Prometheus' container reads the metrics of another one.
  const std::string there = TheHosts()->Address(2) + ":9465";
  EXPECT_EQ(RunIn("coordinator", {"muster", "worker", "health", "--metrics-address", there}).code, 0);

  // A new container with the old volume needs no token that is valid, and is no third node.
  running_["worker-1"]->Signal(SIGTERM);
  EXPECT_EQ(running_["worker-1"]->Wait(absl::Seconds(60)).code, 0) << Logs();
  EXPECT_NE(Check("worker-1"), 0);
  const std::string file = folder_.path() + "/v/join/token", valid = Read(file);
  const size_t secret = valid.rfind('.') + 1;
  fs::remove(file);
  std::ofstream(file) << valid.substr(0, secret) << std::string(valid.rbegin() + 1, valid.rend() - secret) << "\n";
  Start("worker-1");
  ASSERT_TRUE(Healthy("worker-1")) << Logs();
  EXPECT_TRUE(Eventually([&] { return Nodes("live") == nodes; }, absl::Seconds(60))) << Logs();
}

TEST_F(ComposeTest, JoinTokensAreValidForMonths) {
  const std::string command = absl::StrJoin(List(Service("token")["command"]), " ");
  std::smatch ttl;
  ASSERT_TRUE(std::regex_search(command, ttl, std::regex("--ttl ([0-9]+)d"))) << command;
  EXPECT_GE(std::stoi(ttl[1]), 30);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  absl::StatusOr<muster::cluster::Hosts> made = muster::cluster::Hosts::Make(3);
  if (!made.ok()) {
    std::fprintf(stderr, "containers_test: %s\n", made.status().ToString().c_str());
    return 1;
  }
  muster::TheHosts().emplace(*std::move(made));
  return RUN_ALL_TESTS();
}
