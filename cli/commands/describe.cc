#include <memory>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/follow_job.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output_format.h"

namespace muster::cli {

void RegisterDescribe(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string job;
    Format format = Format::kTable;
  };
  constexpr uint32_t kShownEvents = 10;
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "describe", kGroupLook, "Show the state, generations, checkpoints and spec of a job",
                 "muster describe @last\nmuster describe gpt2-tiny-x7f2 -o json");
  AddJob(command, flags->job);
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<std::string> job = invocation.JobNamed(flags->job, **client);
    if (!job.ok()) return job.status();
    const absl::StatusOr<v1::GetJobReply> reply = (*client)->GetJob(*job);
    if (!reply.ok()) return reply.status();
    if (flags->format != Format::kTable) {
      PrintMessage(*reply, flags->format);
      return kOk;
    }
    v1::WatchRequest request;
    request.set_job(reply->job().id());
    request.set_events(true);
    request.set_tail(kShownEvents);
    std::vector<v1::StateEvent> events;
    const absl::Status read = ReadItems(**client, request, [&](const v1::WatchItem& item) {
      if (item.has_event()) events.push_back(item.event());
    });
    const Screen screen = invocation.Out();
    Print(Wrapped(DescribeJob(*reply, events, screen, absl::Now()), screen.width));
    if (!read.ok()) return read;
    return kOk;
  });
}

}  // namespace muster::cli
