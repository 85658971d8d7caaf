#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/commands/commands.h"
#include "cli/job_file.h"
#include "cli/spec/problem.h"
#include "cli/spec/sample_job.h"
#include "common/file_error.h"
#include "common/name.h"

namespace muster::cli {
namespace {

struct InitFlags {
  std::string file = "job.yaml";
  SampleJob job;
  bool force = false;
};

// Unlike WriteFile of config.h: readable by all users, and never overwrites a user's file unless --force is given.
absl::Status WriteJobFile(const std::string& path, const std::string& text, bool force) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (force ? O_TRUNC : O_EXCL), 0644);
  if (file < 0 && errno == EEXIST) {
    return absl::AlreadyExistsError(absl::StrCat(path, " already exists; name another file, or use --force"));
  }
  if (file < 0) return CreateError(errno, path);
  const ssize_t written = write(file, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  if (close(file) == 0 && written == static_cast<ssize_t>(text.size())) return absl::OkStatus();
  unlink(path.c_str());
  return FileError(error, absl::StrCat("cannot write ", path));
}

// Values from the command line obey the rules of a job file. Errors name the flags: the file is not written yet.
absl::Status CheckFlags(const SampleJob& job, const std::string& text) {
  const std::string family = job.model.substr(0, job.model.find(':'));
  const auto* member = v1::Model::descriptor()->FindFieldByName(family);
  if (member != nullptr && member->message_type() != nullptr &&
      member->message_type()->FindFieldByName("size") == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("--model ", family,
                                                   ": init writes jobs of language models that have sizes; for others: "
                                                   "muster train --model ",
                                                   family, " --print, with its flags"));
  }
  std::vector<Problem> problems = ReadSpec(text, "", {}).problems;
  for (Problem& problem : problems) {
    const char* flag = problem.path == "name"              ? "--name"
                       : problem.path == "data.tokens"     ? "--data"
                       : problem.path == "data.validation" ? "--validation"
                                                           : "--model";
    problem.where = Location{std::make_shared<const std::string>(flag), 0, 0, problem.path};
  }
  if (!problems.empty()) return ToStatus(problems);
  if (IsName(job.name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--name: invalid job name \"", job.name,
                                                 "\": use a-z, 0-9 and -, not at either end, at most 40 characters"));
}

absl::StatusOr<ExitCode> Run(const InitFlags& flags) {
  const std::string text = WriteSampleJob(flags.job);
  if (absl::Status status = CheckFlags(flags.job, text); !status.ok()) return status;
  if (flags.file == "-") {
    Print(text);
    return kOk;
  }
  const absl::Status written = WriteJobFile(flags.file, text, flags.force);
  if (!written.ok()) return written;
  std::error_code error;
  const std::filesystem::path tokens = std::filesystem::path(flags.file).parent_path() / flags.job.tokens;
  const std::string prepare =
      std::filesystem::exists(tokens, error)
          ? ""
          : absl::StrCat("put tokens into ", flags.job.tokens, " (muster data prepare), then: ");
  Say(absl::StrCat("wrote ", flags.file, ". Next: ", prepare, "muster submit ", flags.file));
  return kOk;
}

}  // namespace

void RegisterInit(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<InitFlags>();
  CLI::App* command = AddCommand(app, "init", kGroupRun, "Write a commented job file as a starting point",
                                 "muster init my-job.yaml --data train.bin\nmuster init - --model gpt2:small");
  command->add_option("FILE", flags->file, "file to write; - for standard output")->capture_default_str();
  command->add_option("--model", flags->job.model, "family:size")->type_name("MODEL")->capture_default_str();
  command->add_option("--data", flags->job.tokens, "token file to train on")->type_name("FILE")->capture_default_str();
  command->add_option("--validation", flags->job.validation, "token file to validate on")->type_name("FILE");
  auto* name = command->add_option("--name", flags->job.name, "name of the job (default: after the model)");
  name->type_name("NAME");
  command->add_flag("--force", flags->force, "overwrite the file");
  OnRun(command, invocation, [flags, name]() -> absl::StatusOr<ExitCode> {
    if (name->count() == 0) flags->job.name = absl::StrReplaceAll(flags->job.model, {{":", "-"}});
    return Run(*flags);
  });
}

}  // namespace muster::cli
