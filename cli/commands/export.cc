#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/trainer_program.h"

namespace muster::cli {
namespace {

struct ExportFlags {
  std::string from, out, tokenizer, max_shard;
  bool adapter = false;
};

void Add(CLI::App& app, Invocation& invocation, const std::string& group, const std::string& example) {
  const auto flags = std::make_shared<ExportFlags>();
  CLI::App* command =
      AddCommand(app, "export", group, "Export a checkpoint in the Hugging Face format, for transformers", example);
  command->add_option("FROM", flags->from, "job, or folder of checkpoints")->required();
  command->add_option("OUT", flags->out, "folder to create")->required();
  command->add_option("--tokenizer-from", flags->tokenizer, "folder whose tokenizer files are copied")
      ->type_name("FOLDER");
  command->add_option("--max-shard-size", flags->max_shard, "largest file of weights (default 5GB)")
      ->transform(CLI::Validator(TakeSize, ""))
      ->type_name("SIZE");
  command->add_flag("--adapter", flags->adapter, "only the adapters of a job with lora, as PEFT reads them");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::string> folder = ModelFolder(invocation, flags->from);
    if (!folder.ok()) return folder.status();
    std::vector<std::string> arguments = {"export", "--checkpoint", *folder, "--out", flags->out};
    if (!flags->tokenizer.empty()) arguments.insert(arguments.end(), {"--tokenizer-from", flags->tokenizer});
    if (!flags->max_shard.empty()) arguments.insert(arguments.end(), {"--max-shard-size", flags->max_shard});
    if (flags->adapter) arguments.emplace_back("--adapter");
    return BecomeTrainer(invocation, std::move(arguments));
  });
}

}  // namespace

void RegisterExport(CLI::App& app, Invocation& invocation) {
  Add(app, invocation, kGroupData,
      "muster export runs/gpt2-tiny-x7f2 gpt2-tiny-hf\n"
      "muster export @last out --tokenizer-from gpt2 --max-shard-size 2GB");
}

void RegisterCheckpointExport(CLI::App& app, Invocation& invocation) {
  Add(app, invocation, "Commands", "muster checkpoint export @last gpt2-tiny-hf --max-shard-size 2GB");
}

}  // namespace muster::cli
