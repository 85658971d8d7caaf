#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands/commands.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "worker/data/prepare.h"

namespace muster::cli {
namespace {

void RegisterPrepare(CLI::App& app, Invocation& invocation) {
  const auto options = std::make_shared<data::PrepareOptions>();
  CLI::App* command = AddCommand(app, "prepare", "Commands", "Make token files from text: its bytes are the tokens",
                                 "muster data prepare text.txt train.bin --validation val.bin");
  command->add_option("TEXT", options->text, "text file; - for standard input")->required();
  command->add_option("OUT", options->out, "token file to write")->required();
  auto* validation = command->add_option("--validation", options->validation_out, "token file for the end of the text");
  command->add_option("--fraction", options->validation_fraction, "of the tokens that go to --validation")
      ->capture_default_str()
      ->needs(validation);
  command->add_flag("--force", options->force, "replace files that exist");
  OnRun(command, invocation, [&invocation, options]() -> absl::StatusOr<ExitCode> {
    const bool live = invocation.Err().terminal;
    if (live) {
      options->progress = [](uint64_t done, uint64_t total) {
        std::fprintf(stderr, "\r\x1b[K%s%s", Bytes(done).c_str(),
                     total == 0 ? "" : absl::StrCat(" of ", Bytes(total)).c_str());
      };
    }
    const absl::StatusOr<data::Prepared> prepared = data::Prepare(*options);
    if (live) std::fputs("\r\x1b[K", stderr);
    if (!prepared.ok()) return prepared.status();
    Say(absl::StrCat(options->out, ": ", Grouped(prepared->tokens), " tokens"));
    if (!options->validation_out.empty()) {
      Say(absl::StrCat(options->validation_out, ": ", Grouped(prepared->validation_tokens), " tokens"));
    }
    return kOk;
  });
}

void RegisterInspect(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string file;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "inspect", "Commands", "Say what is in a token file", "muster data inspect train.bin -o json");
  command->add_option("FILE", flags->file, "token file")->required();
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<data::Inspection> found = data::Inspect(flags->file);
    if (!found.ok()) return found.status();
    if (flags->format != Format::kTable) {
      nlohmann::ordered_json tree;
      tree["tokens"] = found->tokens;
      tree["bytes"] = found->bytes;
      tree["smallest"] = found->smallest;
      tree["largest"] = found->largest;
      tree["distinct"] = found->distinct;
      tree["entropy_bits"] = found->entropy_bits;
      tree["beginning"] = found->beginning;
      PrintTree(tree, flags->format);
      return kOk;
    }
    Print(absl::StrCat(Grouped(found->tokens), " tokens in ", Bytes(found->bytes), "; ids ", found->smallest, " to ",
                       found->largest, ", ", found->distinct, " distinct; ",
                       absl::StrFormat("%.3f bits (%.3f nats)", found->entropy_bits, found->entropy_bits * 0.693147181),
                       " a token by frequency alone\n"));
    if (!found->beginning.empty()) Print(absl::StrCat("begins: ", OneLine(found->beginning), "\n"));
    return kOk;
  });
}

}  // namespace

void RegisterData(CLI::App& app, Invocation& invocation) {
  CLI::App* group = AddCommand(app, "data", kGroupData, "Make and look at token files",
                               "muster data prepare text.txt train.bin\nmuster data inspect train.bin");
  group->require_subcommand(1);
  RegisterPrepare(*group, invocation);
  RegisterInspect(*group, invocation);
}

}  // namespace muster::cli
