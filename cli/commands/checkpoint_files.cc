// The checkpoints on disk below a checkpoint.path, merged with those that the coordinator has published.
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "checkpoint/checkpoint.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_checkpoints.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/bytes.h"
#include "common/file_error.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::StepName;

struct CheckpointFilesFlags {
  std::string from;
  Format format = Format::kTable;
};

// One step's checkpoint. Lists are newest first.
struct Found {
  StepName name;
  std::string directory;  // path
  bool published = false;
  bool on_disk = false;
  uint64_t bytes = 0;
  absl::Time written = absl::InfinitePast();
  std::string damage;      // empty: none found
  std::string unreadable;  // why this process may not read it, whole or not; empty: it may
};

struct Place {
  std::string path;  // checkpoint.path, or one step's folder
  std::string job;   // empty if a path was given
  std::vector<v1::PublishedCheckpoint> published;
};

// Takes an existing folder as it is; anything else is a job, whose folder and published checkpoints the coordinator
// knows.
absl::StatusOr<Place> Find(const Invocation& invocation, const std::string& from) {
  std::error_code error;
  if (fs::is_directory(from, error)) return Place{.path = from, .job = "", .published = {}};
  if (error == std::errc::permission_denied) return FileError(EACCES, from);
  if (absl::StrContains(from, '/')) return absl::NotFoundError(absl::StrCat("there is no folder ", from));
  absl::StatusOr<JobCheckpoints> job = FindJobCheckpoints(invocation, from);
  if (!job.ok()) return job.status();
  return Place{.path = job->path, .job = job->job, .published = std::move(job->published)};
}

void Measure(Found& step) {
  std::error_code error;
  for (auto file = fs::directory_iterator(step.directory, error); !error && file != fs::directory_iterator();
       file.increment(error)) {
    const uint64_t bytes = file->file_size(error);
    if (!error) step.bytes += bytes;
  }
  const auto changed = fs::last_write_time(step.directory, error);
  if (!error) step.written = absl::FromChrono(std::chrono::file_clock::to_sys(changed));
}

// Checks every step; reads all bytes if `verification` asks for it.
std::vector<Found> Look(const Place& place, checkpoint::Verification verification) {
  std::map<StepName, Found> steps;
  std::error_code error;
  if (fs::exists(absl::StrCat(place.path, "/", checkpoint::kManifestFile), error)) {
    const StepName name = checkpoint::ParseDirectory(fs::absolute(place.path).lexically_normal().filename().string())
                              .value_or(StepName{});
    steps[name] = {.name = name, .directory = place.path, .on_disk = true};
  }
  for (const StepName& name : checkpoint::List(place.path)) {
    const std::string directory = absl::StrCat(place.path, "/", name.Directory());
    // In a folder that jobs shared under an older Muster: what others wrote is not this job's.
    const std::optional<std::string> writer = checkpoint::WriterOf(directory);
    if (!place.job.empty() && writer.has_value() && *writer != place.job) continue;
    steps[name] = {.name = name, .directory = directory, .on_disk = true};
  }
  for (const v1::PublishedCheckpoint& published : place.published) {
    Found& step = steps[{published.step(), published.generation()}];
    step.name = {published.step(), published.generation()};
    step.directory = absl::StrCat(place.path, "/", published.directory());
    step.published = true;
    step.written = FromProto(published.published());
  }
  std::vector<Found> found;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    Measure(step->second);
    const auto opened = checkpoint::Checkpoint::Open(step->second.directory, checkpoint::Verification::kAsRead);
    std::vector<std::string> damage;
    if (absl::IsPermissionDenied(opened.status())) {
      step->second.unreadable = std::string(opened.status().message());
    } else if (!opened.ok()) {
      damage.emplace_back(opened.status().message());
    } else if (absl::Status mine =
                   place.job.empty() ? absl::OkStatus() : CheckWriter(step->second.directory, place.job);
               !mine.ok()) {
      damage.emplace_back(mine.message());
    } else if (verification == checkpoint::Verification::kEveryByte) {
      for (const absl::Status& status : opened->Verify()) damage.emplace_back(status.message());
    }
    for (const std::string& text : damage) {
      absl::StrAppend(&step->second.damage, step->second.damage.empty() ? "" : "; ", text);
    }
    found.push_back(std::move(step->second));
  }
  return found;
}

nlohmann::ordered_json Tree(const std::vector<Found>& steps) {
  nlohmann::ordered_json tree = nlohmann::ordered_json::array();
  for (const Found& step : steps) {
    nlohmann::ordered_json entry = {{"step", step.name.step},
                                    {"generation", step.name.generation},
                                    {"directory", step.directory},
                                    {"published", step.published},
                                    {"on_disk", step.on_disk},
                                    {"bytes", step.bytes},
                                    {"whole", step.damage.empty() && step.unreadable.empty()}};
    if (step.written != absl::InfinitePast()) {
      entry["written"] = absl::FormatTime(absl::RFC3339_sec, step.written, absl::UTCTimeZone());
    }
    if (!step.damage.empty()) entry["damage"] = step.damage;
    if (!step.unreadable.empty()) entry["whole"] = nullptr, entry["unreadable"] = step.unreadable;
    tree.push_back(std::move(entry));
  }
  return tree;
}

void Show(const std::vector<Found>& steps, const Place& place, const char* good, Format format, const Screen& screen) {
  if (format == Format::kJson || format == Format::kYaml) return PrintTree(Tree(steps), format);
  if (format == Format::kName) {
    for (const Found& step : steps) Print(step.directory + "\n");
    return;
  }
  const absl::Time now = absl::Now();
  std::vector<Column> columns = {{"STEP", true}, {"GENERATION", true}, {"SIZE", true}, {"AGE", true}};
  if (!place.job.empty()) columns.push_back({"PUBLISHED"});
  columns.push_back({.title = "STATE", .narrow = Narrow::kWrap});
  Table table(columns);
  for (const Found& step : steps) {
    std::vector<Cell> row = {absl::StrCat(step.name.step), absl::StrCat(step.name.generation), FormatBytes(step.bytes),
                             Age(now - step.written)};
    if (!place.job.empty()) row.emplace_back(step.published ? "yes" : "no");
    row.push_back(!step.unreadable.empty() ? Cell(absl::StrCat("unknown: ", step.unreadable), Colour::kYellow)
                  : step.damage.empty()    ? Cell(good, Colour::kGreen)
                                           : Cell(absl::StrCat("damaged: ", step.damage), Colour::kRed));
    table.Add(std::move(row));
  }
  Print(table.Render(screen));
}

absl::StatusOr<ExitCode> List(const Invocation& invocation, const CheckpointFilesFlags& flags) {
  const absl::StatusOr<Place> place = Find(invocation, flags.from);
  if (!place.ok()) return place.status();
  if (absl::Status status = checkpoint::CheckListable(place->path); !status.ok()) return status;
  const std::vector<Found> steps = Look(*place, checkpoint::Verification::kAsRead);
  if (steps.empty() && flags.format == Format::kTable) {
    Say(absl::StrCat("no checkpoints below ", place->path));
    return kOk;
  }
  Show(steps, *place, "whole", flags.format, invocation.Out());
  return kOk;
}

absl::StatusOr<ExitCode> Verify(const Invocation& invocation, const CheckpointFilesFlags& flags) {
  const absl::StatusOr<Place> place = Find(invocation, flags.from);
  if (!place.ok()) return place.status();
  if (absl::Status status = checkpoint::CheckListable(place->path); !status.ok()) return status;
  const std::vector<Found> steps = Look(*place, checkpoint::Verification::kEveryByte);
  if (steps.empty()) return absl::NotFoundError(absl::StrCat("no checkpoints below ", place->path));
  Show(steps, *place, "verified", flags.format, invocation.Out());
  for (const Found& step : steps) {
    if (!step.damage.empty()) return kJobFailed;
  }
  for (const Found& step : steps) {
    if (!step.unreadable.empty()) return absl::PermissionDeniedError(step.unreadable);
  }
  return kOk;
}

}  // namespace

void RegisterCheckpointFiles(CLI::App& app, Invocation& invocation) {
  const struct {
    const char *name, *description, *example;
    absl::StatusOr<ExitCode> (*run)(const Invocation&, const CheckpointFilesFlags&);
  } commands[] = {
      {"ls", "List the checkpoints of a job or folder, and whether they are complete",
       "muster checkpoint ls @last\nmuster checkpoint ls runs/gpt2-tiny-x7f2 -o json", List},
      {"verify", "Verify every byte of the checkpoints; exit code 1 if one is corrupt",
       "muster checkpoint verify runs/gpt2-tiny-x7f2\nmuster checkpoint verify @last -o json", Verify},
  };
  for (const auto& entry : commands) {
    const auto flags = std::make_shared<CheckpointFilesFlags>();
    CLI::App* command = AddCommand(app, entry.name, "Commands", entry.description, entry.example);
    command->add_option("FROM", flags->from, "job, folder of checkpoints, or one step's folder")->required();
    AddFormat(command, flags->format, {"table", "json", "yaml", "name"});
    OnRun(command, invocation, [&invocation, flags, run = entry.run] { return run(invocation, *flags); });
  }
}

}  // namespace muster::cli
