// muster-trainer: runs one rank of a job (run), reads a checkpoint (sample, eval, export, import), or a library with a
// model (inspect); checks the devices of a machine (preflight). Parses flags and wires objects. --self-check prints the
// build's backends.
#include <signal.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/hugging_face.h"
#include "common/bytes.h"
#include "common/file/beneath.h"
#include "common/file_error.h"
#include "common/flags/daemon_flags.h"
#include "common/log/log.h"
#include "common/rank_exit.h"
#include "common/version.h"
#include "common/wrapped.h"
#include "data/tokenizer.h"
#include "data/tokenizer_origin.h"
#include "models/family.h"
#include "models/task.h"
#include "worker/collectives/backends.h"
#include "worker/engine/engine.h"
#include "worker/rundir/termination.h"
#include "worker/trainer/inspect.h"
#include "worker/trainer/link.h"
#include "worker/trainer/loop.h"
#include "worker/trainer/preflight.h"
#include "worker/trainer/ranks.h"
#include "worker/trainer/rendezvous.h"
#include "worker/trainer/sample.h"
#include "worker/trainer/weights.h"

namespace {

using muster::trainer::SampleOptions;

constexpr int kInterruptedCode = 130;  // as the CLI's (cli/exit_code.h)

struct RunOptions {
  muster::trainer::Link::Options link;
  std::string rank_dir;
  muster::trainer::SetUpOptions set_up;
  std::vector<std::string> data_roots, checkpoint_roots;  // of the worker (docs/security.md); none: anywhere
};

muster::Confinement ConfinementOf(const RunOptions& options) {
  muster::Confinement confinement{.data = options.data_roots, .read = {}, .write = options.checkpoint_roots};
  if (!confinement.write.empty()) confinement.write.push_back(options.rank_dir);
  // Weights to start from count as data, what is resumed from as checkpoints, and both are read by the same code.
  if (options.data_roots.empty() || options.checkpoint_roots.empty()) return confinement;
  confinement.read = confinement.write;
  confinement.read.insert(confinement.read.end(), options.data_roots.begin(), options.data_roots.end());
  return confinement;
}

absl::Status Run(const RunOptions& options) {
  muster::rundir::CatchSignals();
  muster::Confine(ConfinementOf(options));
  muster::trainer::Link link(options.link);
  const auto interrupted = muster::rundir::Terminated;
  absl::StatusOr<muster::Assignment> assignment = link.WaitForAssignment(interrupted);
  if (absl::IsCancelled(assignment.status())) {
    muster::LogInfo("stopped before it was assigned", {{"reason", assignment.status()}});
    return absl::OkStatus();
  }
  if (!assignment.ok()) return assignment.status();
  muster::LogInfo("rank assigned", {{"world", assignment->world()}, {"version", muster::kVersion}});
  muster::trainer::Rendezvous rendezvous(options.link.socket, options.link.key,
                                         muster::trainer::CollectiveDeadline(*assignment),
                                         [&] { return interrupted() || link.Newest().stop.has_value(); });
  return muster::trainer::TrainRank(*assignment, options.rank_dir, link, rendezvous, interrupted, options.set_up)
      .status();
}

// As the CLI does, in whose place these commands run.
void Print(FILE* to, const std::string& text) {
  std::fputs(muster::Wrapped(absl::StrCat(text, "\n"), muster::ColumnsOf(fileno(to))).c_str(), to);
}

void SaySkipped(const std::string& folder, const absl::Status& error, const std::string& used) {
  absl::string_view why = error.message();
  if (!absl::ConsumePrefix(&why, absl::StrCat(folder, "/"))) absl::ConsumePrefix(&why, absl::StrCat(folder, ": "));
  Print(stderr,
        absl::StrCat("muster: skipped the corrupt checkpoint ", std::filesystem::path(folder).filename().string(), ": ",
                     why, "; using ", std::filesystem::path(used).filename().string()));
}

int Threads(int asked) { return asked > 0 ? asked : muster::trainer::AvailableCores(); }

// The tokenizer that made a model's tokens, as its checkpoint says. Null: each byte is one, or it is not known.
// FailedPrecondition: it is not there any more, or is another one now; `flag` names a copy of it.
absl::StatusOr<std::unique_ptr<muster::data::Tokenizer>> LoadRecorded(
    const std::optional<muster::TokenizerOrigin>& origin, absl::string_view flag) {
  if (!origin.has_value() || origin->path().empty()) return std::unique_ptr<muster::data::Tokenizer>();
  absl::StatusOr<std::unique_ptr<muster::data::Tokenizer>> tokenizer = muster::data::Tokenizer::Load(origin->path());
  if (tokenizer.ok() && (*tokenizer)->origin().sha256() == origin->sha256()) return tokenizer;
  return absl::FailedPreconditionError(absl::StrCat(
      "the tokenizer that made this model's tokens, ", origin->path(), ", ",
      tokenizer.ok() ? "has changed since" : absl::StrCat("cannot be read: ", tokenizer.status().message()),
      "; give a copy of it with ", flag));
}

// Loads the given tokenizer, else the one beside the model, else the recorded one. Null: the model's tokens are bytes.
absl::StatusOr<std::unique_ptr<muster::data::Tokenizer>> LoadTokenizer(
    const std::string& given, const std::string& model, const std::optional<muster::TokenizerOrigin>& recorded) {
  if (!given.empty()) return muster::data::Tokenizer::Load(given);
  // Of a step's folder, those beside the steps.
  const std::filesystem::path path(model);
  const bool step = muster::checkpoint::ParseDirectory(path.filename().string()).has_value();
  const std::string folder = step ? path.parent_path().string() : model;
  for (const char* name : {"/tokenizer.json", "/vocab.json"}) {
    std::error_code error;
    if (std::filesystem::exists(folder + name, error)) return muster::data::Tokenizer::Load(folder);
  }
  return LoadRecorded(recorded, "--tokenizer");
}

// It may still have the same ids, in other files, so it is used.
void WarnOfAnother(const muster::TokenizerOrigin& used, const std::optional<muster::TokenizerOrigin>& recorded) {
  if (!recorded.has_value() || recorded->sha256() == used.sha256()) return;
  std::fprintf(stderr, "muster: warning: this model's tokens were made with %s, not with %s: the text may be garbled\n",
               muster::data::DescribeTokenizer(*recorded).c_str(), muster::data::DescribeTokenizer(used).c_str());
}

absl::Status Sample(const std::string& path, int threads, const std::string& library, const std::string& given,
                    const SampleOptions& options) {
  const absl::StatusOr<muster::trainer::InferenceModel> model =
      muster::trainer::LoadForInference(path, Threads(threads), library, SaySkipped);
  if (!model.ok()) return model.status();
  const absl::StatusOr<std::unique_ptr<muster::data::Tokenizer>> tokenizer =
      LoadTokenizer(given, path, model->tokenizer);
  if (!tokenizer.ok()) return tokenizer.status();
  if (*tokenizer != nullptr) WarnOfAnother((*tokenizer)->origin(), model->tokenizer);
  const auto put = [](std::string_view text) {
    return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  };
  const auto begin = [&, begun = false](std::string_view text) mutable {
    // Print the prompt only once the model has accepted it.
    if (!begun) put(options.prompt);
    begun = true;
    return put(text);
  };
  absl::Status status = muster::trainer::Sample(*model->engine, model->inventory, tokenizer->get(), options, begin);
  if (status.ok()) put("\n");
  return status;
}

// Shows how far an evaluation is, where stderr is a terminal that can move its cursor. Null elsewhere.
std::function<void(uint64_t done, uint64_t all)> Progress() {
  const char* const terminal = std::getenv("TERM");
  if (isatty(STDERR_FILENO) == 0 || terminal == nullptr || std::string_view(terminal) == "dumb") return nullptr;
  return [](uint64_t done, uint64_t all) {
    std::fprintf(stderr, "\r\x1b[K%3llu%%  %llu of %llu samples", static_cast<unsigned long long>(100 * done / all),
                 static_cast<unsigned long long>(done), static_cast<unsigned long long>(all));
  };
}

// An evaluation has nothing to clean up but its line of progress, so it ends in the handler, whatever it computes.
template <bool live>
void EndEvaluation(int) {
  constexpr std::string_view kClear = "\r\x1b[K", kMessage = "muster: interrupted: the evaluation was not finished\n";
  if (live) static_cast<void>(!write(STDERR_FILENO, kClear.data(), kClear.size()));
  static_cast<void>(!write(STDERR_FILENO, kMessage.data(), kMessage.size()));
  _exit(kInterruptedCode);
}

void EndEvaluationOnSignals(bool live) {
  struct sigaction action = {};
  action.sa_handler = live ? EndEvaluation<true> : EndEvaluation<false>;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(signal, &action, &before);
    if (before.sa_handler == SIG_IGN) sigaction(signal, &before, nullptr);  // by nohup, or in the background
  }
}

absl::Status Evaluate(const std::string& path, int threads, const std::string& library, const std::string& tokens,
                      uint64_t sequences, bool json) {
  EndEvaluationOnSignals(/*live=*/Progress() != nullptr);
  absl::StatusOr<muster::trainer::InferenceModel> model =
      muster::trainer::LoadForInference(path, Threads(threads), library, SaySkipped);
  if (!model.ok()) return model.status();
  const absl::StatusOr<muster::trainer::Evaluated> found =
      muster::trainer::Evaluate(*model, tokens, sequences, Progress());
  if (Progress()) std::fprintf(stderr, "\r\x1b[K");
  if (!found.ok()) return found.status();
  const std::string text = muster::trainer::Describe(*found, json);
  if (json) {
    std::printf("%s\n", text.c_str());
  } else {
    Print(stdout, text);
  }
  return absl::OkStatus();
}

// The files of the recorded tokenizer go along, unless others are given.
absl::Status Export(const std::string& path, muster::checkpoint::ExportOptions options) {
  const absl::StatusOr<muster::checkpoint::Checkpoint> checkpoint = muster::trainer::OpenNewest(path, SaySkipped);
  if (!checkpoint.ok()) return checkpoint.status();
  if (options.tokenizer_from.empty() && checkpoint->manifest().has_tokenizer()) {
    const auto tokenizer = LoadRecorded(checkpoint->manifest().tokenizer(), "--tokenizer-from");
    if (!tokenizer.ok()) {
      Print(stderr, absl::StrCat("muster: warning: exported without a tokenizer: ", tokenizer.status().message()));
    } else if (*tokenizer != nullptr) {
      options.tokenizer_from = (*tokenizer)->origin().path();
    }
  }
  const absl::StatusOr<muster::checkpoint::Exported> exported = muster::checkpoint::Export(*checkpoint, options);
  if (!exported.ok()) return exported.status();
  const muster::Train& train = checkpoint->manifest().spec().train();
  const bool images = checkpoint->manifest().inventory().task().name() == muster::models::kImageClassification;
  const char* reader = options.adapter              ? "PEFT"
                       : train.model().has_custom() ? "muster"
                       : images                     ? "torchvision"
                                                    : "Hugging Face's transformers";
  Print(stdout, absl::StrCat(options.out, ": step ", checkpoint->manifest().step(), " of ",
                             muster::models::Describe(train.model()), " as ", reader, " reads it, ",
                             muster::FormatBytes(exported->bytes), " of weights in ", exported->files,
                             exported->files == 1 ? " file" : " files"));
  return absl::OkStatus();
}

absl::Status Import(const std::string& from, const std::string& out) {
  const absl::StatusOr<muster::checkpoint::Written> written = muster::trainer::ImportCheckpoint(from, out);
  if (!written.ok()) return written.status();
  Print(stdout, absl::StrCat(out, "/", written->name.Directory(), ": ", muster::FormatBytes(written->bytes), " from ",
                             from, "; a job starts from it by model.from: ", out));
  return absl::OkStatus();
}

absl::Status Inspect(const std::string& library, const std::vector<std::string>& options) {
  const absl::StatusOr<muster::trainer::Inspected> found = muster::trainer::Inspect(library, options);
  if (!found.ok()) return found.status();
  std::fprintf(stderr, "%s", found->summary.c_str());
  std::printf("%s\n", found->json.c_str());
  return absl::OkStatus();
}

void Preflight(const muster::trainer::PreflightOptions& options) {
  const auto print = [](const std::string& line) {
    std::fputs(line.c_str(), stdout);
    std::fflush(stdout);
  };
  muster::trainer::RunPreflight(
      options, [&](const std::string& name) { print(muster::trainer::BegunLine(name)); },
      [&](const muster::trainer::PreflightFinding& finding) { print(muster::trainer::FoundLine(finding)); });
}

// Of the commands that the CLI runs in its place; the same codes as the CLI's own (cli/exit_code.h).
int CommandExitCode(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 2;
    case absl::StatusCode::kPermissionDenied:
      return 4;
    default:
      return 1;
  }
}

// The process's exit code.
int SelfCheck() {
  const absl::StatusOr<std::vector<muster::collectives::BuiltBackend>> backends = muster::collectives::Backends();
  if (!backends.ok()) {
    std::fprintf(stderr, "muster-trainer: %s\n", std::string(backends.status().message()).c_str());
    return 1;
  }
  std::printf("%s", muster::collectives::Describe(*backends).c_str());
  if (const absl::Status flushed = muster::FlushStandardOutput(); !flushed.ok()) {
    std::fprintf(stderr, "muster-trainer: %s\n", std::string(flushed.message()).c_str());
    return 1;
  }
  return 0;
}

// The process's exit code.
int RunProgram(int argc, char** argv) {
  muster::StartLog("trainer", muster::LogLevel::kInfo);
  CLI::App app("Trains one rank of a job of Muster; samples from, evaluates and exports its checkpoints.",
               "muster-trainer");
  app.set_version_flag("--version", muster::kVersion);
  app.require_subcommand(1);
  // As --version: it needs no command and ends the parse.
  app.add_flag_callback(
      "--self-check", [] { throw CLI::RuntimeError(SelfCheck()); },
      "print the backends that this build has, with versions: cpu, gloo, direct, cuda, nccl");

  RunOptions run;
  std::string job;
  uint64_t generation = 0;
  uint32_t rank = 0;
  CLI::App* run_command = app.add_subcommand("run", "one rank of a job; started by muster-step");
  run_command->add_option("--socket", run.link.socket, "the worker daemon's socket for trainers")->required();
  run_command->add_option("--rank-dir", run.rank_dir, "the rank's folder")->required();
  run_command->add_option("--job", job, "job id")->required();
  run_command->add_option("--generation", generation, "attempt at the job")->required();
  run_command->add_option("--rank", rank, "rank in the generation")->required();
  run_command->add_option("--plugin-roots", run.set_up.plugin_roots, "folders of libraries that jobs may load")
      ->delimiter(',');
  run_command->add_option("--data-roots", run.data_roots, "folders below which data is opened")->delimiter(',');
  run_command
      ->add_option("--checkpoint-roots", run.checkpoint_roots, "folders below which checkpoints are written and read")
      ->delimiter(',');
  run_command->add_flag("--streams", run.set_up.streams, "on a CPU: run steps as a GPU does; for tests");

  std::string checkpoint, library;
  int threads = 0;
  const auto add_model = [&](CLI::App* command) {
    command
        ->add_option("--checkpoint", checkpoint,
                     "a step's folder, checkpoint.path (its newest whole step), or Hugging Face's")
        ->required();
    command->add_option("--threads", threads, "CPU threads; 0: all cores");
    command->add_option("--library", library, "of a custom model: runs its code as your user");
  };
  SampleOptions sample;
  CLI::App* sample_command = app.add_subcommand("sample", "write text with a trained model");
  add_model(sample_command);
  sample_command->add_option("--prompt", sample.prompt, "text to continue");
  sample_command->add_option("--tokens", sample.tokens, "tokens to write")->capture_default_str();
  sample_command->add_option("--temperature", sample.temperature, "0: always the likeliest token")
      ->capture_default_str();
  sample_command->add_option("--top-k", sample.top_k, "only among the k likeliest; 0: all")->capture_default_str();
  sample_command->add_option("--seed", sample.seed, "of the random choice")->capture_default_str();

  std::string tokenizer;
  sample_command->add_option("--tokenizer", tokenizer, "folder with tokenizer files, or a tokenizer.json");

  std::string tokens;
  uint64_t sequences = 0;
  bool json = false;
  CLI::App* eval_command = app.add_subcommand("eval", "mean loss and metrics on a token or image file");
  add_model(eval_command);
  eval_command->add_option("--data", tokens, "token or image file")->required();
  eval_command->add_option("--sequences", sequences, "first windows of the file; 0: all");
  eval_command->add_flag("--json", json, "print a JSON object");

  muster::checkpoint::ExportOptions exporting;
  CLI::App* export_command = app.add_subcommand("export", "write a checkpoint as a Hugging Face folder");
  export_command->add_option("--checkpoint", checkpoint, "a step's folder, or checkpoint.path")->required();
  export_command->add_option("--out", exporting.out, "folder to make")->required();
  export_command->add_flag("--adapter", exporting.adapter, "only the adapters, as PEFT reads them");
  export_command->add_option("--tokenizer-from", exporting.tokenizer_from, "folder with tokenizer files to copy");
  export_command->add_option("--max-shard-size", exporting.max_shard_bytes, "of a file of weights, e.g. 5GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));

  std::vector<std::string> options;
  CLI::App* inspect_command = app.add_subcommand("inspect", "print the inventory of a library with a model");
  inspect_command->add_option("LIBRARY", library, "a shared object; runs its code as your user")->required();
  inspect_command->add_option("--option", options, "NAME=VALUE for the library; may be repeated")
      ->allow_extra_args(false);

  std::string from;
  CLI::App* import_command = app.add_subcommand("import", "make a checkpoint of a Hugging Face folder");
  import_command->add_option("--from", from, "folder with config.json and weights")->required();
  import_command->add_option("--out", exporting.out, "folder of checkpoints to make")->required();
  muster::trainer::PreflightOptions preflight;
  CLI::App* preflight_command =
      app.add_subcommand("preflight", "check the devices of this machine; started by the worker daemon");
  preflight_command->add_option("--cuda", preflight.slots, "names of the CUDA devices to check, in their order")
      ->delimiter(',');
  preflight_command->add_option("--host", preflight.host, "address at which other ranks reach this machine")
      ->capture_default_str();

  if (const int code = muster::ParseFlags(app, argc, argv); code >= 0) return code;
  if (preflight_command->parsed()) {
    preflight.cuda = !preflight.slots.empty();
    Preflight(preflight);
    return 0;
  }
  absl::Status status;
  if (run_command->parsed()) {
    muster::SetLogContext({muster::RankId{muster::JobId(job), generation, rank}});
    run.link.key.set_job(job);
    run.link.key.set_generation(generation);
    run.link.key.set_rank(rank);
    status = Run(run);
  } else if (sample_command->parsed()) {
    status = Sample(checkpoint, threads, library, tokenizer, sample);
  } else if (export_command->parsed()) {
    status = Export(checkpoint, exporting);
  } else if (inspect_command->parsed()) {
    status = Inspect(library, options);
  } else if (import_command->parsed()) {
    status = Import(from, exporting.out);
  } else {
    status = Evaluate(checkpoint, threads, library, tokens, sequences, json);
  }
  if (status.ok() && !run_command->parsed()) status = muster::FlushStandardOutput();
  if (status.ok()) return 0;
  if (run_command->parsed()) {
    muster::LogError("rank failed", {{"error", status.message()}});
  } else {
    // These run in the place of the CLI's commands, so they speak as it does.
    Print(stderr, absl::StrCat("muster: ", status.message()));
    return CommandExitCode(status);
  }
  return muster::engine::IsNonFinite(status) ? muster::kNonFiniteExitCode : 1;
}

}  // namespace

// LibTorch's static objects take 60 ms to destroy, a quarter of what the process takes to start, and nothing waits for
// their destructors. A sanitizer looks for leaks after them.
int main(int argc, char** argv) {
  const int code = RunProgram(argc, argv);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return code;
#else
  std::fflush(nullptr);
  _exit(code);
#endif
}
