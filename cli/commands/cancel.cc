#include <unistd.h>

#include <iostream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

// Only interactive users are asked for confirmation; the prompt shows which job a prefix or @last resolves to.
bool Agrees(const std::string& what) {
  std::cerr << "cancel " << what << "? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

void RegisterCancel(CLI::App& app, Invocation& invocation) {
  const auto yes = std::make_shared<bool>(false);
  const Verb verb = {"cancel", "End a job; it writes a checkpoint first if it can", "muster cancel -y gpt2-tiny-x7f2"};
  CLI::App* command =
      AddJobVerb(app, invocation, verb, [yes](Client& client, const std::string& name, Format format) -> absl::Status {
        std::string job = name;
        if (!*yes && isatty(STDIN_FILENO) != 0) {
          const absl::StatusOr<v1::GetJobReply> got = client.GetJob(name);
          // It may name a run; if it fits several other jobs, Cancel says so.
          const bool several = absl::IsFailedPrecondition(got.status());
          if (!got.ok() && !several) return got.status();
          if (!several) job = got->job().id();
          if (!Agrees(several ? absl::StrCat(OneLine(name), " (all its replicas)")
                              : absl::StrCat(OneLine(job), " (", StateName(got->job().state()), ")"))) {
            Say("not cancelled");
            return absl::OkStatus();
          }
        }
        const absl::StatusOr<v1::CancelReply> reply = client.Cancel(job);
        if (reply.ok()) PrintJobs(*reply, format);
        return reply.status();
      });
  command->add_flag("-y,--yes", *yes, "do not ask");
}

}  // namespace muster::cli
