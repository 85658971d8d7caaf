#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/repeat.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "common/flags/values.h"
#include "common/message/fields.h"
#include "common/message/tree.h"

namespace muster::cli {
namespace {

struct PsFlags {
  bool all = false;
  std::string user;
  std::vector<std::string> states, selector;
  bool watch = false;
  Format format = Format::kTable;
};

// The listed jobs that the flags select.
absl::StatusOr<v1::ListJobsReply> List(Client& client, const PsFlags& flags) {
  absl::StatusOr<v1::ListJobsReply> reply = client.ListJobs(flags.all || !flags.states.empty(), flags.selector);
  if (!reply.ok()) return reply;
  google::protobuf::RepeatedPtrField<v1::JobSummary> selected;
  for (v1::JobSummary& summary : *reply->mutable_jobs()) {
    const std::string state = StateName(summary.job().state());
    const bool of_state =
        flags.states.empty() || std::find(flags.states.begin(), flags.states.end(), state) != flags.states.end();
    if (of_state && (flags.user.empty() || summary.job().owner() == flags.user)) *selected.Add() = std::move(summary);
  }
  reply->mutable_jobs()->Swap(&selected);
  return reply;
}

std::string Text(const v1::ListJobsReply& reply, const PsFlags& flags, const Screen& screen) {
  if (flags.format == Format::kName) {
    std::string names;
    for (const v1::JobSummary& summary : reply.jobs()) absl::StrAppend(&names, summary.job().id(), "\n");
    return names;
  }
  return JobTable(reply, flags.format == Format::kWide, screen, absl::Now()).RenderOrBlocks(screen);
}

// On a terminal of known height as many jobs as fit, and how many more there are.
std::string WatchedPage(const v1::ListJobsReply& reply, const PsFlags& flags, const Screen& screen) {
  const auto fits = [&](const std::string& text) {
    return !screen.terminal || screen.height == 0 || std::count(text.begin(), text.end(), '\n') <= screen.height;
  };
  std::string all = Text(reply, flags, screen);
  if (fits(all)) return all;
  v1::ListJobsReply some = reply;
  for (int count = std::min(reply.jobs_size(), screen.height - 1); count > 0; --count) {
    some.mutable_jobs()->DeleteSubrange(count, some.jobs_size() - count);
    const int more = reply.jobs_size() - count;
    const std::string page = absl::StrCat(Text(some, flags, screen), more,
                                          more == 1 ? " more job does not fit\n" : " more jobs do not fit\n");
    if (fits(page)) return page;
  }
  return all;
}

absl::StatusOr<ExitCode> Once(Client& client, const PsFlags& flags, const Screen& screen) {
  const absl::StatusOr<v1::ListJobsReply> reply = List(client, flags);
  if (!reply.ok()) return reply.status();
  if (flags.format == Format::kJson || flags.format == Format::kYaml) {
    PrintTree(MessageTree(*reply)["jobs"], flags.format);
  } else if (reply->jobs().empty() && flags.format != Format::kName) {
    const bool selects = !flags.user.empty() || !flags.states.empty() || !flags.selector.empty();
    Say(selects ? "no such jobs" : flags.all ? "no jobs" : "no running or queued jobs; for ended jobs: muster ps -a");
  } else {
    Print(Text(*reply, flags, screen));
  }
  return kOk;
}

absl::StatusOr<ExitCode> Again(Client& client, const PsFlags& flags, const Screen& screen) {
  const bool json = flags.format == Format::kJson;
  const auto glance = [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<v1::ListJobsReply> reply = List(client, flags);
    if (!reply.ok()) return reply.status();
    Screen now = screen;
    const Screen size = ScreenOf(STDOUT_FILENO, /*no_colour=*/false);
    if (screen.width > 0) now.width = size.width;  // TERM=dumb has one, too
    now.height = size.height;
    return json ? LineOf(MessageTree(*reply)["jobs"]) : WatchedPage(*reply, flags, now);
  };
  return Repeat(json ? Screen{} : screen, !json, glance);
}

}  // namespace

void RegisterPs(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<PsFlags>();
  CLI::App* command = AddCommand(
      app, "ps", kGroupLook, "List jobs",
      "muster ps -a -o wide\nmuster ps --user ann --state queued,running\nmuster ps -a -l team=nlp\nmuster ps --watch");
  command->footer(
      absl::StrCat("Columns:\n"
                   "  TIME                        how long the job has held its slots, without the queue and pauses\n"
                   "  LEFT                        time until its last step, or until its time limit stops it\n"
                   "  AGE                         time since it was submitted\n\n",
                   command->get_footer()));
  command->add_flag("-a,--all", flags->all, "also show ended jobs");
  command->add_option("--user", flags->user, "only the jobs of this user")->type_name("NAME");
  command->add_option("--state", flags->states, "only jobs in these states: queued, running, failed, ...")
      ->delimiter(',')
      ->check(OneOf(EnumTexts(*v1::JobState_descriptor())).description(""))
      ->type_name("STATE,...");
  command->add_option("-l,--selector", flags->selector, "only jobs with these labels: team=nlp, stage!=test")
      ->delimiter(',')
      ->check([](const std::string& text) {
        const size_t equals = text.find('=');
        if (equals == std::string::npos || text.substr(equals, 2) != "==") return std::string();
        return absl::StrCat("expected KEY=VALUE or KEY!=VALUE, as team=nlp, got \"", OneLine(text), "\"");
      })
      ->type_name("KEY=VALUE,...");
  command->add_flag("-w,--watch", flags->watch, "refresh every two seconds");
  AddFormat(command, flags->format, {"table", "wide", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    return flags->watch ? Again(**client, *flags, invocation.Out()) : Once(**client, *flags, invocation.Out());
  });
}

}  // namespace muster::cli
