#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/submission.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/file/durable_file.h"
#include "common/flags/values.h"
#include "common/message/tree.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

v1::TokenRole RoleNamed(const std::string& name) {
  if (name == "worker") return v1::TOKEN_ROLE_WORKER;
  if (name == "viewer") return v1::TOKEN_ROLE_VIEWER;
  if (name == "submitter") return v1::TOKEN_ROLE_SUBMITTER;
  return v1::TOKEN_ROLE_ADMIN;
}

std::string NameOf(v1::TokenRole role) {
  for (const char* name : {"worker", "viewer", "submitter", "admin"}) {
    if (RoleNamed(name) == role) return name;
  }
  return "unknown";
}

std::string Ends(const v1::TokenInfo& info, absl::Time now) {
  if (info.revoked()) return "revoked";
  if (!info.has_expires()) return "never";
  const absl::Duration left = FromProto(info.expires()) - now;
  return left <= absl::ZeroDuration() ? "expired" : absl::StrCat("in ", Span(left));
}

void RegisterCreate(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string role, user, ttl, file;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "create", "Commands", "Create a token for workers to join with, or for a user",
                                 "muster coordinator token create --role worker --ttl 1h -o join.token\n"
                                 "muster coordinator token create --role submitter --user ann --ttl 90d -o ann.token");
  command->add_option("--role", flags->role, "worker|viewer|submitter|admin")
      ->required()
      ->type_name("ROLE")
      ->check(OneOf({"worker", "viewer", "submitter", "admin"}).description(""));
  command->add_option("--user", flags->user, "user of the token, who owns the jobs submitted with it")
      ->type_name("NAME");
  command
      ->add_option("--ttl", flags->ttl, "validity of the token: 30m, 8h, 90d (default: 1h for worker, else unlimited)")
      ->type_name("TIME");
  command
      ->add_option("-o,--output", flags->file, "write the token to this new file (mode 600) instead of standard output")
      ->type_name("FILE");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    v1::CreateTokenRequest request;
    request.set_role(RoleNamed(flags->role));
    request.set_user(flags->user);
    request.set_request_id(NewRequestId());
    if (!flags->ttl.empty()) {
      const absl::StatusOr<absl::Duration> ttl = ParseTimeout(flags->ttl, "--ttl");
      if (!ttl.ok()) return ttl.status();
      request.mutable_ttl()->set_seconds(absl::ToInt64Seconds(*ttl));
    }
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::CreateTokenReply> reply = (*client)->CreateToken(request);
    if (!reply.ok()) return reply.status();
    if (flags->file.empty()) {
      Print(reply->token() + "\n");
    } else if (absl::Status kept =
                   WriteDurably(flags->file, reply->token() + "\n", {.existing = FileOptions::kRefuse, .mode = 0600});
               !kept.ok()) {
      const auto revoked = (*client)->RevokeToken(reply->info().id());  // the user never saw this token
      return absl::Status(
          kept.code(),
          absl::StrCat(kept.message(), absl::IsAlreadyExists(kept) ? ": name another file, or remove it" : "",
                       revoked.ok() ? "" : "; the new token could not be revoked"));
    }
    Say(absl::StrCat("token ", reply->info().id(), " (", flags->role, "), expires ", Ends(reply->info(), absl::Now()),
                     flags->file.empty() ? "" : absl::StrCat(", in ", flags->file)));
    return kOk;
  });
}

void RegisterList(CLI::App& app, Invocation& invocation) {
  const auto format = std::make_shared<Format>(Format::kTable);
  CLI::App* command =
      AddCommand(app, "ls", "Commands", "List tokens, without their secrets", "muster coordinator token ls");
  AddFormat(command, *format, {"table", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, format]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::ListTokensReply> reply = (*client)->ListTokens();
    if (!reply.ok()) return reply.status();
    if (*format == Format::kJson || *format == Format::kYaml) {
      PrintTree(MessageTree(*reply)["tokens"], *format);
    } else if (*format == Format::kName) {
      for (const v1::TokenInfo& info : reply->tokens()) Print(info.id() + "\n");
    } else if (reply->tokens().empty()) {
      Say("no tokens; create one with: muster coordinator token create --role worker");
    } else {
      const absl::Time now = absl::Now();
      Table table({{"TOKEN"}, {"ROLE"}, {"USER"}, {"EXPIRES"}, {"AGE", true}, {"CREATED BY"}});
      for (const v1::TokenInfo& info : reply->tokens()) {
        table.Add({info.id(), NameOf(info.role()), info.user(), Ends(info, now), Age(now - FromProto(info.created())),
                   info.created_by()});
      }
      Print(table.Render(invocation.Out()));
    }
    return kOk;
  });
}

void RegisterRevoke(CLI::App& app, Invocation& invocation) {
  const auto ids = std::make_shared<std::vector<std::string>>();
  CLI::App* command = AddCommand(app, "revoke", "Commands", "Revoke tokens before they expire",
                                 "muster coordinator token revoke k3j9x2m4");
  command->add_option("TOKEN", *ids, "ids (muster coordinator token ls)")->required();
  OnRun(command, invocation, [&invocation, ids]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    for (const std::string& id : *ids) {
      const absl::StatusOr<v1::RevokeTokenReply> reply = (*client)->RevokeToken(id);
      if (!reply.ok()) return reply.status();
      Say(absl::StrCat("token ", reply->info().id(), " revoked"));
    }
    return kOk;
  });
}

}  // namespace

void RegisterCoordinatorTokens(CLI::App& app, Invocation& invocation) {
  CLI::App* group = AddCommand(app, "token", "Commands", "Tokens for workers to join with, and for users",
                               "muster coordinator token create --role worker -o join.token\n"
                               "muster coordinator token ls");
  group->require_subcommand(1);
  RegisterCreate(*group, invocation);
  RegisterList(*group, invocation);
  RegisterRevoke(*group, invocation);
}

}  // namespace muster::cli
