#include "worker/exec/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/file/read_file.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"

namespace muster::exec {
namespace {

using ::testing::HasSubstr;

Program Forked() {
  absl::StatusOr<Program> program = Program::Fork();
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

int EndOf(Program& program) {
  std::optional<int> status;
  EXPECT_TRUE(Eventually([&] { return (status = program.WaitFor(absl::Milliseconds(100))).has_value(); }));
  return status.value_or(-1);
}

absl::Status StartErrorOf(const Program::Command& command) {
  Program program = Forked();
  return program.Start(command);
}

TEST(Program, HasItsArgumentsVariablesAndFolder) {
  const TemporaryFolder folder;
  Program program = Forked();
  ASSERT_TRUE(program
                  .Start({{"sh", "-c", "echo \"$0|$1|$A|$B|$(pwd)\" > out; exit 7", "zero", "one two"},
                          {"A=1 2", "B=", "PATH=/nowhere:/usr/bin:/bin"},
                          folder.path()})
                  .ok());
  const int status = EndOf(program);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(ReadWhole(folder.path() + "/out").value(), absl::StrCat("zero|one two|1 2||", folder.path(), "\n"));
}

TEST(Program, SignalsReachIt) {
  Program program = Forked();
  ASSERT_TRUE(program.Start({{"/bin/sleep", "600"}, {}, "/"}).ok());
  EXPECT_FALSE(program.WaitFor(absl::ZeroDuration()).has_value());
  program.Signal(SIGTERM);
  const int status = EndOf(program);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

TEST(Program, SaysWhyItCannotStart) {
  const TemporaryFolder folder;
  absl::Status status = StartErrorOf({{"no-such-program"}, {"PATH=/bin"}, "/"});
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("command not found: no-such-program (the rank's log has its PATH)"));
  status = StartErrorOf({{"/bin/true"}, {}, "/no/such/folder"});
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot enter workdir /no/such/folder"));
  status = StartErrorOf({{folder.Write("script", "#!/no/such/interpreter\n", /*executable=*/true)}, {}, "/"});
  EXPECT_THAT(std::string(status.message()), HasSubstr("the interpreter that it names is missing"));
  status = StartErrorOf({{folder.Write("data", "x", /*executable=*/false)}, {}, "/"});
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
}

TEST(Program, EndsWithItsOwner) {
  pid_t pid = 0;
  {
    Program program = Forked();
    pid = program.pid();
    ASSERT_TRUE(program.Start({{"/bin/sleep", "600"}, {}, "/"}).ok());
  }
  EXPECT_NE(kill(pid, 0), 0);
  Program unused = Forked();
}

}  // namespace
}  // namespace muster::exec
