#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

absl::Status Delete(Client& client, const std::string& name, bool ask, Format format) {
  // The coordinator accepts deleting an unknown job, for retries; here a mistyped name must be an error.
  const absl::StatusOr<v1::GetJobReply> got = client.GetJob(name);
  // It may name a run; if it matches several other jobs, Delete says so.
  const bool several = absl::IsFailedPrecondition(got.status());
  if (!got.ok() && !several) return got.status();
  const std::string what = several ? absl::StrCat(OneLine(name), " (all its replicas)")
                                   : absl::StrCat(OneLine(got->job().id()), " (", StateName(got->job().state()), ")");
  if (ask) {
    // It shows which job a prefix or @last resolves to.
    const absl::Status yes =
        Confirm(absl::StrCat("delete ", what, " with its events, metrics and logs?"), "not deleted");
    if (!yes.ok()) return yes;
  }
  const absl::StatusOr<v1::DeleteReply> reply = client.Delete(several ? name : got->job().id());
  if (!reply.ok()) return reply.status();
  if (several) {
    Say(absl::StrCat(OneLine(name), " deleted, all replicas"));
  } else if (format == Format::kTable) {
    Say(absl::StrCat(OneLine(got->job().id()), " deleted"));
  } else {
    PrintJob(got->job(), format);
  }
  return absl::OkStatus();
}

}  // namespace

void RegisterDelete(CLI::App& app, Invocation& invocation) {
  const auto yes = std::make_shared<bool>(false);
  const Verb verb = {"delete", "Delete ended jobs with their events, metrics and logs; checkpoints stay",
                     "muster delete -y gpt2-tiny-x7f2"};
  CLI::App* command = AddJobVerb(app, invocation, verb, [yes](Client& client, const std::string& name, Format format) {
    return Delete(client, name, !*yes, format);
  });
  command->add_flag("-y,--yes", *yes, "do not ask for confirmation; needed where standard input is no terminal");
}

}  // namespace muster::cli
