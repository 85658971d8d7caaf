#include <algorithm>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/follow_job.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "common/event_kinds.h"
#include "common/flags/suggest.h"
#include "common/message/tree.h"

namespace muster::cli {

namespace {

constexpr size_t kAlignedTogether = 10'000;  // events that are kept in memory
constexpr int kMostSubjectColumns = 24;      // of those that are aligned: one long id does not wrap all other lines

// Whether "rank.exited" is one of {"rank"} or {"rank.exited"}; no types: all are.
bool IsOfType(const std::string& kind, const std::vector<std::string>& types) {
  return types.empty() || std::any_of(types.begin(), types.end(), [&](const std::string& type) {
           return kind == type || absl::StartsWith(kind, type + ".");
         });
}

// Why there are no events of a type, with those of its family, or else all families. Empty: there are. For
// CLI::Validator.
std::string WhyNoType(std::string& type) {
  if (IsEventKind(type)) return "";
  const std::vector<std::string> all = EventKindsAndFamilies();
  const std::string family = type.substr(0, type.find('.'));
  std::vector<std::string> near;
  for (const std::string& name : all) {
    const bool fits = IsEventKind(family) ? IsOfType(name, {family}) : !absl::StrContains(name, '.');
    if (fits) near.push_back(name);
  }
  const std::string nearest = Nearest(type, all);
  return absl::StrCat("\"", type, "\" is not one of ", absl::StrJoin(near, ", "),
                      nearest.empty() ? "" : absl::StrCat(", did you mean ", nearest, "?"));
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
      ->check(CLI::Validator(WhyNoType, ""))
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
    const bool count_here = !flags->types.empty() && flags->tail.value_or(0) > 0;
    if (flags->tail && !count_here) request.set_tail(*flags->tail);
    // Printed when it is known how wide their subjects are; while following, as they come.
    std::deque<v1::StateEvent> kept;
    bool any = false;
    int subject_columns = 0;
    const auto print = [&](const v1::StateEvent& event) {
      const Screen screen = invocation.Out();  // it may have been resized
      Print(flags->format == Format::kJson ? LineOf(MessageTree(event))
                                           : Wrapped(EventLine(event, screen, subject_columns), screen.width));
    };
    const auto align = [&](const v1::StateEvent& event) {
      subject_columns = std::max(subject_columns, std::min(kMostSubjectColumns, Width(EventSubject(event))));
    };
    const auto flush = [&] {
      for (const v1::StateEvent& event : kept) align(event);
      for (const v1::StateEvent& event : kept) print(event);
      kept.clear();
    };
    const auto wanted = [&](const v1::WatchItem& item) {
      return item.has_event() && IsOfType(item.event().kind(), flags->types);
    };
    if (!flags->follow || count_here) {
      v1::WatchRequest until_now = request;
      until_now.set_follow(false);
      const absl::Status read = ReadItems(**client, until_now, [&](const v1::WatchItem& item) {
        if (!item.cursor().empty()) request.set_cursor(item.cursor());
        if (!wanted(item)) return;
        any = true;
        kept.push_back(item.event());
        if (count_here) {
          if (kept.size() > *flags->tail) kept.pop_front();
        } else if (flags->format == Format::kJson || kept.size() >= kAlignedTogether) {
          flush();
        }
      });
      flush();
      if (!read.ok()) return read;
    }
    if (flags->follow) {
      const auto take = [&](const v1::WatchItem& item) {
        if (!wanted(item)) return true;
        align(item.event());
        print(item.event());
        return true;
      };
      return FollowItems(**client, request,
                         {.take = take,
                          .timeout = (*client)->connection().timeout,
                          .detached = "detached",
                          .after_timeout = "detached"});
    }
    if (!any && flags->tail != 0u && flags->format == Format::kTable) {
      Say(flags->types.empty() ? "no events" : "no events of these types");
    }
    return kOk;
  });
}

}  // namespace muster::cli
