#include "worker/agent/container_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "testing/temporary_folder.h"

namespace muster::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ContainerCommandTest : public ::testing::Test {
 protected:
  std::string Install(const std::string& program) {
    const std::string file = folder_.path() + "/" + program;
    std::ofstream(file) << "#!/bin/sh\n";
    chmod(file.c_str(), 0755);
    return file;
  }
  absl::StatusOr<std::vector<std::string>> Of(const std::string& setting, const std::vector<std::string>& roots = {}) {
    return ContainerCommand(setting, "/nonexistent:" + folder_.path(), roots);
  }

  TemporaryFolder folder_;
};

TEST_F(ContainerCommandTest, IsThatOfPodmanWhereItIsInstalled) {
  EXPECT_THAT(*Of("auto"), IsEmpty());
  const std::string podman = Install("podman");
  EXPECT_THAT(*Of("auto", {"/data", "/my runs"}),
              ElementsAre(podman, "run", "--rm", "--init", "--network=host", "--ipc=host", "--env={variable}",
                          "--volume={rank_dir}:{rank_dir}", "--volume={workdir}:{workdir}", "--volume=/data:/data",
                          "--volume=/my runs:/my runs", "--workdir={workdir}", "{image}"));
  EXPECT_THAT(*Of("off"), IsEmpty());
}

TEST_F(ContainerCommandTest, IsWhatTheAdministratorSays) {
  const std::string apptainer = Install("apptainer");
  EXPECT_THAT(*Of(" apptainer exec  --nv {image} ", {"/data"}), ElementsAre(apptainer, "exec", "--nv", "{image}"))
      << "no roots of its own";
  EXPECT_THAT(Of("apptainer exec").status().message(), HasSubstr("has no {image} after its program"));
  EXPECT_THAT(*Of("apptainer exec docker://{image}"), ElementsAre(apptainer, "exec", "docker://{image}"));
  EXPECT_THAT(Of("{image}").status().message(), HasSubstr("has no {image} after its program"));
  EXPECT_THAT(Of("").status().message(), HasSubstr("has no {image} after its program"));
  EXPECT_THAT(Of("enroot start {image}").status().message(),
              HasSubstr("--container-command: command not found: enroot (PATH is /nonexistent:"));
  EXPECT_THAT(*Of("/opt/run {image}"), ElementsAre("/opt/run", "{image}"));
}

}  // namespace
}  // namespace muster::agent
