#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/interrupt.h"
#include "cli/output/describe.h"
#include "cli/output_format.h"
#include "cli/spec/writer.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(2);
constexpr absl::Duration kGlance = absl::Milliseconds(50);

struct Flags {
  bool all = false;
  bool watch = false;
  Format format = Format::kTable;
};

std::string Text(const v1::ListJobsReply& reply, const Flags& flags, const Screen& screen) {
  if (flags.format == Format::kName) {
    std::string names;
    for (const v1::JobSummary& summary : reply.jobs()) absl::StrAppend(&names, summary.job().id(), "\n");
    return names;
  }
  return JobTable(reply, flags.format == Format::kWide, absl::Now()).Render(screen);
}

absl::StatusOr<ExitCode> Once(Client& client, const Flags& flags, const Screen& screen) {
  const absl::StatusOr<v1::ListJobsReply> reply = client.ListJobs(flags.all);
  if (!reply.ok()) return reply.status();
  if (flags.format == Format::kJson || flags.format == Format::kYaml) {
    PrintTree(MessageTree(*reply)["jobs"], flags.format);
  } else if (reply->jobs().empty() && flags.format != Format::kName) {
    Say(flags.all ? "no jobs" : "no jobs that run or wait; ended ones: muster ps -a");
  } else {
    Print(Text(*reply, flags, screen));
  }
  return kOk;
}

// Until Ctrl-C. A coordinator that is away for a while is waited for.
absl::StatusOr<ExitCode> Repeat(Client& client, const Flags& flags, const Screen& screen) {
  const InterruptScope interrupts;
  std::string last;
  bool reached = false;
  while (!Interrupted()) {
    const absl::StatusOr<v1::ListJobsReply> reply = client.ListJobs(flags.all);
    if (!reply.ok() && !(reached && absl::IsUnavailable(reply.status()))) return reply.status();
    if (reply.ok()) {
      reached = true;
      if (flags.format == Format::kJson) {
        PrintLine(MessageTree(*reply)["jobs"]);
      } else if (const std::string text = Text(*reply, flags, screen); screen.terminal) {
        Print(absl::StrCat("\x1b[H\x1b[2J", text));
      } else if (text != last) {
        Print(absl::StrCat(last.empty() ? "" : "\n", text));
        last = text;
      }
    } else {
      Say("the coordinator is away; trying again ...");
    }
    for (const absl::Time until = absl::Now() + kPeriod; absl::Now() < until && !Interrupted();) {
      absl::SleepFor(kGlance);
    }
  }
  return kInterrupted;
}

}  // namespace

void RegisterPs(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "ps", kGroupLook, "List jobs", "muster ps -a -o wide");
  command->add_flag("-a,--all", flags->all, "also those that have ended");
  command->add_flag("-w,--watch", flags->watch, "again every two seconds");
  AddFormat(command, flags->format, {"table", "wide", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    return flags->watch ? Repeat(**client, *flags, invocation.Out()) : Once(**client, *flags, invocation.Out());
  });
}

}  // namespace muster::cli
