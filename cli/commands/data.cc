#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/commands/commands.h"
#include "cli/commands/data_images.h"
#include "cli/commands/data_tensors.h"
#include "cli/commands/tokenizer_option.h"
#include "cli/interrupt.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "common/bytes.h"
#include "common/flags/values.h"
#include "data/images/image_file.h"
#include "data/prepare.h"
#include "data/tokenizer.h"

namespace muster::cli {
namespace {

// Null: bytes are tokens.
absl::StatusOr<std::unique_ptr<data::Tokenizer>> LoadTokenizer(const std::string& path) {
  if (path.empty()) return std::unique_ptr<data::Tokenizer>();
  return data::Tokenizer::Load(path);
}

// A progress line that is redrawn: bytes, share, rate and time left.
std::function<void(uint64_t, uint64_t)> LiveProgress() {
  const absl::Time begin = absl::Now();
  return [begin, shown = absl::InfinitePast()](uint64_t done, uint64_t total) mutable {
    const absl::Time now = absl::Now();
    if (now - shown < absl::Milliseconds(100) && done != total) return;
    shown = now;
    const double seconds = std::max(1e-3, absl::ToDoubleSeconds(now - begin));
    const double rate = static_cast<double>(done) / seconds;
    std::string line = FormatBytes(done);
    if (total > 0) {
      absl::StrAppend(&line, " of ", FormatBytes(total), absl::StrFormat("  %.0f%%", 100.0 * done / total));
    }
    absl::StrAppend(&line, "  ", FormatBytes(static_cast<uint64_t>(rate)), "/s");
    if (total > 0 && rate > 0) {
      absl::StrAppend(&line, "  ", absl::FormatDuration(absl::Seconds(std::ceil((total - done) / rate))), " left");
    }
    std::fprintf(stderr, "\r\x1b[K%s", line.c_str());
  };
}

struct PrepareFlags {
  data::PrepareOptions options;
  std::vector<std::string> files;
  std::string tokenizer, format = "nanogpt";
};

absl::StatusOr<ExitCode> Prepare(const Invocation& invocation, PrepareFlags& flags) {
  data::PrepareOptions& options = flags.options;
  if (flags.files.size() < 2) return absl::InvalidArgumentError("OUT is required: name the token file to write last");
  options.texts.assign(flags.files.begin(), flags.files.end() - 1);
  options.out = flags.files.back();
  options.format = flags.format == "llmc" ? data::TokenFormat::kLlmC : data::TokenFormat::kNanoGpt;
  const absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer = LoadTokenizer(flags.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  options.tokenizer = tokenizer->get();
  const bool live = invocation.Err().terminal;
  if (live) options.progress = LiveProgress();
  const InterruptScope interrupts;
  options.interrupted = Interrupted;
  const absl::StatusOr<data::Prepared> prepared = data::Prepare(options);
  if (live) std::fputs("\r\x1b[K", stderr);
  if (absl::IsAlreadyExists(prepared.status())) {
    return absl::AlreadyExistsError(absl::StrCat(prepared.status().message(), "; name another file, or use --force"));
  }
  if (!prepared.ok()) return prepared.status();
  Say(absl::StrCat(options.out, ": ", Grouped(prepared->tokens), " tokens"));
  if (!options.validation_out.empty()) {
    Say(absl::StrCat(options.validation_out, ": ", Grouped(prepared->validation_tokens), " tokens"));
  }
  if (prepared->bytes_left_out > 0) {
    Say(absl::StrCat("skipped ", Grouped(prepared->bytes_left_out), " bytes that the tokenizer has no token for"));
  }
  if (options.tokenizer != nullptr) {
    Say(absl::StrCat("model.vocabulary must be at least ", options.tokenizer->vocabulary()));
  }
  return kOk;
}

void RegisterPrepare(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<PrepareFlags>();
  CLI::App* command = AddCommand(app, "prepare", "Commands", "Create token files from text",
                                 "muster data prepare text.txt train.bin --validation val.bin\n"
                                 "muster data prepare a.txt b.txt train.bin --tokenizer gpt2 --end-of-text");
  command->add_option("FILES", flags->files, "text files (- for standard input), and last the token file to write")
      ->required()
      ->expected(1, -1);
  AddTokenizer(command, flags->tokenizer, "each byte is a token");
  command->add_flag("--end-of-text", flags->options.end_of_text,
                    "append the tokenizer's end-of-text token to each text");
  command->add_option("--format", flags->format, "format of the token file; nanogpt has no header")
      ->check(OneOf({"nanogpt", "llmc"}))
      ->capture_default_str();
  auto* validation =
      command->add_option("--validation", flags->options.validation_out, "token file for the end of the text")
          ->type_name("FILE");
  command
      ->add_option("--fraction,--validation-fraction", flags->options.validation_fraction,
                   "share of the tokens that goes to --validation")
      ->capture_default_str()
      ->needs(validation);
  command->add_flag("--force", flags->options.force, "overwrite existing files");
  OnRun(command, invocation, [&invocation, flags] { return Prepare(invocation, *flags); });
}

struct InspectFlags {
  std::vector<std::string> files;
  std::string tokenizer;
  Format format = Format::kTable;
};

nlohmann::ordered_json Tree(const std::string& file, const data::Inspection& found, const std::string& beginning) {
  nlohmann::ordered_json tree;
  tree["file"] = file;
  tree["tokens"] = found.tokens;
  tree["bytes"] = found.bytes;
  tree["smallest"] = found.smallest;
  tree["largest"] = found.largest;
  tree["distinct"] = found.distinct;
  tree["entropy_bits"] = found.entropy_bits;
  tree["first"] =
      std::vector<uint32_t>(found.first.begin(), found.first.begin() + std::min<size_t>(16, found.first.size()));
  tree["beginning"] = beginning;
  for (const data::Shard& shard : found.shards) {
    nlohmann::ordered_json one = {
        {"path", shard.path}, {"format", shard.format}, {"token_bytes", shard.width}, {"tokens", shard.tokens}};
    if (shard.documents > 0) one["documents"] = shard.documents;
    tree["shards"].push_back(std::move(one));
  }
  return tree;
}

std::string Describe(const data::Inspection& found, const std::string& beginning) {
  std::string text;
  for (const data::Shard& shard : found.shards) {
    absl::StrAppend(&text, shard.path, ": ", shard.format, ", ", shard.width, " bytes a token, ", Grouped(shard.tokens),
                    " tokens");
    if (shard.documents > 0) absl::StrAppend(&text, ", ", Grouped(shard.documents), " documents");
    text += "\n";
  }
  absl::StrAppend(&text, Grouped(found.tokens), " tokens in ", FormatBytes(found.bytes), "; ids ", found.smallest,
                  " to ", found.largest, ", ", found.distinct, " distinct; ",
                  absl::StrFormat("%.3f bits (%.3f nats)", found.entropy_bits, found.entropy_bits * 0.693147181),
                  " a token by frequency alone\n");
  if (!beginning.empty()) absl::StrAppend(&text, "begins: ", OneLine(beginning), "\n");
  return text;
}

absl::StatusOr<ExitCode> Inspect(const InspectFlags& flags) {
  const absl::StatusOr<std::unique_ptr<data::Tokenizer>> tokenizer = LoadTokenizer(flags.tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  nlohmann::ordered_json trees = nlohmann::ordered_json::array();
  std::string text;
  for (const std::string& file : flags.files) {
    if (HoldsTensors(file)) {
      if (absl::Status status = AppendTensors(file, trees, text); !status.ok()) return status;
      continue;
    }
    if (data::HoldsImages(file)) {
      if (absl::Status status = AppendImages(file, trees, text); !status.ok()) return status;
      continue;
    }
    const absl::StatusOr<data::Inspection> found = data::Inspect(file);
    if (!found.ok()) return found.status();
    const std::string beginning = data::Readable(found->first, tokenizer->get());
    trees.push_back(Tree(file, *found, beginning));
    text += Describe(*found, beginning);
  }
  if (flags.format == Format::kTable) {
    Print(text);
  } else {
    PrintTree(trees.size() == 1 ? trees[0] : trees, flags.format);
  }
  return kOk;
}

void RegisterInspect(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = AddCommand(app, "inspect", "Commands", "Describe token files, image files or safetensors files",
                                 "muster data inspect train.bin -o json\nmuster data inspect 'shards/train_*.bin'");
  command->add_option("FILE", flags->files, "token, image or safetensors file, or a quoted pattern of its shards")
      ->required();
  AddTokenizer(command, flags->tokenizer, "each byte is a token");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [flags] { return Inspect(*flags); });
}

}  // namespace

void RegisterData(CLI::App& app, Invocation& invocation) {
  CLI::App* group = AddCommand(app, "data", kGroupData, "Create and inspect token and image files",
                               "muster data prepare text.txt train.bin\nmuster data inspect train.bin");
  group->require_subcommand(1);
  RegisterPrepare(*group, invocation);
  RegisterDataImages(*group, invocation);
  RegisterInspect(*group, invocation);
}

}  // namespace muster::cli
