#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"

namespace muster::cli {
namespace {

// What continues a job that has ended. Empty: it has not, or it wrote no checkpoints.
std::string AfterItsEnd(Client& client, const std::string& name) {
  const absl::StatusOr<v1::GetJobReply> found = client.GetJob(name);
  if (!found.ok() || found->job().state() < v1::JOB_STATE_COMPLETED) return "";
  const std::string& path = found->job().spec().train().checkpoint().path();
  if (path.empty()) return "; only paused jobs are resumed: submit it again";
  return absl::StrCat("; only paused jobs are resumed: submit it again with --set checkpoint.resume_from=",
                      absl::StrReplaceAll(path, {{"{job}", found->job().id()}}));
}

}  // namespace

void RegisterResume(CLI::App& app, Invocation& invocation) {
  const Verb verb = {"resume", "Queue a paused job again", "muster resume @last"};
  AddJobVerb(app, invocation, verb, [](Client& client, const std::string& name, Format format) {
    const absl::StatusOr<v1::ResumeReply> reply = client.Resume(name);
    if (reply.ok()) PrintJobs(*reply, format);
    if (!absl::IsFailedPrecondition(reply.status())) return reply.status();
    return absl::FailedPreconditionError(absl::StrCat(reply.status().message(), AfterItsEnd(client, name)));
  });
}

}  // namespace muster::cli
