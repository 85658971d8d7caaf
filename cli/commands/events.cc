#include <algorithm>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/follow_job.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "cli/spec/writer.h"

namespace muster::cli {

namespace {

// Whether "rank.exited" is one of {"rank"} or {"rank.exited"}; no types: all are.
bool IsOfType(const std::string& kind, const std::vector<std::string>& types) {
  return types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
           return kind == type || absl::StartsWith(kind, type + ".");
         });
}

}  // namespace

void RegisterEvents(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string job;
    bool follow = false;
    std::optional<uint32_t> tail;
    std::vector<std::string> types;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "events", kGroupLook, "Show the events of a job, or of all jobs and nodes",
                                 "muster events @last\nmuster events -f --type job,rank.exited");
  command->add_option("JOB", flags->job, "id, a unique prefix of one, or @last; default: all jobs and nodes");
  command->add_flag("-f,--follow", flags->follow, "keep printing new events");
  command->add_option("--tail", flags->tail, "only the newest N")->type_name("N");
  command->add_option("--type", flags->types, "only events of these types: job, rank.exited, checkpoint, ...")
      ->delimiter(',')
      ->type_name("TYPE,...");
  AddFormat(command, flags->format, {"table", "json"});
  OnRun(command, invocation, [&invocation, flags, command]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const bool all = flags->job.empty() && command->get_option("JOB")->count() == 0;
    const absl::StatusOr<std::string> job = all ? std::string() : invocation.JobNamed(flags->job, **client);
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
    // The coordinator cannot count the newest of a type.
    const bool count_here = !flags->types.empty() && !flags->follow;
    if (flags->tail && !count_here) request.set_tail(*flags->tail);
    const Screen screen = invocation.Out();
    std::deque<std::string> newest;
    bool any = false;
    const auto take = [&](const v1::WatchItem& item) {
      if (!item.has_event() || !IsOfType(item.event().kind(), flags->types)) return true;
      any = true;
      std::string line = flags->format == Format::kJson ? LineOf(MessageTree(item.event()))
                                                        : Wrapped(EventLine(item.event(), screen), screen.width);
      if (!count_here || !flags->tail) {
        Print(line);
        return true;
      }
      newest.push_back(std::move(line));
      if (newest.size() > *flags->tail) newest.pop_front();
      return true;
    };
    if (flags->follow) {
      return FollowItems(**client, request,
                         {.take = take,
                          .timeout = (*client)->connection().timeout,
                          .detached = "detached",
                          .after_timeout = "detached"});
    }
    if (absl::Status read = ReadItems(**client, request, take); !read.ok()) return read;
    for (const std::string& line : newest) Print(line);
    if (!any && flags->format == Format::kTable) Say(flags->types.empty() ? "no events" : "no events of these types");
    return kOk;
  });
}

}  // namespace muster::cli
