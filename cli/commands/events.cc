#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/follow_job.h"
#include "cli/output/describe.h"
#include "cli/output_format.h"
#include "cli/spec/writer.h"

namespace muster::cli {

void RegisterEvents(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string job;
    bool follow = false;
    std::optional<uint32_t> tail;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "events", kGroupLook, "Show what happened to a job, or to all jobs and nodes",
                                 "muster events @last\nmuster events -f");
  command->add_option("JOB", flags->job, "id, a unique beginning of one, or @last; default: all jobs and nodes");
  command->add_flag("-f,--follow", flags->follow, "keep printing new events");
  command->add_option("--tail", flags->tail, "only the newest N")->type_name("N");
  AddFormat(command, flags->format, {"table", "json"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<std::string> job = invocation.JobNamed(flags->job, **client);
    if (!job.ok()) return job.status();
    // Makes a plain call first, because its error message is the clear one.
    std::string id;
    if (!job->empty()) {
      const absl::StatusOr<v1::GetJobReply> got = (*client)->GetJob(*job);
      if (!got.ok()) return got.status();
      id = got->job().id();
    } else if (const auto version = (*client)->Version(); !version.ok()) {
      return version.status();
    }
    v1::WatchRequest request;
    request.set_job(id);
    request.set_events(true);
    request.set_follow(flags->follow);
    if (flags->tail) request.set_tail(*flags->tail);
    const Screen screen = invocation.Out();
    const auto take = [&](const v1::WatchItem& item) {
      if (!item.has_event()) return true;
      if (flags->format == Format::kJson) {
        PrintLine(MessageTree(item.event()));
      } else {
        Print(EventLine(item.event(), screen));
      }
      return true;
    };
    if (flags->follow) {
      return FollowItems(
          **client, request, (*client)->connection().timeout, take, [] {}, "stopped looking");
    }
    if (absl::Status read = ReadItems(**client, request, take); !read.ok()) return read;
    return kOk;
  });
}

}  // namespace muster::cli
