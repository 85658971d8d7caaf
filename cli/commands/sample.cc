#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"

namespace muster::cli {
namespace {

struct Flags {
  std::string from;
  std::string prompt, tokens, temperature, top_k, seed;
};

// A folder is taken as it is; anything else is a job, whose checkpoints the coordinator knows.
absl::StatusOr<std::string> CheckpointOf(const Invocation& invocation, const std::string& from) {
  struct stat found {};
  if (stat(from.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return from;
  if (absl::StrContains(from, '/')) return absl::NotFoundError(absl::StrCat("there is no folder ", from));
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::string> job = invocation.JobNamed(from, **client);
  if (!job.ok()) return job.status();
  const absl::StatusOr<v1::GetJobReply> reply = (*client)->GetJob(*job);
  if (!reply.ok()) return reply.status();
  const std::string& path = reply->job().spec().train().checkpoint().path();
  if (path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(reply->job().id(), " writes no checkpoints: it has no checkpoint.path"));
  }
  if (reply->job().checkpoints().empty()) {
    return absl::FailedPreconditionError(absl::StrCat(reply->job().id(), " has no checkpoint yet"));
  }
  return path;
}

}  // namespace

void RegisterSample(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "sample", kGroupData, "Write text with a trained model",
                                 "muster sample @last --prompt \"In the beginning\" --tokens 200\n"
                                 "muster sample runs/gpt2-tiny --prompt And --temperature 0");
  command->add_option("FROM", flags->from, "job, or folder of checkpoints")->required();
  command->add_option("--prompt", flags->prompt, "text to go on from")->required();
  command->add_option("--tokens", flags->tokens, "how many to write")->type_name("N");
  command->add_option("--temperature", flags->temperature, "0: always the likeliest")->type_name("X");
  command->add_option("--top_k", flags->top_k, "choose among the K likeliest")->type_name("K");
  command->add_option("--seed", flags->seed, "of the choice")->type_name("N");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::string> checkpoint = CheckpointOf(invocation, flags->from);
    if (!checkpoint.ok()) return checkpoint.status();
    const std::string program = invocation.BinaryFolder() + "/muster-trainer";
    std::vector<std::string> arguments = {program, "sample", "--checkpoint", *checkpoint, "--prompt", flags->prompt};
    for (const auto& [name, value] :
         {std::pair("--tokens", &flags->tokens), std::pair("--temperature", &flags->temperature),
          std::pair("--top_k", &flags->top_k), std::pair("--seed", &flags->seed)}) {
      if (!value->empty()) arguments.insert(arguments.end(), {name, *value});
    }
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(program.c_str(), argv.data());
    return absl::NotFoundError(absl::StrCat("cannot run ", program, ": ", std::strerror(errno),
                                            "; Muster's programs lie in one folder, or MUSTER_BIN_DIR names it"));
  });
}

}  // namespace muster::cli
