#include <cstdint>
#include <limits>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/tokenizer_option.h"
#include "cli/commands/trainer_program.h"
#include "common/flags/values.h"

namespace muster::cli {
namespace {

struct SampleFlags {
  std::string from, library;
  std::string prompt, tokens, temperature, top_k, seed, tokenizer;
};

}  // namespace

void RegisterSample(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<SampleFlags>();
  CLI::App* command = AddCommand(app, "sample", kGroupData, "Generate text with a trained model",
                                 "muster sample @last --prompt \"In the beginning\" --tokens 200\n"
                                 "muster sample runs/gpt2-tiny-x7f2 --prompt And --temperature 0");
  command->add_option("FROM", flags->from, "job, folder of checkpoints, or a Hugging Face folder")->required();
  command->add_option("--prompt", flags->prompt, "text to continue")->type_name("PROMPT")->required();
  command->add_option("--tokens", flags->tokens, "tokens to write")->check(Between(1, 1 << 20))->type_name("N");
  command->add_option("--temperature", flags->temperature, "0: always take the likeliest token")
      ->check(Between(0.0, 1e6))
      ->type_name("X");
  command->add_option("--top-k", flags->top_k, "sample from the K likeliest tokens")
      ->check(Between(1, 1 << 30))
      ->type_name("K");
  command->add_option("--seed", flags->seed, "seed of the sampling")
      ->check(Between(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->type_name("N");
  AddLibrary(command, flags->library);
  AddTokenizer(command, flags->tokenizer, "the one beside FROM, else the one that made its data");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::string> folder = ModelFolder(invocation, flags->from);
    if (!folder.ok()) return folder.status();
    std::vector<std::string> arguments = {"sample", "--checkpoint", *folder, "--prompt", flags->prompt};
    AppendLibrary(flags->library, arguments);
    for (const auto& [name, value] :
         {std::pair("--tokens", &flags->tokens), std::pair("--temperature", &flags->temperature),
          std::pair("--top-k", &flags->top_k), std::pair("--seed", &flags->seed),
          std::pair("--tokenizer", &flags->tokenizer)}) {
      if (!value->empty()) arguments.insert(arguments.end(), {name, *value});
    }
    return BecomeTrainer(invocation, std::move(arguments));
  });
}

}  // namespace muster::cli
