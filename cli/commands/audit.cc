#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/config.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/message/tree.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

struct AuditFlags {
  std::string since;
  v1::ListAuditRequest request;
  std::optional<uint32_t> tail;
  Format format = Format::kTable;
};

// Oldest first.
absl::StatusOr<std::vector<v1::AuditEntry>> ReadEntries(Client& client, v1::ListAuditRequest request,
                                                        std::optional<uint32_t> tail) {
  std::vector<v1::AuditEntry> entries;
  if (tail == 0u) return entries;
  do {
    if (tail) request.set_limit(*tail - static_cast<uint32_t>(entries.size()));
    const absl::StatusOr<v1::ListAuditReply> reply = client.ListAudit(request);
    if (!reply.ok()) return reply.status();
    entries.insert(entries.end(), reply->entries().begin(), reply->entries().end());
    request.set_page(reply->next_page());
  } while (!request.page().empty() && (!tail || entries.size() < *tail));
  std::reverse(entries.begin(), entries.end());
  return entries;
}

// "PERMISSION_DENIED: eve may not ...", and how many earlier calls have no entry.
std::string OutcomeText(const v1::AuditEntry& entry) {
  std::string text = entry.code();
  if (!entry.message().empty()) absl::StrAppend(&text, ": ", entry.message());
  if (!entry.details().empty()) absl::StrAppend(&text, " (", absl::StrJoin(entry.details(), ", "), ")");
  if (entry.left_out() > 0)
    absl::StrAppend(&text, " [", entry.left_out(), " earlier calls of this user that changed nothing are not listed]");
  return text;
}

Table AuditTable(const std::vector<v1::AuditEntry>& entries, const Screen& screen) {
  Table table({{"TIME"},
               {"USER"},
               {"ROLE", false, /*optional=*/2},
               {"TOKEN", false, /*optional=*/2},
               {"FROM", false, /*optional=*/1},
               {"METHOD"},
               {"OBJECT"},
               {.title = "OUTCOME", .narrow = Narrow::kWrap}});
  for (const v1::AuditEntry& entry : entries) {
    table.Add({DateAndTime(screen, FromProto(entry.time())), entry.user(), entry.role(), entry.token_id(), entry.peer(),
               entry.method(), entry.object(),
               Cell(OutcomeText(entry), entry.code() == "OK" ? Colour::kNone : Colour::kYellow)});
  }
  return table;
}

absl::StatusOr<ExitCode> ShowAudit(const Invocation& invocation, AuditFlags flags) {
  const absl::StatusOr<absl::Time> since = ParseSince(flags.since, absl::Now());
  if (!since.ok()) return since.status();
  if (*since != absl::InfinitePast()) *flags.request.mutable_since() = ToProto(*since);
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::vector<v1::AuditEntry>> entries = ReadEntries(**client, flags.request, flags.tail);
  if (!entries.ok()) return entries.status();
  if (flags.format == Format::kJson || flags.format == Format::kYaml) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const v1::AuditEntry& entry : *entries) list.push_back(MessageTree(entry));
    PrintTree(list, flags.format);
  } else if (entries->empty()) {
    if (flags.tail != 0u) Say("no such entries");
  } else {
    Print(AuditTable(*entries, invocation.Out()).RenderOrBlocks(invocation.Out()));
  }
  return kOk;
}

}  // namespace

void RegisterAudit(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<AuditFlags>();
  CLI::App* command =
      AddCommand(app, "audit", kGroupLook, "Show who changed what, and who was refused (for admins)",
                 "muster audit --since 1d --user ann\nmuster audit --method Cancel --object job/gpt2 -o json");
  const auto filter = [&](const char* name, void (v1::ListAuditRequest::*set)(const std::string&), const char* what,
                          const char* type) {
    command
        ->add_option_function<std::string>(
            name, [flags, set](const std::string& text) { (flags->request.*set)(text); }, what)
        ->type_name(type);
  };
  command->add_option("--since", flags->since, "only calls since 12h or 7d ago, or since a time")->type_name("TIME");
  filter("--user", &v1::ListAuditRequest::set_user, "only calls of this user", "NAME");
  filter("--method", &v1::ListAuditRequest::set_method,
         "only calls of this method or service: Cancel, Jobs/Cancel, Jobs", "METHOD");
  filter("--object", &v1::ListAuditRequest::set_object,
         "only calls about this object, or about those that begin so: job/gpt2-x7f2, node/", "OBJECT");
  command->add_option("--tail", flags->tail, "only the newest N")->type_name("N");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags] { return ShowAudit(invocation, *flags); });
}

}  // namespace muster::cli
