#include <algorithm>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/repeat.h"
#include "cli/output/top.h"
#include "cli/output_format.h"
#include "common/flags/values.h"
#include "common/message/tree.h"

namespace muster::cli {
namespace {

struct TopFlags {
  bool once = false;
  TopSort sort = TopSort::kSubmitted;
  bool reverse = false;
  Format format = Format::kTable;
};

struct Glance {
  v1::ListJobsReply jobs;
  v1::ListNodesReply nodes;
};

absl::StatusOr<Glance> Look(Client& client) {
  absl::StatusOr<v1::ListJobsReply> jobs = client.ListJobs(/*all=*/false);
  if (!jobs.ok()) return jobs.status();
  absl::StatusOr<v1::ListNodesReply> nodes = client.ListNodes();
  if (!nodes.ok()) return nodes.status();
  return Glance{*std::move(jobs), *std::move(nodes)};
}

absl::StatusOr<ExitCode> Run(const Invocation& invocation, const TopFlags& flags) {
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  const Screen screen = invocation.Out();
  const bool live = !flags.once && screen.terminal;
  TopView view{.sort = flags.sort, .reverse = flags.reverse, .keys = live};
  const auto page = [&]() -> absl::StatusOr<std::string> {
    const absl::StatusOr<Glance> glance = Look(**client);
    if (!glance.ok()) return glance.status();
    Screen now = invocation.Out();  // it may have been resized
    if (!live) now.height = 0;
    return TopPage(glance->jobs, glance->nodes, now, absl::Now(), view);
  };
  if (flags.format != Format::kTable) {
    const absl::StatusOr<Glance> glance = Look(**client);
    if (!glance.ok()) return glance.status();
    nlohmann::ordered_json tree;
    tree["jobs"] = MessageTree(glance->jobs)["jobs"];
    tree["nodes"] = MessageTree(glance->nodes)["nodes"];
    PrintTree(tree, flags.format);
    return kOk;
  }
  if (live) {
    return Repeat(screen, /*changed=*/true, page, [&](const std::string& key) { return PressTopKey(key, view); });
  }
  const absl::StatusOr<std::string> text = page();
  if (!text.ok()) return text.status();
  Print(*text);
  return kOk;
}

}  // namespace

void RegisterTop(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<TopFlags>();
  CLI::App* command = AddCommand(app, "top", kGroupLook, "Show running jobs and nodes, live on a terminal",
                                 "muster top\nmuster top --sort tokens\nmuster top -o json");
  command->add_flag("--once", flags->once, "print one page and exit (the default when not on a terminal)");
  command
      ->add_option_function<std::string>(
          "--sort",
          [flags](const std::string& key) {
            const auto at = std::find(std::begin(kTopSorts), std::end(kTopSorts), key);
            flags->sort = static_cast<TopSort>(at - std::begin(kTopSorts));
          },
          "order of the jobs, the largest numbers first")
      ->check(OneOf(std::vector<std::string>(std::begin(kTopSorts), std::end(kTopSorts))))
      ->default_str("submitted");
  command->add_flag("--reverse", flags->reverse, "the reverse order");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags] { return Run(invocation, *flags); });
}

}  // namespace muster::cli
