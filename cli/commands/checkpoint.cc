#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/trainer_program.h"
#include "cli/output_format.h"

namespace muster::cli {
namespace {

void RegisterNow(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string job;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "now", "Commands", "Write a checkpoint of a running job, and wait until it is published",
                 "muster checkpoint now gpt2-tiny-x7f2\n"
                 "muster checkpoint now @last --timeout 20m -o name");
  AddJob(command, flags->job);
  AddFormat(command, flags->format, {"table", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<std::string> job = invocation.JobNamed(flags->job, **client);
    if (!job.ok()) return job.status();
    const absl::StatusOr<v1::CheckpointReply> reply = (*client)->Checkpoint(*job);
    if (!reply.ok()) return reply.status();
    const v1::PublishedCheckpoint& published = reply->checkpoint();
    if (flags->format == Format::kName) {
      Print(published.directory() + "\n");
    } else if (flags->format == Format::kTable) {
      // The reply does not name the job, and the user may have typed a part of its id.
      const absl::StatusOr<v1::GetJobReply> named = (*client)->GetJob(*job);
      Say(absl::StrCat(named.ok() ? named->job().id() : *job, ": published the checkpoint of step ", published.step(),
                       " (", published.directory(), ")"));
    } else {
      PrintMessage(published, flags->format);
    }
    return kOk;
  });
}

void RegisterImport(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string from, out;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "import", "Commands", "Convert a Hugging Face folder to a checkpoint to start from",
                 "muster checkpoint import gpt2-hf start/gpt2");
  command->add_option("DIR", flags->from, "folder with config.json and weights in safetensors")->required();
  command->add_option("OUT", flags->out, "folder of checkpoints to create")->required();
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    return BecomeTrainer(invocation, {"import", "--from", flags->from, "--out", flags->out});
  });
}

}  // namespace

void RegisterCheckpoint(CLI::App& app, Invocation& invocation) {
  CLI::App* group =
      AddCommand(app, "checkpoint", kGroupData, "Write, list, verify, export, import and adopt checkpoints",
                 "muster checkpoint now @last\nmuster checkpoint ls @last");
  group->require_subcommand(1);
  RegisterNow(*group, invocation);
  RegisterCheckpointFiles(*group, invocation);
  RegisterCheckpointExport(*group, invocation);
  RegisterImport(*group, invocation);
  RegisterCheckpointAdopt(*group, invocation);
}

}  // namespace muster::cli
