#include <regex.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/follow_job.h"
#include "cli/output/format.h"
#include "cli/output/screen.h"
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
  std::string grep;
  bool raw = false;
  Format format = Format::kTable;
};

// An extended regular expression, as grep -E takes it.
class LinePattern {
 public:
  // InvalidArgument.
  static absl::StatusOr<std::unique_ptr<LinePattern>> Make(const std::string& text) {
    auto pattern = std::unique_ptr<LinePattern>(new LinePattern);
    const int error = regcomp(&pattern->compiled_, text.c_str(), REG_EXTENDED | REG_NOSUB);
    pattern->valid_ = error == 0;
    if (pattern->valid_) return pattern;
    char why[128];
    regerror(error, &pattern->compiled_, why, sizeof(why));
    return absl::InvalidArgumentError(absl::StrCat("--grep ", text, ": ", why));
  }
  LinePattern(const LinePattern&) = delete;
  LinePattern& operator=(const LinePattern&) = delete;
  ~LinePattern() {
    if (valid_) regfree(&compiled_);
  }
  bool Matches(const std::string& line) const { return regexec(&compiled_, line.c_str(), 0, nullptr, 0) == 0; }

 private:
  LinePattern() = default;
  regex_t compiled_ = {};
  bool valid_ = false;
};

// Joins chunks into lines: a chunk may end in the middle of a line.
class LogPrinter {
 public:
  // `raw`: as the ranks wrote it, instead of with control characters escaped.
  // `only`: null, or what the lines must match.
  LogPrinter(bool name_ranks, bool raw, absl::Time since, const LinePattern* only)
      : screen_(ScreenOf(STDOUT_FILENO, /*no_colour=*/true)),
        name_ranks_(name_ranks),
        raw_(raw),
        since_(since),
        only_(only) {}

  // From here to Release nothing is printed; of the lines, the newest `most` are kept.
  void Keep(size_t most) { most_kept_ = most; }
  void Release() {
    most_kept_.reset();
    for (const Line& line : kept_) Emit(line);
    kept_.clear();
    PrintEmitted();
  }

  void Take(const v1::LogChunk& chunk) {
    if (chunk.has_time() && FromProto(chunk.time()) < since_) return;
    if (chunk.generation() > generation_) {
      Flush();
      generation_ = chunk.generation();
    }
    std::string& rest = rest_[chunk.rank()];
    rest += chunk.text();
    for (size_t end; (end = rest.find('\n')) != std::string::npos; rest.erase(0, end + 1)) {
      if (Wanted(rest.substr(0, end))) Emit({generation_, Prefix(chunk.rank()) + Shown(rest.substr(0, end + 1))});
    }
    PrintEmitted();
  }
  // As it is; with `only`, each of its lines that matches is an item of its own.
  void TakeAsJson(v1::WatchItem item) {
    if (item.log().has_time() && FromProto(item.log().time()) < since_) return;
    if (only_ == nullptr) return PrintLine(ItemTree(item));
    const std::string text = std::move(*item.mutable_log()->mutable_text());
    for (size_t at = 0, end; at < text.size(); at = end) {
      end = std::min(text.find('\n', at), text.size() - 1) + 1;
      const std::string line = text.substr(at, end - at);
      if (!Wanted(std::string(absl::StripSuffix(line, "\n")))) continue;
      item.mutable_log()->set_text(line);
      Emit({0, LineOf(ItemTree(item))});
    }
    PrintEmitted();
  }

  // Flushes lines that have no newline at their end.
  void Flush() {
    for (auto& [rank, rest] : rest_) {
      if (!rest.empty() && Wanted(rest)) Emit({generation_, absl::StrCat(Prefix(rank), Shown(rest), "\n")});
      rest.clear();
    }
    PrintEmitted();
  }
  bool printed() const { return printed_; }

 private:
  struct Line {
    uint64_t generation = 0;
    std::string text;
  };

  void Emit(const Line& line) {
    if (most_kept_.has_value()) {
      kept_.push_back(line);
      if (kept_.size() > *most_kept_) kept_.pop_front();
      return;
    }
    if (shown_generation_ != 0 && line.generation > shown_generation_) {
      PrintEmitted();
      Say(absl::StrCat("-- generation ", line.generation, " --"));
    }
    shown_generation_ = std::max(shown_generation_, line.generation);
    emitted_ += line.text;
  }
  void PrintEmitted() {
    printed_ |= !emitted_.empty();
    Print(std::exchange(emitted_, ""));
  }
  std::string Prefix(uint32_t rank) const { return name_ranks_ ? absl::StrCat("rank ", rank, ": ") : ""; }

  bool Wanted(const std::string& line) const { return only_ == nullptr || only_->Matches(line); }
  std::string Shown(const std::string& line) const { return raw_ ? line : Lines(WithOneClock(screen_, line)); }

  const Screen screen_;
  const bool name_ranks_;
  const bool raw_;
  const absl::Time since_;
  const LinePattern* const only_;
  bool printed_ = false;
  uint64_t generation_ = 0, shown_generation_ = 0;
  std::map<uint32_t, std::string> rest_;
  std::optional<size_t> most_kept_;
  std::deque<Line> kept_;
  std::string emitted_;
};

// A job may have run on more ranks than its spec says now.
uint32_t RanksEver(const v1::GetJobReply& reply) {
  uint32_t most = std::max(1u, reply.job().spec().resources().ranks());
  for (const v1::Generation& generation : reply.generations()) {
    most = std::max(most, static_cast<uint32_t>(generation.ranks_size()));
  }
  return most;
}

std::string NothingPrinted(const v1::Job& job, const LogsFlags& flags) {
  if (!flags.grep.empty() || !flags.since.empty()) return "no lines match";
  const std::string rank = flags.rank.has_value() ? absl::StrCat(", rank ", *flags.rank) : "";
  return absl::StrCat(job.id(), rank, " (", StateName(job.state()),
                      "): ", Ended(job.state()) ? "it printed nothing" : "no output yet");
}

absl::StatusOr<ExitCode> Run(const Invocation& invocation, const LogsFlags& flags) {
  if (flags.raw && isatty(STDOUT_FILENO) != 0) {
    return absl::InvalidArgumentError(
        "--raw does not print to a terminal, because output with control characters could take it over: use a pipe or "
        "a file (muster logs --raw JOB | less -R)");
  }
  const absl::StatusOr<absl::Time> since = ParseSince(flags.since, absl::Now());
  if (!since.ok()) return since.status();
  std::unique_ptr<LinePattern> only;
  if (!flags.grep.empty()) {
    absl::StatusOr<std::unique_ptr<LinePattern>> pattern = LinePattern::Make(flags.grep);
    if (!pattern.ok()) return pattern.status();
    only = *std::move(pattern);
  }
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  const absl::StatusOr<std::string> job = invocation.JobNamed(flags.job, **client);
  if (!job.ok()) return job.status();
  const absl::StatusOr<v1::GetJobReply> got = (*client)->GetJob(*job);
  if (!got.ok()) return got.status();
  if (const uint32_t ranks = RanksEver(*got); flags.rank.has_value() && *flags.rank >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rank ", *flags.rank, ": ", got->job().id(),
                     ranks == 1 ? " has only rank 0" : absl::StrCat(" has ranks 0 to ", ranks - 1)));
  }
  v1::WatchRequest request;
  request.set_job(got->job().id());
  request.set_logs(true);
  request.set_follow(flags.follow);
  if (flags.rank) request.set_rank(*flags.rank);
  // The coordinator cannot count the newest that match.
  const bool count_here = only != nullptr && flags.tail.value_or(0) > 0;
  if (flags.tail && !count_here) request.set_tail(*flags.tail);
  bool dropped = false;  // lines that are no longer kept
  LogPrinter printer(!flags.rank && got->job().spec().resources().ranks() > 1, flags.raw, *since, only.get());
  const auto take = [&](const v1::WatchItem& item) {
    if (item.has_log() && flags.format == Format::kJson) {
      printer.TakeAsJson(item);
    } else if (item.has_log()) {
      printer.Take(item.log());
    } else if (item.has_gap() && flags.format != Format::kJson) {
      dropped = true;
      Say("(older lines were dropped)");
    }
    return true;
  };
  if (!flags.follow || count_here) {
    v1::WatchRequest until_now = request;
    until_now.set_follow(false);
    if (count_here) printer.Keep(*flags.tail);
    const absl::Status read = ReadItems(**client, until_now, [&](const v1::WatchItem& item) {
      if (!item.cursor().empty()) request.set_cursor(item.cursor());
      take(item);
    });
    if (!flags.follow) printer.Flush();
    printer.Release();
    if (!read.ok()) return read;
  }
  if (!flags.follow) {
    if (!printer.printed() && !dropped && flags.tail != 0u && flags.format == Format::kTable) {
      Say(NothingPrinted(got->job(), flags));
    }
    return kOk;
  }
  const absl::StatusOr<ExitCode> code =
      FollowItems(**client, request,
                  {.take = take,
                   .timeout = (*client)->connection().timeout,
                   .detached = absl::StrCat("detached; ", got->job().id(), " continues")});
  printer.Flush();
  return code;
}

}  // namespace

void RegisterLogs(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<LogsFlags>();
  CLI::App* command = AddCommand(app, "logs", kGroupLook, "Print the output of the ranks of a job",
                                 "muster logs -f @last\nmuster logs gpt2-tiny-x7f2 --rank 0 --tail 50\n"
                                 "muster logs @last --since 10m --grep 'error|nan'");
  AddJob(command, flags->job);
  command->add_flag("-f,--follow", flags->follow, "keep printing until the job ends");
  command->add_option("--rank", flags->rank, "only the lines of this rank")->type_name("N");
  command->add_option("--tail", flags->tail, "only the newest N lines")->type_name("N");
  command->add_option("--since", flags->since, "only lines since 10m, 2h or 7d ago, or since a time")
      ->type_name("TIME");
  command->add_option("--grep", flags->grep, "only lines that match this regular expression (as grep -E)")
      ->type_name("PATTERN");
  command->add_flag("--raw", flags->raw, "keep colors and other control characters; not on a terminal");
  AddFormat(command, flags->format, {"table", "json"});
  OnRun(command, invocation, [&invocation, flags] { return Run(invocation, *flags); });
}

}  // namespace muster::cli
