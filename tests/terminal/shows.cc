#include "tests/terminal/shows.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::terminal {
namespace {

constexpr char kJob[] = "job.yaml";
// Wider than a narrow terminal.
constexpr char kLongPath[] = "/shared/projects/language-models/checkpoints-of-november/{job}";

}  // namespace

Shows::Shows() {
  cluster_.StartCoordinator();
  cluster_.StartWorker(0, 2);
  cluster_.StartWorker(1, 2);
  cluster_.StartWorker(2, 1);
  const std::string first =
      cluster_.Submit({.name = "baseline", .steps = 60, .extra = "optimizer: {kind: adamw, lr: 1e-3}\n"});
  EXPECT_TRUE(cluster_.WaitForState(first, "completed"));
  running_ = cluster_.Submit({.name = "language-model-of-a-long-name",
                              .steps = 1'000'000,
                              .sequences = 16,
                              .checkpoints = cluster_.folder() + kLongPath,
                              .extra = "resources: {ranks: 4}\nstrategy: {kind: fsdp}\n"});
  cluster_.Submit({.name = "next", .steps = 200, .priority = 5});
  cluster_.Submit(
      {.name = "later", .steps = 200, .sequences = 18, .extra = "resources: {ranks: 9}\nstrategy: {kind: ddp}\n"});
  EXPECT_TRUE(cluster_.WaitForStep(running_, 100));
  job_ = cluster_.WriteJob({.name = "followed", .steps = 1'000'000, .checkpoints = cluster_.folder() + kLongPath});
}

std::unique_ptr<cli::Program> Shows::Start(std::vector<std::string> command, int columns) const {
  command[0] = cli::ProgramPath("cli/muster");
  for (std::string& word : command) {
    if (word == kJob) word = job_;
  }
  const cli::Program::Environment environment = {{"HOME", cluster_.folder()},
                                                 {"XDG_STATE_HOME", cluster_.folder() + "/state"},
                                                 {"MUSTER_ADDRESS", cluster_.address()},
                                                 {"TERM", "xterm"},
                                                 {"LANG", "C.UTF-8"},
                                                 {"TZ", "UTC"}};
  return std::make_unique<cli::Program>(command, environment, "", /*terminal=*/true, columns);
}

Shows::Show Shows::Run(const std::string& name, const std::vector<std::string>& command, int columns,
                       const std::string& until) {
  Show show{name, absl::StrJoin(command, " "), Terminal(columns), Terminal(columns)};
  const std::unique_ptr<cli::Program> program = Start(command, columns);
  if (!until.empty()) {
    EXPECT_TRUE(program->WaitForOut(until)) << show.command;
    program->Signal(SIGINT);
  }
  const cli::Ended ended = program->Wait();
  if (until.empty()) {
    EXPECT_EQ(ended.code, 0) << ended.out;
  }
  // As it is before Ctrl-C.
  show.terminal.Feed(ended.out.substr(0, ended.out.find("detached; ")));
  show.after.Feed(ended.out);
  return show;
}

std::vector<Shows::Show> Shows::All(int columns) {
  std::vector<Show> shows;
  shows.push_back(Run("ps", {"muster", "ps", "--all"}, columns));
  shows.push_back(Run("describe", {"muster", "describe", running_}, columns));
  shows.push_back(Run("top", {"muster", "top"}, columns, "q quit"));
  shows.push_back(Run("submit", {"muster", "submit", "-f", kJob}, columns, " left"));
  // Its slot is for the next one.
  EXPECT_EQ(cluster_.Muster({"cancel", "-y", "followed"}).exit_code, 0);
  return shows;
}

}  // namespace muster::terminal
