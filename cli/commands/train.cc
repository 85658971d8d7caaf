#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/submission.h"
#include "cli/job_file.h"
#include "cli/output/format.h"
#include "cli/spec/writer.h"
#include "common/flags/suggest.h"
#include "common/message/fields.h"
#include "proto/spec.pb.h"

namespace muster::cli {
namespace {

// Flags that each set one path of the spec, typed by the spec's reader.
struct PathFlag {
  const char* flag;
  const char* path;
  const char* type;
  const char* help;
};
constexpr PathFlag kPathFlags[] = {
    {"--size", "model.size", "SIZE", "tiny, small, medium, large or xl"},
    {"--from", "model.from", "FOLDER", "Hugging Face folder with the weights to start from; also sets the size"},
    {"--data", "data.tokens", "FILE", "token file to train on (muster data prepare makes one)"},
    {"--images", "data.images", "FILE", "image file to train on (muster data prepare-images makes one)"},
    {"--validation", "data.validation", "FILE", "token or image file to validate on"},
    {"--order", "data.order", "ORDER", "shuffled or sequential"},
    {"--ranks", "resources.ranks", "N", "ranks (default 1)"},
    {"--device", "resources.device", "DEVICE", "auto, cpu or cuda"},
    {"--steps", "steps", "N", "optimizer steps in all"},
    {"--batch", "batch.sequences", "N", "sequences a step, over all ranks"},
    {"--microbatch", "batch.microbatch", "N", "sequences a rank takes at once"},
    {"--optimizer", "optimizer.kind", "KIND", "adamw, sgd, lion, muon or adafactor"},
    {"--lr", "optimizer.lr", "X", "peak learning rate"},
    {"--lr-schedule", "optimizer.lr_schedule.kind", "KIND", "constant, linear, cosine or step"},
    {"--warmup-steps", "optimizer.lr_schedule.warmup_steps", "N", "steps from 0 to the peak rate"},
    {"--min-lr", "optimizer.lr_schedule.min_lr", "X", "last learning rate of linear and cosine"},
    {"--weight-decay", "optimizer.weight_decay", "X", "weight decay of tensors with two dimensions or more"},
    {"--clip-norm", "optimizer.clip_norm", "X", "largest gradient norm; 0: no clipping"},
    {"--momentum", "optimizer.momentum", "X", "of sgd and muon"},
    {"--validate-every", "validation.every_steps", "N", "steps between validations"},
    {"--checkpoint", "checkpoint.path", "FOLDER", "folder for checkpoints"},
    {"--checkpoint-every", "checkpoint.every_steps", "N", "steps between checkpoints"},
    {"--resume-from", "checkpoint.resume_from", "FOLDER", "another job's checkpoints; resumes from the newest"},
    {"--seed", "seed", "N", "seed of initialization and data order"},
    {"--priority", "priority", "N", "higher runs first"},
    {"--project", "project", "NAME", "whose quota its slots count against"},
    {"--reservation", "resources.reservation", "NAME", "run on its nodes, while it lasts"},
    {"--time-limit", "time_limit", "TIME", "how long the job may run: 90m, 48h"},
    {"--max-restarts", "max_restarts", "N", "restarts without progress before the job fails"},
    {"--name", "name", "NAME", "name of the job"},
};

constexpr const char* kStrategies[] = {"single", "ddp", "zero1", "zero2", "zero3", "fsdp", "auto", "zero"};
constexpr char kModelFlag[] = "--model", kSizePath[] = "model.size", kStrategyFlag[] = "--strategy";
constexpr char kStrategyWords[] = "single, ddp, zero1, zero2, zero3, fsdp or auto";

// Why it is no strategy. Absent: it is one.
std::optional<Problem> StrategyProblem(const std::string& text) {
  const std::vector<std::string> known(std::begin(kStrategies), std::end(kStrategies));
  if (std::find(known.begin(), known.end(), text) != known.end()) return std::nullopt;
  const char* path = "strategy";
  // Of zero4 each stage is as near.
  return Problem{Location{std::make_shared<const std::string>(kStrategyFlag), 0, 0, path}, path,
                 absl::StrCat("expected ", kStrategyWords, ", got \"", OneLine(text), "\""),
                 absl::StartsWith(text, "zero") ? "" : Nearest(text, known)};
}

// "zero3" becomes kind zero, stage 3; other names are kinds themselves.
std::vector<Assignment> StrategyAssignments(const std::string& text) {
  if (text.size() == 5 && absl::StartsWith(text, "zero")) {
    return {{kStrategyFlag, "strategy.kind", "zero"}, {kStrategyFlag, "strategy.stage", text.substr(4)}};
  }
  return {{kStrategyFlag, "strategy.kind", text}};
}

// "gpt2" or "gpt2:tiny".
std::vector<Assignment> ModelAssignments(const std::string& text) {
  const size_t colon = text.find(':');
  std::vector<Assignment> assignments = {{kModelFlag, "model.family", text.substr(0, colon)}};
  if (colon != std::string::npos) assignments.push_back({kModelFlag, kSizePath, text.substr(colon + 1)});
  return assignments;
}

// Why the family takes no size. Absent: `text` has none, or it takes one, or there is no such family.
std::optional<Problem> SizeProblem(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const std::string family = text.substr(0, colon);
  const auto* const field = Member(*v1::Model::descriptor()->FindOneofByName("family"), family);
  if (field == nullptr) return std::nullopt;
  const std::vector<std::string> keys = AllKeys(*field->message_type());
  if (std::find(keys.begin(), keys.end(), "size") != keys.end()) return std::nullopt;
  return Problem{
      Location{std::make_shared<const std::string>(kModelFlag), 0, 0, kSizePath}, kSizePath,
      absl::StrCat(family, " has no sizes: use ", kModelFlag, " ", family, " with --set model.", keys.front(), "=..."),
      ""};
}

// A job without a name takes the name of its model.
void AddName(std::vector<Assignment>& assignments) {
  std::string family, size;
  for (const Assignment& assignment : assignments) {
    if (assignment.path == "name") return;
    if (assignment.path == "model.family") family = assignment.value;
    if (assignment.path == kSizePath) size = assignment.value;
  }
  // Without a family the error is that, not that the name is missing.
  const bool both = !family.empty() && !size.empty();
  if (!family.empty() || !size.empty()) {
    assignments.push_back({"--name", "name", both ? absl::StrCat(family, "-", size) : family + size});
  }
}

}  // namespace

void RegisterTrain(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string model, strategy;
    std::map<std::string, std::string> values;  // by path
    SetFlags set;
    bool print = false;
    SubmitOptions options;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "train", kGroupRun, "Train from flags, without a job file",
                                 "muster train --model gpt2:tiny --data train.bin --steps 1000 --lr 1e-3\n"
                                 "muster train --model gpt2 --size small --data train.bin --strategy zero3 --ranks 2 "
                                 "--steps 100 --print > job.yaml");
  command->add_option(kModelFlag, flags->model, "family, or family:size (gpt2:tiny)")->type_name("MODEL")->required();
  command->add_option(kStrategyFlag, flags->strategy, kStrategyWords)->type_name("STRATEGY");
  for (const PathFlag& flag : kPathFlags) {
    command->add_option(flag.flag, flags->values[flag.path], flag.help)->type_name(flag.type);
  }
  AddSetFlags(command, flags->set);
  command->add_flag("--print", flags->print, "print the spec and exit");
  AddSubmitFlags(command, flags->options);
  OnRun(command, invocation, [&invocation, flags, command]() -> absl::StatusOr<ExitCode> {
    std::vector<Assignment> assignments = ModelAssignments(flags->model);
    const std::optional<Problem> no_size = SizeProblem(flags->model);
    if (no_size.has_value()) assignments.pop_back();
    std::optional<Problem> no_strategy;
    if (!flags->strategy.empty()) no_strategy = StrategyProblem(flags->strategy);
    if (!flags->strategy.empty() && !no_strategy.has_value()) {
      for (Assignment& assignment : StrategyAssignments(flags->strategy)) assignments.push_back(std::move(assignment));
    }
    for (const PathFlag& flag : kPathFlags) {
      if (command->count(flag.flag) > 0) assignments.push_back({flag.flag, flag.path, flags->values[flag.path]});
    }
    AddName(assignments);
    absl::StatusOr<Reading> reading = LoadFlags(assignments, flags->set, TemplatesOf(invocation));
    if (!reading.ok()) return reading.status();
    if (no_size.has_value()) reading->problems.push_back(*no_size);
    if (no_strategy.has_value()) reading->problems.push_back(*std::move(no_strategy));
    for (const PathFlag& flag : kPathFlags) {
      const auto source = std::make_shared<const std::string>(flag.flag);
      reading->sources.SetIfMissing(flag.path, Location{source, 0, 0, flag.path});
    }
    if (flags->print) {
      if (!reading->problems.empty()) return ToStatus(reading->problems);
      Print(WriteSpec(reading->spec));
      return kOk;
    }
    return SubmitSpecs(invocation, {*reading}, flags->options);
  });
}

}  // namespace muster::cli
