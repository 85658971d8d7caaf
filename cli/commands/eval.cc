#include <cstdint>
#include <limits>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/trainer_program.h"
#include "cli/output_format.h"
#include "common/flags/values.h"

namespace muster::cli {
namespace {

struct EvalFlags {
  std::string from, data, sequences, library;
  Format format = Format::kTable;
};

}  // namespace

void RegisterEval(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = AddCommand(app, "eval", kGroupData, "Evaluate a trained model on a data file: loss and metrics",
                                 "muster eval runs/gpt2-tiny-x7f2 val.bin\nmuster eval @last val.bin -o json");
  command->add_option("FROM", flags->from, "job, folder of checkpoints, or a Hugging Face folder")->required();
  command->add_option("DATA", flags->data, "token, image or safetensors file, or a quoted pattern of its shards")
      ->required();
  command->add_option("--sequences", flags->sequences, "only the first N samples")
      ->check(Between(int64_t{1}, std::numeric_limits<int64_t>::max()))
      ->type_name("N");
  AddLibrary(command, flags->library);
  AddFormat(command, flags->format, {"table", "json"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::string> folder = ModelFolder(invocation, flags->from);
    if (!folder.ok()) return folder.status();
    std::vector<std::string> arguments = {"eval", "--checkpoint", *folder, "--data", flags->data};
    AppendLibrary(flags->library, arguments);
    if (!flags->sequences.empty()) arguments.insert(arguments.end(), {"--sequences", flags->sequences});
    if (flags->format == Format::kJson) arguments.emplace_back("--json");
    return BecomeTrainer(invocation, std::move(arguments));
  });
}

}  // namespace muster::cli
