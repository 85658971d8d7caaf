// Exec jobs in container images, by podman: the image is made here, of one program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/file/read_file.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string ReadText(const std::string& path) { return ReadWhole(path).value_or(""); }

class ImageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path podman = cluster_.folder() + "/podman";
    fs::create_directories(podman / "root/bin");
    fs::create_directory(podman / "bin");
    fs::create_directory(work_);
    fs::copy_file("/bin/busybox", podman / "root/bin/busybox");
    fs::create_symlink("busybox", podman / "root/bin/sh");
    std::ofstream(podman / "root/release") << "inside\n";
    // Its state is in the test's folder, and this machine may not raise limits.
    rlimit files{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    std::ofstream(podman / "containers.conf")
        << "[containers]\ndefault_ulimits = [\"nofile=" << files.rlim_max << ":" << files.rlim_max
        << "\", \"nproc=10000:10000\"]\n[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n"
        << "events_logger = \"none\"\nlock_type = \"file\"\ntmp_dir = " << podman / "tmp"
        << "\n";
    std::ofstream(podman / "storage.conf") << "[storage]\ndriver = \"vfs\"\ngraphroot = " << podman / "storage"
                                           << "\nrunroot = " << podman / "run"
                                           << "\n";
    std::ofstream(podman / "bin/podman") << "#!/bin/sh\nexport CONTAINERS_CONF=" << podman / "containers.conf"
                                         << " CONTAINERS_STORAGE_CONF=" << podman / "storage.conf"
                                         << " TMPDIR=" << podman << "\nexec /usr/bin/podman \"$@\"\n";
    fs::permissions(podman / "bin/podman", fs::perms::owner_all);
    const std::string log = podman / "import.log";
    ASSERT_EQ(std::system(absl::StrCat("tar -C ", podman.string(), "/root -c . | ", podman.string(),
                                       "/bin/podman import - box > ", log, " 2>&1")
                              .c_str()),
              0)
        << ReadText(log);
    cluster_.environment.push_back(absl::StrCat("PATH=", podman.string(), "/bin:/usr/bin:/bin"));
  }

  void Start() {
    cluster_.worker_flags = {"--exec-jobs", "on"};
    cluster_.StartCoordinator();
    cluster_.StartWorker(0, 2);
  }

  Ran RunToItsEnd(const std::vector<std::string>& flags, const std::string& script) {
    return cluster_.Muster(Arguments(flags, script));
  }
  std::string Begin(std::vector<std::string> flags, const std::string& script) {
    flags.insert(flags.end(), {"-d", "-o", "name"});
    const Ran ran = cluster_.Muster(Arguments(flags, script));
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return std::string(absl::StripAsciiWhitespace(ran.out));
  }
  std::vector<std::string> Arguments(const std::vector<std::string>& flags, const std::string& script) {
    std::vector<std::string> arguments = {"run", "--workdir", work_, "--name", "box"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"--", "sh", "-c", script});
    return arguments;
  }

  static bool Sleeping(const std::string& seconds) {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      if (ReadText(entry.path() / "cmdline") == std::string("busybox\0sleep\0", 14) + seconds + '\0') return true;
    }
    return false;
  }

  Cluster cluster_;
  const std::string work_ = cluster_.folder() + "/work";
};

TEST_F(ImageTest, AProgramHasTheFilesOfItsImageAndWhatMusterGivesIt) {
  Start();
  const Ran ran =
      RunToItsEnd({"--image", "localhost/box", "--ranks", "2", "--env", "GREETING=a b", "--env", "PATH=/bin:/own"}, R"(
read release < /release
echo "rank $RANK of $WORLD_SIZE is $release in $PWD: $GREETING, $PATH"
echo "{\"step\": 1, \"loss\": 0.5}" >> $MUSTER_REPORT_FILE
echo written > here-$RANK
[ -e /usr/bin/env ] && echo "the node's files are here")");
  EXPECT_EQ(ran.exit_code, 1) << ran.out << ran.err << "the exit code of the last command";
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(ran.out, HasSubstr(absl::StrCat("rank ", rank, ": rank ", rank, " of 2 is inside in ", work_,
                                                ": a b, /bin:/own\n")));
    EXPECT_EQ(ReadText(work_ + "/here-" + rank), "written\n");
  }
  EXPECT_THAT(ran.out, Not(HasSubstr("the node's files are here")));
  const std::string id = std::string(absl::StripAsciiWhitespace(cluster_.Muster({"ps", "-a", "-o", "name"}).out));
  EXPECT_EQ(cluster_.Losses(id), std::vector<double>{0.5});
}

TEST_F(ImageTest, APausedProgramSavesAndContinues) {
  Start();
  const std::string id = Begin({"--image", "localhost/box"}, R"(
[ -e saved ] && exit 0
trap 'echo saved > saved; exit 0' TERM
echo begun > begun
while :; do busybox sleep 0.1; done)");
  ASSERT_TRUE(Eventually([&] { return ReadText(work_ + "/begun") == "begun\n"; }, absl::Minutes(2)));
  ASSERT_TRUE(cluster_.WaitForState(id, "running"));
  ASSERT_EQ(cluster_.Muster({"pause", id}).exit_code, 0);
  ASSERT_TRUE(cluster_.WaitForState(id, "paused"));
  EXPECT_EQ(ReadText(work_ + "/saved"), "saved\n");
  ASSERT_EQ(cluster_.Muster({"resume", id}).exit_code, 0);
  EXPECT_TRUE(cluster_.WaitForState(id, "completed"));
}

// A container is no child of the podman that made it.
TEST_F(ImageTest, NothingOfAKilledRankStays) {
  Start();
  const std::string id = Begin({"--image", "localhost/box", "--max-restarts", "0"}, R"(
trap '' TERM
busybox sleep 987651 & busybox setsid busybox sleep 987652 &
echo begun > begun
wait)");
  ASSERT_TRUE(Eventually([&] { return ReadText(work_ + "/begun") == "begun\n"; }, absl::Minutes(2)));
  ASSERT_TRUE(Eventually([&] { return Sleeping("987651") && Sleeping("987652"); }));
  const std::vector<pid_t> runners = cluster_.Trainers();
  ASSERT_EQ(runners.size(), 1u);
  kill(runners[0], SIGKILL);  // podman dies with muster-exec
  EXPECT_TRUE(cluster_.WaitForState(id, "failed"));
  EXPECT_FALSE(Sleeping("987651") || Sleeping("987652"));
}

TEST_F(ImageTest, AnImageThatIsNowhereFailsTheJobByName) {
  Start();
  const Ran ran = RunToItsEnd({"--image", "localhost/nowhere"}, "true");
  EXPECT_EQ(ran.exit_code, 1) << ran.out << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("image localhost/nowhere did not run"), HasSubstr("muster logs")));
  EXPECT_THAT(cluster_.Muster({"logs", "@last"}).out, HasSubstr("localhost/nowhere")) << "podman says why";
}

TEST_F(ImageTest, AProgramThatIsNotInItIsNamed) {
  Start();
  const Ran ran = cluster_.Muster(
      {"run", "--workdir", work_, "--max-restarts", "0", "--image", "localhost/box", "--", "python3", "train.py"});
  EXPECT_EQ(ran.exit_code, 1) << ran.out << ran.err;
  EXPECT_THAT(ran.out + ran.err, AllOf(HasSubstr("program=python3"), HasSubstr("No such file or directory")));
}

TEST_F(ImageTest, ANodeWithoutARuntimeRefusesImagesAlone) {
  cluster_.worker_flags = {"--exec-jobs", "on", "--container-command", "off"};
  cluster_.StartCoordinator();
  cluster_.StartWorker(0, 1);
  const Ran ran = RunToItsEnd({"--image", "localhost/box"}, "true");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, AllOf(HasSubstr("this node runs no images"), HasSubstr("--container-command")));
  EXPECT_EQ(cluster_.Muster({"run", "--workdir", work_, "--", "/bin/true"}).exit_code, 0);
}

}  // namespace
}  // namespace muster::cluster
