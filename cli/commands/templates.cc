#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/job_file.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/message/tree.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

void AddTemplate(CLI::App* command, std::string& name) {
  command->add_option("TEMPLATE", name, "its name")->required();
}

void RegisterTemplatesSet(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string name, file;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "set", "Commands", "Create a template, or replace its text",
                                 "muster templates set base base.yaml");
  AddTemplate(command, flags->name);
  command->add_option("FILE", flags->file, "a part of a job file, - for standard input")->required();
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<SpecText> text = ReadJobFile(flags->file);
    if (!text.ok()) return text.status();
    const std::vector<Problem> problems = TemplateProblems(*text);
    if (!problems.empty()) return ToStatus(problems);
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    if (absl::Status s = (*client)->SetTemplate(flags->name, text->text); !s.ok()) return s;
    Say(absl::StrCat("template ", flags->name, ": set"));
    return kOk;
  });
}

void RegisterTemplatesShow(CLI::App& app, Invocation& invocation) {
  const auto name = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "show", "Commands", "Print the text of a template", "muster templates show base");
  AddTemplate(command, *name);
  OnRun(command, invocation, [&invocation, name]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::string> text = TemplatesOf(invocation)(*name);
    if (!text.ok()) return text.status();
    Print(*text);
    return kOk;
  });
}

void RegisterTemplatesDelete(CLI::App& app, Invocation& invocation) {
  const auto name = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "delete", "Commands", "Delete a template; jobs that were made from it stay",
                                 "muster templates delete base");
  AddTemplate(command, *name);
  OnRun(command, invocation, [&invocation, name]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    // The coordinator accepts deleting an unknown template, for retries; here a mistyped name must be an error.
    const absl::StatusOr<v1::ListTemplatesReply> reply = (*client)->ListTemplates();
    if (!reply.ok()) return reply.status();
    std::vector<std::string> names;
    for (const v1::Template& known : reply->templates()) names.push_back(known.name());
    if (absl::Status s = CheckNamed(*name, names, "template", "muster templates"); !s.ok()) return s;
    if (absl::Status s = (*client)->DeleteTemplate(*name); !s.ok()) return s;
    Say(absl::StrCat("template ", *name, ": deleted"));
    return kOk;
  });
}

}  // namespace

void RegisterTemplates(CLI::App& app, Invocation& invocation) {
  const auto format = std::make_shared<Format>(Format::kTable);
  CLI::App* command =
      AddCommand(app, "templates", kGroupRun, "List parts of job files that jobs are merged over, or change them",
                 "muster templates\n"
                 "muster templates set base base.yaml\n"
                 "muster submit job.yaml --template base");
  AddFormat(command, *format, {"table", "json", "yaml", "name"});
  RegisterTemplatesSet(*command, invocation);
  RegisterTemplatesShow(*command, invocation);
  RegisterTemplatesDelete(*command, invocation);
  OnRun(command, invocation, [&invocation, format]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::ListTemplatesReply> reply = (*client)->ListTemplates();
    if (!reply.ok()) return reply.status();
    if (*format == Format::kJson || *format == Format::kYaml) {
      nlohmann::ordered_json list = MessageTree(*reply)["templates"];
      for (nlohmann::ordered_json& entry : list) entry.erase("text");  // it is not sent
      PrintTree(list, *format);
    } else if (*format == Format::kName) {
      for (const v1::Template& found : reply->templates()) Print(found.name() + "\n");
    } else if (reply->templates().empty()) {
      Say("no templates; make one with: muster templates set NAME FILE");
    } else {
      const absl::Time now = absl::Now();
      Table table({{"TEMPLATE"}, {"OWNER"}, {"CHANGED", true}});
      for (const v1::Template& found : reply->templates()) {
        table.Add({found.name(), found.owner(), absl::StrCat(Age(now - FromProto(found.changed())), " ago")});
      }
      Print(table.Render(invocation.Out()));
    }
    return kOk;
  });
}

}  // namespace muster::cli
