#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/config.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/flags/values.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

struct UsageFlags {
  std::string since, by = "user";
  Format format = Format::kTable;
};

struct SlotUse {
  uint64_t jobs = 0;
  double slot_seconds = 0, effective = 0;  // effective: steps that no earlier generation had completed
};

// Of the time that its generations held slots, the part in which they trained.
double EffectiveShare(const v1::Job& job) {
  if (job.held_seconds() <= 0) return 0;
  return std::min(1.0, job.time_breakdown().training() / job.held_seconds());
}

std::map<std::string, SlotUse> SumUsage(const v1::ListJobsReply& reply, const UsageFlags& flags, absl::Time from) {
  std::map<std::string, SlotUse> sums;
  for (const v1::JobSummary& summary : reply.jobs()) {
    const v1::Job& job = summary.job();
    if (job.slot_seconds() <= 0) continue;
    if (job.has_ended() && FromProto(job.ended()) < from) continue;
    const std::string key = flags.by == "job"       ? job.id()
                            : flags.by == "project" ? (job.project().empty() ? "default" : job.project())
                                                    : job.owner();
    SlotUse& used = sums[key];
    ++used.jobs;
    used.slot_seconds += job.slot_seconds();
    used.effective += job.slot_seconds() * EffectiveShare(job);
  }
  return sums;
}

std::string SlotHours(double seconds) { return absl::StrFormat("%.2f", seconds / 3600); }

void ShowUsage(const std::map<std::string, SlotUse>& sums, const UsageFlags& flags, const Screen& screen) {
  std::vector<std::pair<std::string, SlotUse>> rows(sums.begin(), sums.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.slot_seconds > b.second.slot_seconds; });
  if (flags.format == Format::kJson || flags.format == Format::kYaml) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const auto& [key, used] : rows) {
      all.push_back({{flags.by, key},
                     {"jobs", used.jobs},
                     {"slot_hours", used.slot_seconds / 3600},
                     {"effective_slot_hours", used.effective / 3600},
                     {"wasted_slot_hours", (used.slot_seconds - used.effective) / 3600}});
    }
    return PrintTree(all, flags.format);
  }
  if (rows.empty()) return Say("no job has held slots in that time");
  std::string title = flags.by;
  for (char& c : title) c = absl::ascii_toupper(static_cast<unsigned char>(c));
  Table table(
      {{title}, {"JOBS", true}, {"SLOT HOURS", true}, {"EFFECTIVE", true}, {"WASTED", true}, {"WASTED %", true}});
  for (const auto& [key, used] : rows) {
    const double wasted = used.slot_seconds - used.effective;
    table.Add({key, absl::StrCat(used.jobs), SlotHours(used.slot_seconds), SlotHours(used.effective), SlotHours(wasted),
               absl::StrFormat("%.1f", 100 * wasted / used.slot_seconds)});
  }
  Print(table.RenderOrBlocks(screen));
}

}  // namespace

void RegisterUsage(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<UsageFlags>();
  CLI::App* command = AddCommand(app, "usage", kGroupLook, "Slot hours by user, project or job: effective and wasted",
                                 "muster usage --since 7d --by project\nmuster usage --by job -o json");
  command
      ->add_option("--since", flags->since,
                   "only jobs that have not ended, or ended since 12h or 7d ago, or since a time")
      ->type_name("TIME");
  command->add_option("--by", flags->by, "user, project or job")
      ->check(OneOf({"user", "project", "job"}))
      ->type_name("KEY");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<absl::Time> since = ParseSince(flags->since, absl::Now());
    if (!since.ok()) return since.status();
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::ListJobsReply> reply = (*client)->ListJobs(true);
    if (!reply.ok()) return reply.status();
    ShowUsage(SumUsage(*reply, *flags, *since), *flags, invocation.Out());
    return kOk;
  });
}

}  // namespace muster::cli
