#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/output/trace.h"
#include "cli/output_format.h"
#include "common/flags/values.h"

namespace muster::cli {
namespace {

struct TraceFlags {
  std::string job;
  uint32_t steps = 3;
  std::vector<uint32_t> ranks;
  std::string output;
  TraceRows by = TraceRows::kKind;
  Format format = Format::kTable;
};

// The first rank in full, one line for each other rank.
void Show(const std::vector<v1::RankTrace>& ranks, const TraceFlags& flags, const Screen& screen) {
  nlohmann::ordered_json trees = nlohmann::ordered_json::array();
  bool first = true;
  for (const v1::RankTrace& rank : ranks) {
    const StepProfile profile = Profile(rank, flags.by);
    if (flags.format != Format::kTable) {
      trees.push_back(ProfileTree(rank, profile));
      continue;
    }
    Print(ProfileHeadline(rank, profile, screen));
    if (std::exchange(first, false)) Print(ProfileTable(profile).Render(screen));
  }
  if (flags.format != Format::kTable) PrintTree(trees, flags.format);
}

absl::StatusOr<ExitCode> Run(const Invocation& invocation, const TraceFlags& flags) {
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::string> job = invocation.JobNamed(flags.job, **client);
  if (!job.ok()) return job.status();
  if (absl::Status output = flags.output.empty() ? absl::OkStatus() : CheckOutput(flags.output); !output.ok()) {
    return output;
  }
  v1::TraceRequest request;
  request.set_job(*job);
  request.set_steps(flags.steps);
  for (const uint32_t rank : flags.ranks) request.add_ranks(rank);
  const absl::StatusOr<v1::TraceReply> reply = (*client)->Trace(request);
  if (!reply.ok()) return reply.status();
  std::vector<v1::RankTrace> ranks;
  for (const v1::RankTrace& rank : reply->ranks()) {
    if (rank.steps_size() > 0) ranks.push_back(rank);
  }
  if (!reply->missing().empty()) {
    Say(absl::StrCat("no complete trace arrived in time from rank ", absl::StrJoin(reply->missing(), ", "),
                     "; a step may take longer than that (--timeout), or its node is away (muster describe ", *job,
                     ")"));
  }
  if (ranks.empty()) return absl::DeadlineExceededError("no rank reported a step in time");
  if (!flags.output.empty()) {
    const absl::Status written = WriteOutput(flags.output, absl::StrCat(ChromeTrace(ranks).dump(), "\n"));
    if (!written.ok()) return written;
    Say(absl::StrCat(flags.output, ": open it in https://ui.perfetto.dev or chrome://tracing"));
  }
  Show(ranks, flags, invocation.Out());
  return reply->missing().empty() ? kOk : kTimeout;
}

}  // namespace

void RegisterTrace(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<TraceFlags>();
  CLI::App* command = AddCommand(app, "trace", kGroupLook, "Trace the next steps of a running job, op by op",
                                 "muster trace gpt2-tiny-x7f2 --steps 5 --save trace.json\n"
                                 "muster trace @last --by unit");
  AddJob(command, flags->job);
  command->add_option("--steps", flags->steps, "how many")->check(Between(1, 20))->capture_default_str();
  command->add_option("--ranks", flags->ranks, "ranks to trace, at most eight; default: the first eight")
      ->delimiter(',')
      ->type_name("N,...");
  command->add_option("--save", flags->output, "also write a trace for ui.perfetto.dev or chrome://tracing")
      ->type_name("FILE");
  command->add_option("--by", flags->by, "rows of the table: kind, unit or op")
      ->transform(CLI::CheckedTransformer(std::map<std::string, TraceRows>{
          {"kind", TraceRows::kKind}, {"unit", TraceRows::kUnit}, {"op", TraceRows::kOp}}))
      ->type_name("ROWS")
      ->default_str("kind");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags] { return Run(invocation, *flags); });
}

}  // namespace muster::cli
