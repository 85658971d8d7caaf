#include <unistd.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/follow_job.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

struct LogsFlags {
  std::string job;
  bool follow = false;
  std::optional<uint32_t> rank;
  std::optional<uint32_t> tail;
  std::string since;
  bool raw = false;
  Format format = Format::kTable;
};

// "10m" ago, or an RFC 3339 time.
absl::StatusOr<absl::Time> ParseSince(const std::string& text) {
  if (text.empty()) return absl::InfinitePast();
  absl::Time time;
  std::string error;
  if (absl::ParseTime(absl::RFC3339_full, text, &time, &error)) return time;
  const absl::StatusOr<absl::Duration> ago = ParseTimeout(text);
  if (!ago.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--since ", text, ": write how long ago (10m, 2h) or a time (2026-01-31T12:00:00Z)"));
  }
  return absl::Now() - *ago;
}

// Joins chunks into lines: a chunk may end in the middle of a line.
class LogPrinter {
 public:
  // `raw`: as the ranks wrote it, instead of with control characters escaped.
  LogPrinter(bool name_ranks, bool raw, absl::Time since) : name_ranks_(name_ranks), raw_(raw), since_(since) {}

  void Take(const v1::LogChunk& chunk) {
    if (chunk.has_time() && FromProto(chunk.time()) < since_) return;
    if (generation_ != 0 && chunk.generation() > generation_) {
      Flush();
      Say(absl::StrCat("-- generation ", chunk.generation(), " --"));
    }
    generation_ = std::max(generation_, chunk.generation());
    std::string& rest = rest_[chunk.rank()];
    rest += chunk.text();
    std::string out;
    for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
      absl::StrAppend(&out, Prefix(chunk.rank()), Shown(rest.substr(0, end + 1)));
    }
    Print(out);
  }

  // Flushes lines that have no newline at their end.
  void Flush() {
    for (auto& [rank, rest] : rest_) {
      if (!rest.empty()) Print(absl::StrCat(Prefix(rank), Shown(rest), "\n"));
      rest.clear();
    }
  }

 private:
  std::string Prefix(uint32_t rank) const { return name_ranks_ ? absl::StrCat("rank ", rank, ": ") : ""; }

  std::string Shown(const std::string& line) const { return raw_ ? line : Lines(line); }

  const bool name_ranks_;
  const bool raw_;
  const absl::Time since_;
  uint64_t generation_ = 0;
  std::map<uint32_t, std::string> rest_;
};

absl::StatusOr<ExitCode> Run(const Invocation& invocation, const LogsFlags& flags) {
  if (flags.raw && isatty(STDOUT_FILENO) != 0) {
    return absl::InvalidArgumentError(
        "--raw: what a job wrote could steer this terminal; send it to a file or a pipe: muster logs --raw JOB | less "
        "-R");
  }
  const absl::StatusOr<absl::Time> since = ParseSince(flags.since);
  if (!since.ok()) return since.status();
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::string> job = invocation.JobNamed(flags.job, **client);
  if (!job.ok()) return job.status();
  const absl::StatusOr<v1::GetJobReply> got = (*client)->GetJob(*job);
  if (!got.ok()) return got.status();
  v1::WatchRequest request;
  request.set_job(got->job().id());
  request.set_logs(true);
  request.set_follow(flags.follow);
  if (flags.rank) request.set_rank(*flags.rank);
  if (flags.tail) request.set_tail(*flags.tail);
  LogPrinter printer(!flags.rank && got->job().spec().resources().ranks() > 1, flags.raw, *since);
  const auto take = [&](const v1::WatchItem& item) {
    if (flags.format == Format::kJson) {
      if (item.has_log() && (!item.log().has_time() || FromProto(item.log().time()) >= *since))
        PrintLine(ItemTree(item));
    } else if (item.has_log()) {
      printer.Take(item.log());
    } else if (item.has_gap()) {
      Say("(older lines are no longer kept)");
    }
    return true;
  };
  if (!flags.follow) {
    const absl::Status read = ReadItems(**client, request, take);
    printer.Flush();
    if (!read.ok()) return read;
    return kOk;
  }
  const absl::StatusOr<ExitCode> code = FollowItems(
      **client, request, (*client)->connection().timeout, take, [] {},
      absl::StrCat("detached; ", got->job().id(), " continues"));
  printer.Flush();
  return code;
}

}  // namespace

void RegisterLogs(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<LogsFlags>();
  CLI::App* command = AddCommand(app, "logs", kGroupLook, "Print what a job's ranks wrote",
                                 "muster logs -f @last\nmuster logs gpt2-tiny-x7f2 --rank 1 --tail 50");
  AddJob(command, flags->job);
  command->add_flag("-f,--follow", flags->follow, "keep printing until the job ends");
  command->add_option("--rank", flags->rank, "only the lines of this rank")->type_name("N");
  command->add_option("--tail", flags->tail, "only the newest N lines")->type_name("N");
  command->add_option("--since", flags->since, "only lines since 10m or 2h ago, or since a time")->type_name("AGO");
  command->add_flag("--raw", flags->raw,
                    "as the ranks wrote it, with colors and other control characters; not on a terminal");
  AddFormat(command, flags->format, {"table", "json"});
  OnRun(command, invocation, [&invocation, flags] { return Run(invocation, *flags); });
}

}  // namespace muster::cli
