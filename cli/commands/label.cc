#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/commands/commands.h"
#include "cli/output_format.h"

namespace muster::cli {
namespace {

struct LabelFlags {
  std::string job;
  std::vector<std::string> changes;
  Format format = Format::kTable;
};

// "team=nlp" sets, "team-" removes.
absl::StatusOr<v1::LabelRequest> RequestOf(const std::string& job, const std::vector<std::string>& changes) {
  v1::LabelRequest request;
  request.set_job(job);
  for (const std::string& change : changes) {
    if (absl::StrContains(change, "=")) {
      request.add_set(change);
    } else if (change.size() > 1 && absl::EndsWith(change, "-")) {
      request.add_remove(std::string(absl::StripSuffix(change, "-")));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", change, "\": expected KEY=VALUE to set a label, or KEY- to remove one"));
    }
  }
  return request;
}

}  // namespace

void RegisterLabel(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<LabelFlags>();
  CLI::App* command = AddCommand(app, "label", kGroupSteer, "Set and remove labels of a job",
                                 "muster label @last team=nlp stage-\nmuster ps -a -l team=nlp");
  AddJob(command, flags->job);
  command->add_option("CHANGE", flags->changes, "KEY=VALUE sets a label, KEY- removes it")->required();
  AddFormat(command, flags->format, {"table", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    absl::StatusOr<v1::LabelRequest> request = RequestOf("", flags->changes);
    if (!request.ok()) return request.status();
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<std::string> job = invocation.JobNamed(flags->job, **client);
    if (!job.ok()) return job.status();
    request->set_job(*job);
    const absl::StatusOr<v1::LabelReply> reply = (*client)->Label(*request);
    if (!reply.ok()) return reply.status();
    const auto& labels = reply->job().labels();
    PrintChange(reply->job(), labels.empty() ? "no labels" : absl::StrCat("labels ", absl::StrJoin(labels, ", ")),
                flags->format);
    return kOk;
  });
}

void RegisterNote(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string job, text;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "note", kGroupSteer, "Write one line about a job, for those who look at it",
                                 "muster note @last \"diverged: warmup too short\"");
  AddJob(command, flags->job);
  invocation.may_be_empty.insert(
      command->add_option("TEXT", flags->text, "one line of at most 1024 bytes; an empty one removes the note")
          ->required());
  AddFormat(command, flags->format, {"table", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<std::string> job = invocation.JobNamed(flags->job, **client);
    if (!job.ok()) return job.status();
    v1::NoteRequest request;
    request.set_job(*job);
    request.set_text(flags->text);
    const absl::StatusOr<v1::NoteReply> reply = (*client)->Note(request);
    if (!reply.ok()) return reply.status();
    const std::string& note = reply->job().note();
    PrintChange(reply->job(), note.empty() ? "no note" : absl::StrCat("note \"", note, "\""), flags->format);
    return kOk;
  });
}

}  // namespace muster::cli
