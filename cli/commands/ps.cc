#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/repeat.h"
#include "cli/output/describe.h"
#include "cli/output_format.h"
#include "cli/spec/writer.h"

namespace muster::cli {
namespace {

struct PsFlags {
  bool all = false;
  bool watch = false;
  Format format = Format::kTable;
};

std::string Text(const v1::ListJobsReply& reply, const PsFlags& flags, const Screen& screen) {
  if (flags.format == Format::kName) {
    std::string names;
    for (const v1::JobSummary& summary : reply.jobs()) absl::StrAppend(&names, summary.job().id(), "\n");
    return names;
  }
  return JobTable(reply, flags.format == Format::kWide, absl::Now()).Render(screen);
}

absl::StatusOr<ExitCode> Once(Client& client, const PsFlags& flags, const Screen& screen) {
  const absl::StatusOr<v1::ListJobsReply> reply = client.ListJobs(flags.all);
  if (!reply.ok()) return reply.status();
  if (flags.format == Format::kJson || flags.format == Format::kYaml) {
    PrintTree(MessageTree(*reply)["jobs"], flags.format);
  } else if (reply->jobs().empty() && flags.format != Format::kName) {
    Say(flags.all ? "no jobs" : "no running or waiting jobs; for ended jobs: muster ps -a");
  } else {
    Print(Text(*reply, flags, screen));
  }
  return kOk;
}

absl::StatusOr<ExitCode> Again(Client& client, const PsFlags& flags, const Screen& screen) {
  const bool json = flags.format == Format::kJson;
  const auto glance = [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<v1::ListJobsReply> reply = client.ListJobs(flags.all);
    if (!reply.ok()) return reply.status();
    return json ? LineOf(MessageTree(*reply)["jobs"]) : Text(*reply, flags, screen);
  };
  return Repeat(json ? Screen{} : screen, !json, glance);
}

}  // namespace

void RegisterPs(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<PsFlags>();
  CLI::App* command = AddCommand(app, "ps", kGroupLook, "List jobs", "muster ps -a -o wide\nmuster ps --watch");
  command->add_flag("-a,--all", flags->all, "also show ended jobs");
  command->add_flag("-w,--watch", flags->watch, "refresh every two seconds");
  AddFormat(command, flags->format, {"table", "wide", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    return flags->watch ? Again(**client, *flags, invocation.Out()) : Once(**client, *flags, invocation.Out());
  });
}

}  // namespace muster::cli
