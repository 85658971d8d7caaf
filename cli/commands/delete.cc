#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/output/format.h"

namespace muster::cli {

void RegisterDelete(CLI::App& app, Invocation& invocation) {
  const Verb verb = {"delete", "Forget ended jobs, their events, metrics and logs; checkpoints stay",
                     "muster delete gpt2-tiny-x7f2"};
  AddJobVerb(app, invocation, verb, [](Client& client, const std::string& name, Format format) -> absl::Status {
    // The coordinator accepts deleting an unknown job, for retries; here a mistyped name must be an error.
    const absl::StatusOr<v1::GetJobReply> got = client.GetJob(name);
    if (absl::IsFailedPrecondition(got.status())) {  // it may name a run; if it fits several other jobs, Delete says so
      const absl::StatusOr<v1::DeleteReply> all = client.Delete(name);
      if (all.ok()) Say(absl::StrCat(OneLine(name), " deleted, all replicas"));
      return all.status();
    }
    if (!got.ok()) return got.status();
    const absl::StatusOr<v1::DeleteReply> reply = client.Delete(got->job().id());
    if (!reply.ok()) return reply.status();
    if (format == Format::kTable) {
      Say(absl::StrCat(OneLine(got->job().id()), " deleted"));
    } else {
      PrintJob(got->job(), format);
    }
    return absl::OkStatus();
  });
}

}  // namespace muster::cli
