// A trainer that runs as the user who submitted the job: its checkpoints belong to that user, and no one else reads
// them. Needs root. Programs and LibTorch lie where such a user may read them, as deploy/ installs them.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kAnn = 61001, kBob = 61002;

// The folder that the linker takes LibTorch from.
std::string LibTorchOf(const std::string& program) {
  FILE* const lines = popen(absl::StrCat("ldd ", program, " | grep -o '/[^ ]*/libtorch_cpu.so'").c_str(), "r");
  char line[4096] = {};
  if (lines == nullptr || fgets(line, sizeof line, lines) == nullptr) ADD_FAILURE() << "no LibTorch: ldd " << program;
  if (lines != nullptr) pclose(lines);
  return fs::path(line).parent_path();
}

// The exit code of a line of sh that runs as that user.
int ShellAs(uid_t user, const std::string& line) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (setgid(user) != 0 || setuid(user) != 0) _exit(125);
    execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    _exit(126);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(Users, ATrainersFilesBelongToItsOwnerAndAreNoOneElsesBusiness) {
  ASSERT_EQ(geteuid(), 0u) << "run the tests as root";
  Cluster cluster;
  const std::string& folder = cluster.folder();
  const std::string runs = folder + "/runs", programs = folder + "/programs";
  chmod(folder.c_str(), 0755);
  fs::create_directories(programs + "/bin");
  fs::create_directories(programs + "/site/torch/lib");
  fs::create_directory(runs);
  chmod(runs.c_str(), 01777);
  const std::string trainer = programs + "/bin/muster-trainer";
  fs::copy_file("worker/trainer/muster-trainer", trainer);
  // This machine's own LibTorch may lie in a folder that only root may enter. The mount ends with the worker.
  const std::string mount =
      absl::StrCat("mount --bind ", LibTorchOf(trainer), " ", programs, "/site/torch/lib && exec \"$@\"");
  cluster.prefix = [&](const std::string& name) {
    if (name == "coordinator") return std::vector<std::string>();
    return std::vector<std::string>{"/usr/bin/unshare", "--mount", "--propagation", "private",
                                    "/bin/sh",          "-c",      mount,           "sh"};
  };
  std::ofstream(folder + "/users") << "root " << kAnn << ":" << kAnn << " umask=077\n";
  cluster.worker_flags = {"--trainer", trainer, "--run-as-owner", folder + "/users", "--checkpoint-roots", runs};
  cluster.StartCoordinator();
  cluster.StartWorker(0, 2);
  const std::string id =
      cluster.Submit({.name = "mine", .checkpoints = "runs/{job}", .extra = "resources: {ranks: 2}\n"});
  ASSERT_FALSE(id.empty());
  ASSERT_TRUE(cluster.WaitForState(id, "completed")) << cluster.Muster({"logs", id}).out;

  size_t files = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(runs)) {
    struct stat info {};
    ASSERT_EQ(stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, kAnn) << entry.path();
    EXPECT_EQ(info.st_mode & 077, 0u) << entry.path();
    files += entry.is_regular_file();
  }
  EXPECT_GE(files, 4u) << "an owner file, a manifest and a shard for each rank";
  const std::string path = absl::StrCat(runs, "/", id);
  EXPECT_NE(ShellAs(kBob, absl::StrCat("ls ", path)), 0);
  EXPECT_NE(ShellAs(kBob, absl::StrCat("rm -rf ", path)), 0);
  EXPECT_EQ(ShellAs(kAnn, absl::StrCat("cat ", path, "/*/* >/dev/null")), 0);
  EXPECT_EQ(cluster.Muster({"checkpoint", "verify", id}).exit_code, 0);

  // Without the coordinator, each as themselves, with LibTorch mounted as for the worker.
  fs::copy_file("cli/muster", programs + "/bin/muster");
  const auto muster_as = [&](uid_t user, const std::string& arguments) {
    const std::string out = absl::StrCat(folder, "/out-", user), home = absl::StrCat(runs, "/home-", user);
    const std::string command = absl::StrCat(
        "unshare --mount --propagation private /bin/sh -c '", mount, "' sh setpriv --reuid=", user, " --regid=", user,
        " --clear-groups env -i HOME=", home, " ", programs, "/bin/muster ", arguments, " >", out, " 2>&1");
    const int status = system(command.c_str());
    std::stringstream text;
    text << std::ifstream(out).rdbuf();
    return Ran{WIFEXITED(status) ? WEXITSTATUS(status) : 128, text.str(), ""};
  };
  const std::string exported = absl::StrCat(runs, "/exported-by-");
  const Ran listed = muster_as(kAnn, "checkpoint ls " + path);
  EXPECT_EQ(listed.exit_code, 0) << listed.out;
  EXPECT_TRUE(absl::StrContains(listed.out, "whole")) << listed.out;
  const Ran ann = muster_as(kAnn, absl::StrCat("export ", path, " ", exported, "ann"));
  EXPECT_EQ(ann.exit_code, 0) << ann.out;
  EXPECT_TRUE(fs::exists(exported + "ann/config.json")) << ann.out;
  for (const std::string& arguments : {"checkpoint ls " + path, absl::StrCat("export ", path, " ", exported, "bob")}) {
    const Ran bob = muster_as(kBob, arguments);
    EXPECT_NE(bob.exit_code, 0) << arguments << bob.out;
    EXPECT_TRUE(absl::StrContains(bob.out, absl::StrCat("Permission denied, this process runs as user ", kBob)))
        << arguments << bob.out;
    EXPECT_FALSE(absl::StrContains(bob.out, "damaged")) << arguments << bob.out;
    EXPECT_FALSE(fs::exists(exported + "bob")) << bob.out;
  }
  EXPECT_EQ(ShellAs(kAnn, absl::StrCat("rm -r ", path)), 0) << "owners delete what is theirs";
}

}  // namespace
}  // namespace muster::cluster
