#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/message/tree.h"

namespace muster::cli {
namespace {

struct QuotaFlags {
  std::string name, cohort;
  std::optional<double> weight;
  std::optional<uint32_t> most_ranks;
  std::vector<std::string> nominal, borrow, add, remove;
};

// "cuda=8": a device and a number of slots, or "none".
struct DeviceSlots {
  v1::Device device = v1::DEVICE_UNSPECIFIED;
  std::optional<uint32_t> slots;
};

absl::StatusOr<DeviceSlots> ParseSlots(const std::string& flag, const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '=');
  DeviceSlots parsed;
  uint32_t slots = 0;
  if (parts.size() == 2 && (parts[0] == "cpu" || parts[0] == "cuda")) {
    parsed.device = parts[0] == "cpu" ? v1::DEVICE_CPU : v1::DEVICE_CUDA;
    if (parts[1] == "none") return parsed;
    if (absl::SimpleAtoi(parts[1], &slots)) {
      parsed.slots = slots;
      return parsed;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, ": expected cpu=N, cuda=N, or none for N, got \"", text, "\""));
}

v1::DeviceQuota& QuotaOf(v1::Device device, v1::Project& project) {
  for (v1::DeviceQuota& quota : *project.mutable_quotas()) {
    if (quota.device() == device) return quota;
  }
  v1::DeviceQuota& quota = *project.add_quotas();
  quota.set_device(device);
  return quota;
}

absl::Status ChangeProject(const QuotaFlags& flags, v1::Project& project) {
  project.set_name(flags.name);
  if (flags.weight.has_value()) project.set_weight(*flags.weight);
  if (!flags.cohort.empty()) project.set_cohort(flags.cohort == "none" ? "" : flags.cohort);
  if (flags.most_ranks.has_value()) project.set_max_running_ranks_of_user(*flags.most_ranks);
  std::set<std::string> users(project.users().begin(), project.users().end());
  users.insert(flags.add.begin(), flags.add.end());
  for (const std::string& user : flags.remove) users.erase(user);
  project.mutable_users()->Assign(users.begin(), users.end());
  for (const std::string& text : flags.nominal) {
    const absl::StatusOr<DeviceSlots> slots = ParseSlots("--nominal", text);
    if (!slots.ok()) return slots.status();
    v1::DeviceQuota& quota = QuotaOf(slots->device, project);
    quota.clear_nominal();
    if (slots->slots.has_value()) quota.set_nominal(*slots->slots);
  }
  for (const std::string& text : flags.borrow) {
    const absl::StatusOr<DeviceSlots> slots = ParseSlots("--borrow", text);
    if (!slots.ok()) return slots.status();
    v1::DeviceQuota& quota = QuotaOf(slots->device, project);
    quota.clear_borrowing_limit();
    if (slots->slots.has_value()) quota.set_borrowing_limit(*slots->slots);
  }
  auto& quotas = *project.mutable_quotas();
  quotas.erase(
      std::remove_if(quotas.begin(), quotas.end(), [](const v1::DeviceQuota& quota) { return !quota.has_nominal(); }),
      quotas.end());
  return absl::OkStatus();
}

std::string UsedHours(double slot_seconds) { return Significant(slot_seconds / 3600); }

Table QuotaTable(const v1::ListProjectsReply& reply) {
  Table table({{"PROJECT"},
               {"COHORT", false, /*optional=*/1},
               {"WEIGHT", true, /*optional=*/1},
               {"DEVICE"},
               {"NOMINAL", true},
               {"BORROW", true},
               {"HELD", true},
               {"USED HOURS", true},
               {.title = "USERS", .narrow = Narrow::kCut}});
  for (const v1::Project& project : reply.projects()) {
    double used = 0;
    for (const v1::UserUsage& usage : project.usage()) used += usage.slot_seconds();
    std::vector<v1::DeviceQuota> quotas(project.quotas().begin(), project.quotas().end());
    if (quotas.empty()) quotas.emplace_back();
    for (const v1::DeviceQuota& quota : quotas) {
      const bool limited = quota.has_nominal();
      const std::string borrow = !limited || project.cohort().empty() ? ""
                                 : quota.has_borrowing_limit()        ? absl::StrCat(quota.borrowing_limit())
                                                                      : "all";
      table.Add({project.name(), project.cohort(), Significant(project.has_weight() ? project.weight() : 1),
                 quota.device() == v1::DEVICE_UNSPECIFIED ? "" : DeviceName(quota.device()),
                 limited ? absl::StrCat(quota.nominal()) : "", borrow, absl::StrCat(quota.held()), UsedHours(used),
                 absl::StrJoin(project.users(), ",")});
    }
  }
  return table;
}

void RegisterQuotaSet(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<QuotaFlags>();
  CLI::App* command = AddCommand(app, "set", "Commands", "Create a project, or change what the flags name",
                                 "muster quota set vision --nominal cuda=8 --borrow cuda=4 --cohort lab --user ann\n"
                                 "muster quota set vision --weight 2 --remove-user ann");
  command->add_option("NAME", flags->name, "the project; default: all users who are in no other")->required();
  command->add_option("--weight", flags->weight, "of its fair share; default 1")->type_name("X");
  command->add_option("--cohort", flags->cohort, "projects of a cohort lend each other idle quota; none: it has none")
      ->type_name("NAME");
  command->add_option("--nominal", flags->nominal, "slots of a device that are its own: cuda=8, cpu=none")
      ->type_name("DEVICE=N");
  command->add_option("--borrow", flags->borrow, "slots beyond that it may borrow; none: no limit (default)")
      ->type_name("DEVICE=N");
  command->add_option("--user", flags->add, "add this user")->type_name("NAME");
  command->add_option("--remove-user", flags->remove, "remove this user")->type_name("NAME");
  command->add_option("--max-running-ranks-of-user", flags->most_ranks, "of one user in the project; 0: no limit")
      ->type_name("N");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::ListProjectsReply> reply = (*client)->ListProjects();
    if (!reply.ok()) return reply.status();
    v1::Project project;
    for (const v1::Project& known : reply->projects()) {
      if (known.name() == flags->name) project = known;
    }
    if (absl::Status s = ChangeProject(*flags, project); !s.ok()) return s;
    if (absl::Status s = (*client)->SetProject(project); !s.ok()) return s;
    Say(absl::StrCat("project ", flags->name, ": set"));
    return kOk;
  });
}

void RegisterQuotaDelete(CLI::App& app, Invocation& invocation) {
  const auto name = std::make_shared<std::string>();
  CLI::App* command =
      AddCommand(app, "delete", "Commands", "Delete a project that has no jobs left", "muster quota delete vision");
  command->add_option("NAME", *name, "the project")->required();
  OnRun(command, invocation, [&invocation, name]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    // The coordinator accepts deleting an unknown project, for retries; here a mistyped name must be an error.
    const absl::StatusOr<v1::ListProjectsReply> reply = (*client)->ListProjects();
    if (!reply.ok()) return reply.status();
    std::vector<std::string> names;
    for (const v1::Project& known : reply->projects()) names.push_back(known.name());
    if (absl::Status s = CheckNamed(*name, names, "project", "muster quota"); !s.ok()) return s;
    if (absl::Status s = (*client)->DeleteProject(*name); !s.ok()) return s;
    Say(absl::StrCat("project ", *name, ": deleted"));
    return kOk;
  });
}

}  // namespace

void RegisterQuota(CLI::App& app, Invocation& invocation) {
  const auto format = std::make_shared<Format>(Format::kTable);
  CLI::App* command = AddCommand(app, "quota", kGroupSteer, "List projects with their quotas and use, or change them",
                                 "muster quota\nmuster quota set vision --nominal cuda=8 --user ann");
  AddFormat(command, *format, {"table", "json", "yaml", "name"});
  RegisterQuotaSet(*command, invocation);
  RegisterQuotaDelete(*command, invocation);
  OnRun(command, invocation, [&invocation, format]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::ListProjectsReply> reply = (*client)->ListProjects();
    if (!reply.ok()) return reply.status();
    if (*format == Format::kJson || *format == Format::kYaml) {
      PrintTree(MessageTree(*reply)["projects"], *format);
    } else if (*format == Format::kName) {
      for (const v1::Project& project : reply->projects()) Print(project.name() + "\n");
    } else if (reply->projects().empty()) {
      Say("no projects: an admin makes one with: muster quota set NAME --user USER --nominal cuda=N");
    } else {
      Print(QuotaTable(*reply).Render(invocation.Out()));
    }
    return kOk;
  });
}

}  // namespace muster::cli
