#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/follow_job.h"
#include "cli/output/describe.h"
#include "cli/output/live.h"
#include "cli/output/plot.h"
#include "cli/output_format.h"
#include "common/message/tree.h"

namespace muster::cli {
namespace {

struct MetricsFlags {
  std::string job;
  bool follow = false;
  bool plot = false;
  std::string metric;
  std::optional<uint32_t> tail;
  Format format = Format::kTable;
};

// Rows of a stream: the titles once, then one row each, in columns of fixed width.
class Rows {
 public:
  explicit Rows(Format format) : json_(format == Format::kJson) {}

  void Add(const v1::MetricPoint& point) {
    if (json_) return PrintLine(MessageTree(point));
    const std::string table = MetricsTable({point}).Render(Screen{});
    const size_t first = table.find('\n') + 1;
    if (!titled_) Print(Padded(table.substr(0, first - 1)));
    titled_ = true;
    Print(Padded(table.substr(first, table.size() - first - 1)));
  }

 private:
  // Right-aligns every word in a column of its own.
  static std::string Padded(const std::string& line) {
    std::string out;
    for (size_t at = 0; at < line.size();) {
      const size_t begin = line.find_first_not_of(' ', at);
      if (begin == std::string::npos) break;
      size_t end = line.find("  ", begin);
      if (end == std::string::npos) end = line.size();
      const std::string word = line.substr(begin, end - begin);
      absl::StrAppend(&out, std::string(word.size() < 10 ? 10 - word.size() : 1, ' '), word);
      at = end;
    }
    return out + "\n";
  }

  const bool json_;
  bool titled_ = false;
};

constexpr char kTooNarrow[] = "no plot: it needs a terminal of at least 30 columns";

// The curve of a metric that the job's task has beside the loss. NotFound: no validation reported it.
absl::StatusOr<std::string> CurveOf(const std::string& metric, const std::vector<v1::MetricPoint>& points,
                                    const Screen& screen) {
  std::set<std::string> known;
  Plot plot;
  plot.title = absl::StrCat("validation ", metric);
  plot.unicode = screen.unicode;
  plot.width = CurveWidth(screen);
  for (const v1::MetricPoint& point : points) {
    for (const v1::NamedMetric& named : point.validation()) {
      known.insert(named.name());
      if (named.name() == metric) plot.line.emplace_back(point.step(), named.value());
    }
  }
  if (!known.contains(metric)) {
    return absl::NotFoundError(absl::StrCat("--metric: no validation of this job has reported ", metric,
                                            known.empty() ? "" : "; known: ", absl::StrJoin(known, ", ")));
  }
  return Draw(plot);
}

absl::StatusOr<ExitCode> Run(const Invocation& invocation, const MetricsFlags& flags) {
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return client.status();
  absl::StatusOr<std::string> job = invocation.JobNamed(flags.job, **client);
  if (!job.ok()) return job.status();
  const absl::StatusOr<v1::GetJobReply> got = (*client)->GetJob(*job);
  if (!got.ok()) return got.status();
  v1::WatchRequest request;
  request.set_job(got->job().id());
  request.set_metrics(true);
  request.set_follow(flags.follow);
  if (flags.tail) request.set_tail(*flags.tail);
  if (flags.follow) {
    Rows rows(flags.format);
    const auto take = [&](const v1::WatchItem& item) {
      if (item.has_metrics()) rows.Add(item.metrics());
      return true;
    };
    return FollowItems(**client, request,
                       {.take = take,
                        .timeout = (*client)->connection().timeout,
                        .detached = absl::StrCat("detached; ", got->job().id(), " continues")});
  }
  std::vector<v1::MetricPoint> points;
  JobView view(invocation.Out());
  view.SetJob(got->job());
  const absl::Status read = ReadItems(**client, request, [&](const v1::WatchItem& item) {
    if (item.has_metrics()) points.push_back(item.metrics());
    if (flags.plot) view.Apply(item, absl::Now());
  });
  if (!read.ok()) return read;
  if (!flags.metric.empty()) {
    const absl::StatusOr<std::string> curve = CurveOf(flags.metric, points, invocation.Out());
    if (!curve.ok()) return curve.status();
    if (curve->empty() && CurveWidth(invocation.Out()) < kLeastCurveWidth) Say(kTooNarrow);
    Print(*curve);
  } else if (flags.plot) {
    const std::string curve = view.Curve();
    if (curve.empty()) {
      Say(CurveWidth(invocation.Out()) < kLeastCurveWidth ? kTooNarrow : "fewer than two losses are known yet");
    }
    Print(curve);
  } else if (flags.format == Format::kJson || flags.format == Format::kYaml) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const v1::MetricPoint& point : points) list.push_back(MessageTree(point));
    PrintTree(list, flags.format);
  } else if (points.empty()) {
    if (flags.tail != 0u) Say("no metrics yet");
  } else {
    Print(MetricsTable(points).Render(invocation.Out()));
  }
  return kOk;
}

}  // namespace

void RegisterMetrics(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<MetricsFlags>();
  CLI::App* command = AddCommand(app, "metrics", kGroupLook, "Show the loss, throughput and step times of a job",
                                 "muster metrics @last --plot\nmuster metrics -f gpt2-tiny-x7f2 -o json");
  AddJob(command, flags->job);
  auto* follow = command->add_flag("-f,--follow", flags->follow, "keep printing until the job ends");
  auto* plot = command->add_flag("--plot", flags->plot, "plot the loss")->excludes(follow);
  command->add_option("--metric", flags->metric, "with --plot: plot this validation metric, e.g. top1")
      ->type_name("NAME")
      ->needs(plot);
  command->add_option("--tail", flags->tail, "only the newest N")->type_name("N");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags] { return Run(invocation, *flags); });
}

}  // namespace muster::cli
