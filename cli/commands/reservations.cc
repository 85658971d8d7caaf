#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/config.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/message/tree.h"
#include "common/proto_time.h"
#include "common/some_of.h"

namespace muster::cli {
namespace {

constexpr char kAllNodes[] = "all";

struct ReservationFlags {
  std::string name, start, end, lasts;
  std::optional<std::string> note;
  std::vector<std::string> nodes, users, remove_users, projects, remove_projects;
};

template <typename Names>
void Change(const std::vector<std::string>& add, const std::vector<std::string>& remove, Names& names) {
  std::set<std::string> changed(names.begin(), names.end());
  changed.insert(add.begin(), add.end());
  for (const std::string& name : remove) changed.erase(name);
  names.Assign(changed.begin(), changed.end());
}

// With another start and no end, it lasts as long as before.
absl::Status ChangeWindow(const ReservationFlags& flags, absl::Time now, v1::Reservation& reservation) {
  const bool is_new = !reservation.has_start();
  if (is_new && flags.end.empty() && flags.lasts.empty()) {
    return absl::InvalidArgumentError("a new reservation needs --for or --end");
  }
  if (!flags.end.empty() && !flags.lasts.empty())
    return absl::InvalidArgumentError("--for and --end exclude each other");
  absl::Time start = is_new ? now : FromProto(reservation.start());
  absl::Duration lasts = is_new ? absl::ZeroDuration() : FromProto(reservation.end()) - start;
  if (!flags.start.empty()) {
    const absl::StatusOr<absl::Time> parsed = ParseWhen("--start", flags.start, now);
    if (!parsed.ok()) return parsed.status();
    start = *parsed;
  }
  if (!flags.lasts.empty()) {
    const absl::StatusOr<absl::Duration> parsed = ParseTimeout(flags.lasts, "--for");
    if (!parsed.ok()) return parsed.status();
    lasts = *parsed;
  }
  if (!flags.end.empty()) {
    const absl::StatusOr<absl::Time> parsed = ParseWhen("--end", flags.end, now);
    if (!parsed.ok()) return parsed.status();
    lasts = *parsed - start;
  }
  *reservation.mutable_start() = ToProto(start);
  *reservation.mutable_end() = ToProto(start + lasts);
  return absl::OkStatus();
}

absl::Status ChangeReservation(const ReservationFlags& flags, Client& client, v1::Reservation& reservation) {
  reservation.set_name(flags.name);
  if (absl::Status s = ChangeWindow(flags, absl::Now(), reservation); !s.ok()) return s;
  Change(flags.users, flags.remove_users, *reservation.mutable_users());
  Change(flags.projects, flags.remove_projects, *reservation.mutable_projects());
  if (flags.note.has_value()) reservation.set_note(*flags.note);
  if (flags.nodes == std::vector<std::string>{kAllNodes}) {
    const absl::StatusOr<v1::ListNodesReply> all = client.ListNodes();
    if (!all.ok()) return all.status();
    reservation.clear_nodes();
    for (const v1::Node& node : all->nodes()) reservation.add_nodes(node.id());
  } else if (!flags.nodes.empty()) {
    reservation.mutable_nodes()->Assign(flags.nodes.begin(), flags.nodes.end());
  }
  if (reservation.nodes().empty()) return absl::InvalidArgumentError("a new reservation needs --nodes");
  return absl::OkStatus();
}

std::string StateOf(const v1::Reservation& reservation) {
  constexpr size_t kPrefix = sizeof("RESERVATION_STATE_") - 1;
  return absl::AsciiStrToLower(v1::ReservationState_Name(reservation.state()).substr(kPrefix));
}

Table ReservationTable(const v1::ListReservationsReply& reply, const Screen& screen) {
  constexpr size_t kNamed = 4;
  Table table({{"RESERVATION"},
               {"STATE"},
               {"START"},
               {"END"},
               {"NODES"},
               {"FOR"},
               {"OVERLAPS"},
               {.title = "NOTE", .narrow = Narrow::kWrap}});
  for (const v1::Reservation& reservation : reply.reservations()) {
    std::vector<std::string> whom(reservation.users().begin(), reservation.users().end());
    for (const std::string& project : reservation.projects()) whom.push_back("project " + project);
    table.Add({reservation.name(), StateOf(reservation), DateAndTime(screen, FromProto(reservation.start())),
               DateAndTime(screen, FromProto(reservation.end())), SomeOf(reservation.nodes(), kNamed, ","),
               whom.empty() ? "maintenance" : absl::StrJoin(whom, ","),
               SomeOf(reservation.overlapping_jobs(), kNamed, ","), reservation.note()});
  }
  return table;
}

void RegisterReservationsSet(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<ReservationFlags>();
  CLI::App* command = AddCommand(app, "set", "Commands", "Reserve nodes, or change what the flags name",
                                 "muster reservations set maint --nodes node-a --start 2030-12-01T08:00 --for 4h\n"
                                 "muster reservations set workshop --nodes node-a --start 7d --for 8h --user ann");
  command->add_option("NAME", flags->name, "the reservation")->required();
  command->add_option("--nodes", flags->nodes, "instead of those that it has; all: those that there are now")
      ->delimiter(',')
      ->type_name("NODE");
  command->add_option("--start", flags->start, "a time, or how long from now; default now")->type_name("TIME");
  command->add_option("--end", flags->end, "likewise")->type_name("TIME");
  command->add_option("--for", flags->lasts, "how long it lasts: 30m, 4h, 2d")->type_name("DURATION");
  command->add_option("--user", flags->users, "whose jobs may run in it; without users and projects: maintenance")
      ->type_name("NAME");
  command->add_option("--remove-user", flags->remove_users, "not this one's any more")->type_name("NAME");
  command->add_option("--project", flags->projects, "whose jobs may run in it")->type_name("NAME");
  command->add_option("--remove-project", flags->remove_projects, "not this one's any more")->type_name("NAME");
  command->add_option("--note", flags->note, "one line about it")->type_name("NOTE");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::ListReservationsReply> reply = (*client)->ListReservations();
    if (!reply.ok()) return reply.status();
    v1::Reservation reservation;
    for (const v1::Reservation& known : reply->reservations()) {
      if (known.name() == flags->name) reservation = known;
    }
    if (absl::Status s = ChangeReservation(*flags, **client, reservation); !s.ok()) return s;
    const absl::StatusOr<v1::SetReservationReply> set = (*client)->SetReservation(reservation);
    if (!set.ok()) return set.status();
    const v1::Reservation& now = set->reservation();
    Say(absl::StrCat("reservation ", flags->name, ": set, from ", DateAndTime(invocation.Out(), FromProto(now.start())),
                     " to ", DateAndTime(invocation.Out(), FromProto(now.end()))));
    if (const int jobs = now.overlapping_jobs_size(); jobs > 0) {
      Say(absl::StrCat(jobs == 1 ? "a job runs" : absl::StrCat(jobs, " jobs run"),
                       " there now and may not end before; nothing stops ", jobs == 1 ? "it" : "them", ": ",
                       absl::StrJoin(now.overlapping_jobs(), ", ")));
    }
    return kOk;
  });
}

void RegisterReservationsDelete(CLI::App& app, Invocation& invocation) {
  const auto name = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "delete", "Commands", "Delete a reservation in which no job runs",
                                 "muster reservations delete maint");
  command->add_option("NAME", *name, "the reservation")->required();
  OnRun(command, invocation, [&invocation, name]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    // The coordinator accepts deleting an unknown reservation, for retries; here a mistyped name must be an error.
    const absl::StatusOr<v1::ListReservationsReply> reply = (*client)->ListReservations();
    if (!reply.ok()) return reply.status();
    std::vector<std::string> names;
    for (const v1::Reservation& known : reply->reservations()) names.push_back(known.name());
    if (absl::Status s = CheckNamed(*name, names, "reservation", "muster reservations"); !s.ok()) return s;
    if (absl::Status s = (*client)->DeleteReservation(*name); !s.ok()) return s;
    Say(absl::StrCat("reservation ", *name, ": deleted"));
    return kOk;
  });
}

}  // namespace

void RegisterReservations(CLI::App& app, Invocation& invocation) {
  const auto format = std::make_shared<Format>(Format::kTable);
  CLI::App* command =
      AddCommand(app, "reservations", kGroupSteer, "List reservations of nodes, or change them",
                 "muster reservations\nmuster reservations set maint --nodes node-a --start 2030-12-01T08:00 --for 4h");
  AddFormat(command, *format, {"table", "json", "yaml", "name"});
  RegisterReservationsSet(*command, invocation);
  RegisterReservationsDelete(*command, invocation);
  OnRun(command, invocation, [&invocation, format]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::ListReservationsReply> reply = (*client)->ListReservations();
    if (!reply.ok()) return reply.status();
    if (*format == Format::kJson || *format == Format::kYaml) {
      PrintTree(MessageTree(*reply)["reservations"], *format);
    } else if (*format == Format::kName) {
      for (const v1::Reservation& reservation : reply->reservations()) Print(reservation.name() + "\n");
    } else if (reply->reservations().empty()) {
      Say("no reservations: an admin makes one with: muster reservations set NAME --nodes NODE,NODE --start TIME --for "
          "4h");
    } else {
      Print(ReservationTable(*reply, invocation.Out()).RenderOrBlocks(invocation.Out()));
    }
    return kOk;
  });
}

}  // namespace muster::cli
