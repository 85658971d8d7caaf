#include "cli/output/describe.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/output/format.h"
#include "cli/output/live.h"
#include "cli/spec/writer.h"
#include "common/bytes.h"
#include "common/counted.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

template <typename Point, typename Has, typename Get>
std::string Metric(const Point& point, Has has, Get get) {
  return (point.*has)() ? Significant((point.*get)()) : "-";
}

std::string StepText(const v1::JobSummary& summary) {
  const uint64_t step = std::max(summary.last_metrics().step(), summary.job().progress_step());
  const uint64_t total = summary.job().spec().train().steps();
  if (total == 0) return step == 0 ? "-" : absl::StrCat(step);
  return absl::StrCat(step, "/", total);
}

std::string AgeOf(const google::protobuf::Timestamp& time, bool known, absl::Time now) {
  return known ? Age(now - FromProto(time)) : "-";
}

std::string Ago(const google::protobuf::Timestamp& time, const Screen& screen, absl::Time now) {
  return absl::StrCat(DateAndTime(screen, FromProto(time)), " (", Age(now - FromProto(time)), " ago)");
}

// When a running job ends, by its last step; empty: unknown.
std::string EndsAt(const v1::Job& job, const v1::MetricPoint& metrics, const Screen& screen, absl::Time now) {
  const std::optional<absl::Duration> left = Remaining(job, metrics);
  return left.has_value() ? DateAndTime(screen, now + *left) : "";
}

// A word for a shell, quoted where it must be.
std::string ShellWord(const std::string& text) {
  const bool plain = absl::c_all_of(text, [](unsigned char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("/._-+:@%,=", std::string(1, static_cast<char>(c)));
  });
  return plain && !text.empty() ? text : absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// What `ps` shows of a reason; the whole is in `ps -o wide` and `describe`.
constexpr int kReasonColumns = 72;

std::string Ranks(int count) { return absl::StrCat(count, count == 1 ? " rank" : " ranks"); }

std::string Slots(const google::protobuf::RepeatedField<uint32_t>& slots) { return absl::StrJoin(slots, ","); }

std::string Indented(const std::string& text) {
  std::string out;
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  for (const std::string& line : lines) absl::StrAppend(&out, line.empty() ? "" : "  ", line, "\n");
  return out;
}

std::string IndentedTable(const Table& table, Screen screen) {
  if (screen.width > 2) screen.width -= 2;
  return Indented(table.Render(screen));
}

std::string ResumedFrom(const v1::Generation& generation, const v1::Checkpoint& checkpoint) {
  const std::string step = generation.resumed_step() > 0 ? absl::StrCat("step ", generation.resumed_step()) : "";
  if (generation.has_resume_from() || checkpoint.resume_from().empty()) return step.empty() ? "the start" : step;
  return absl::StrCat(step, step.empty() ? "" : " of ", OneLine(checkpoint.resume_from()));
}

struct Axis {
  const char* title;
  std::function<uint32_t(const v1::RankPlacement&)> of;
};

// The axes of the mesh on which the ranks differ, but for replicas and shards of the same numbers as the ranks.
std::vector<Axis> AxesOf(const google::protobuf::RepeatedPtrField<v1::RankPlacement>& ranks) {
  std::vector<Axis> axes;
  const auto add = [&](const Axis& axis, bool also_as_ranks) {
    bool differ = false, as_ranks = true;
    for (const v1::RankPlacement& rank : ranks) {
      const uint32_t at = axis.of(rank);
      differ |= at > 0;
      as_ranks &= at == rank.rank();
    }
    if (differ && (also_as_ranks || !as_ranks)) axes.push_back(axis);
  };
  const auto in_role = [](uint32_t (v1::RankRole::*of)() const) {
    return [of](const v1::RankPlacement& rank) { return (rank.role().*of)(); };
  };
  add({"STAGE", in_role(&v1::RankRole::stage)}, /*also_as_ranks=*/true);
  add({"REPLICA", in_role(&v1::RankRole::replica)}, /*also_as_ranks=*/false);
  add({"SHARD", in_role(&v1::RankRole::shard_in_stage)}, /*also_as_ranks=*/false);
  add({"CONTEXT", in_role(&v1::RankRole::context)}, /*also_as_ranks=*/true);
  add({"TENSOR", in_role(&v1::RankRole::tensor)}, /*also_as_ranks=*/true);
  return axes;
}

void AddGenerations(const v1::GetJobReply& reply, const Screen& screen, absl::Time now, std::string& out) {
  if (reply.generations().empty()) return;
  // The nodes of its ranks are in the next table, too.
  Table table({{"GENERATION", true},
               {"STATE"},
               {"REASON"},
               {"RANKS", true},
               {"DEVICE", false, /*optional=*/1},
               {"NODES", false, /*optional=*/1},
               {"AGE", true, /*optional=*/1},
               {"RESUMED FROM"}});
  for (const v1::Generation& generation : reply.generations()) {
    std::vector<std::string> nodes;
    for (const v1::RankPlacement& rank : generation.ranks()) {
      if (std::find(nodes.begin(), nodes.end(), rank.node()) == nodes.end()) nodes.push_back(rank.node());
    }
    table.Add({absl::StrCat(generation.number()), StateName(generation.state()), ReasonName(generation.reason()),
               absl::StrCat(generation.ranks_size()), DeviceName(generation.device()), absl::StrJoin(nodes, ","),
               AgeOf(generation.created(), generation.has_created(), now),
               ResumedFrom(generation, reply.job().spec().train().checkpoint())});
  }
  absl::StrAppend(&out, "\nGenerations:\n", IndentedTable(table, screen));
  const auto& placed = reply.generations(0).ranks();
  const std::vector<Axis> axes = AxesOf(placed);
  std::vector<Column> columns = {{"RANK", true}};
  for (const Axis& axis : axes) columns.push_back({axis.title, true});
  columns.insert(columns.end(), {{"NODE"}, {"SLOTS"}, {"STATE"}, {.title = "EXIT", .narrow = Narrow::kWrap}});
  Table ranks(columns);
  for (const v1::RankPlacement& rank : placed) {
    std::vector<Cell> cells = {absl::StrCat(rank.rank())};
    for (const Axis& axis : axes) cells.emplace_back(absl::StrCat(axis.of(rank)));
    cells.insert(cells.end(), {rank.node(), Slots(rank.slots()), StateName(rank.state()),
                               rank.has_exit() ? rank.exit().message() : ""});
    ranks.Add(std::move(cells));
  }
  absl::StrAppend(&out, "\nRanks of generation ", reply.generations(0).number(), ":\n", IndentedTable(ranks, screen));
}

void AddCheckpoints(const v1::Job& job, const Screen& screen, absl::Time now, std::string& out) {
  if (job.has_script_checkpoint()) {
    const v1::PublishedCheckpoint& newest = job.script_checkpoint();
    absl::StrAppend(&out, "\nNewest checkpoint of its script: step ", newest.step(), ", ",
                    AgeOf(newest.published(), newest.has_published(), now), " old: ", OneLine(newest.directory()),
                    "\n");
  }
  if (job.checkpoints().empty()) return;
  Table table({{"STEP", true}, {"GENERATION", true}, {"SAMPLES", true, /*optional=*/1}, {"AGE", true}, {"DIRECTORY"}});
  for (const v1::PublishedCheckpoint& checkpoint : job.checkpoints()) {
    table.Add({absl::StrCat(checkpoint.step()), absl::StrCat(checkpoint.generation()),
               absl::StrCat(checkpoint.samples_consumed()),
               AgeOf(checkpoint.published(), checkpoint.has_published(), now), checkpoint.directory()});
  }
  absl::StrAppend(&out, "\nCheckpoints below ", OneLine(job.spec().train().checkpoint().path()), ":\n",
                  IndentedTable(table, screen));
}

// "4 ranks", "2 to 4 ranks".
std::string RanksOf(const v1::Resources& resources) {
  if (!resources.has_min_ranks() || resources.min_ranks() >= resources.ranks()) {
    return Ranks(static_cast<int>(resources.ranks()));
  }
  return absl::StrCat(resources.min_ranks(), " to ", Ranks(static_cast<int>(resources.ranks())));
}

// Where the job's time went. Waiting for slots and pauses are not overhead, so they are listed apart.
std::string TimeBreakdownText(const v1::TimeBreakdown& time) {
  const std::pair<const char*, double> counted[] = {
      {"training", time.training()},   {"starting", time.starting()},     {"checkpoint stall", time.checkpoint_stall()},
      {"detecting", time.detecting()}, {"recovering", time.recovering()}, {"recomputing", time.recomputing()},
  };
  double all = 0;
  std::vector<std::string> parts, excluded;
  const auto add = [](std::vector<std::string>& to, const char* label, double seconds) {
    if (seconds >= 0.5) to.push_back(absl::StrCat(label, " ", Span(absl::Seconds(seconds))));
  };
  for (const auto& [label, seconds] : counted) {
    all += seconds;
    add(parts, label, seconds);
  }
  if (all <= 0) return "";
  add(excluded, "queued", time.queued());
  add(excluded, "paused", time.paused());
  return absl::StrFormat("%.3g%% of %s since it first started%s%s%s%s", 100 * time.training() / all,
                         Span(absl::Seconds(all)), parts.empty() ? "" : ": ", absl::StrJoin(parts, ", "),
                         excluded.empty() ? "" : "; excludes ", absl::StrJoin(excluded, ", "));
}

// As Slurm's TIME: all generations, without the queue and pauses.
std::string RunTime(const v1::Job& job) {
  if (job.held_seconds() <= 0) return "-";
  return Span(absl::Seconds(std::round(job.held_seconds())));
}

// The last fault of a job that continued after it.
std::string LastFault(const v1::Job& job) {
  const v1::Failure& failure = job.failure();
  if (!job.has_failure() || job.state() == v1::JOB_STATE_FAILED) return "";
  return absl::StrCat("generation ", failure.generation(), " on ", OneLine(failure.node()), ": ",
                      OneLine(failure.exit().message()));
}

}  // namespace

Table JobTable(const v1::ListJobsReply& reply, bool wide, const Screen& screen, absl::Time now) {
  // Who asks for all columns gets them, on a narrow terminal too.
  std::vector<Column> columns = {{"JOB"}, {"STATE"}, {"STEP", true}};
  const auto number = [&](const char* title, int optional) { columns.push_back({title, true, wide ? 0 : optional}); };
  number("LOSS", 1), number("TOKENS/S", 2), number("TIME", 3), number("LEFT", 0), number("AGE", 4);
  if (wide) {
    for (const char* title : {"ENDS", "OWNER", "MODEL", "STRATEGY", "NODES"}) columns.push_back({title});
    for (const char* title : {"RANKS", "PRIORITY", "GENERATION", "RESTARTS"}) columns.push_back({title, true});
    for (const char* title : {"LABELS", "NOTE"}) columns.push_back({title});
  }
  columns.push_back({.title = "REASON", .narrow = wide ? Narrow::kWrap : Narrow::kCut});
  Table table(columns);
  for (const v1::JobSummary& summary : reply.jobs()) {
    const v1::Job& job = summary.job();
    const v1::MetricPoint& metrics = summary.last_metrics();
    std::vector<Cell> row = {job.id(),
                             Cell(StateName(job.state()), ColourOf(job.state())),
                             StepText(summary),
                             Metric(metrics, &v1::MetricPoint::has_loss, &v1::MetricPoint::loss),
                             metrics.has_tokens_per_second() ? Count(metrics.tokens_per_second()) : "-",
                             RunTime(job),
                             TimeLeft(job, metrics),
                             AgeOf(job.submitted(), job.has_submitted(), now)};
    if (wide) {
      row.insert(row.end(),
                 {EndsAt(job, metrics, screen, now), job.owner(), ModelName(job.spec()), StrategyName(job.spec()),
                  absl::StrJoin(summary.nodes(), ","), absl::StrCat(job.spec().resources().ranks()),
                  absl::StrCat(job.spec().priority()), absl::StrCat(job.generation()), absl::StrCat(job.restarts()),
                  absl::StrJoin(job.labels(), ","), job.note()});
    }
    row.emplace_back(wide ? job.reason() : Cut(OneLine(job.reason()), kReasonColumns, /*unicode=*/false));
    for (Cell& cell : row) {
      if (cell.text == "-") cell.text.clear();  // blocks have no lines for them
    }
    table.Add(std::move(row));
  }
  return table;
}

// "maint in 3d", "maint for 2h": it begins then, or still lasts so long.
std::string ReservedFor(const v1::NodeReservation& reservation, absl::Time now) {
  if (reservation.name().empty()) return "";
  const absl::Duration begins_in = FromProto(reservation.start()) - now;
  if (begins_in > absl::ZeroDuration()) return absl::StrCat(reservation.name(), " in ", Span(begins_in));
  return absl::StrCat(reservation.name(), " for ", Span(FromProto(reservation.end()) - now));
}

Table NodeTable(const v1::ListNodesReply& reply, bool wide, absl::Time now) {
  std::vector<Column> columns = {{"NODE"},
                                 {"STATE"},
                                 {"SLOTS", true},
                                 {"FREE", true},
                                 {"DEVICE", false, wide ? 0 : 1},
                                 {"AGE", true, wide ? 0 : 2}};
  if (wide) {
    for (const char* title :
         {"HOSTNAME", "VERSION", "MEMORY", "MODEL", "CPU", "BUSY CORES", "USED MEMORY", "LABELS", "RESERVATION"})
      columns.push_back({title});
  }
  columns.push_back({.title = "JOBS", .narrow = wide ? Narrow::kWhole : Narrow::kCut});
  Table table(columns);
  for (const v1::Node& node : reply.nodes()) {
    int free = 0;
    bool stuck = false;
    uint64_t memory = 0;
    std::vector<std::string> jobs;
    for (const v1::Slot& slot : node.slots()) {
      free += slot.state() == v1::SLOT_STATE_FREE ? 1 : 0;
      stuck |= slot.state() == v1::SLOT_STATE_STUCK;
      memory += slot.memory_bytes();
      if (!slot.job().empty() && std::find(jobs.begin(), jobs.end(), slot.job()) == jobs.end()) {
        jobs.push_back(slot.job());
      }
    }
    const bool live = node.state() == v1::NODE_STATE_LIVE;
    const std::string state = absl::StrCat(
        StateName(node.state()), node.draining() ? ",draining" : "", node.drain_reason().empty() ? "" : ",faulty",
        live && !NotReady(node).empty() ? ",not ready" : "", node.leaving() ? ",leaving" : "", stuck ? ",stuck" : "");
    const v1::Slot first = node.slots_size() > 0 ? node.slots(0) : v1::Slot();
    std::vector<Cell> row = {node.id(),
                             Cell(state, live ? Colour::kGreen : Colour::kYellow),
                             absl::StrCat(node.slots_size()),
                             absl::StrCat(free),
                             node.slots_size() > 0 ? DeviceName(first.device()) : "",
                             AgeOf(node.registered(), node.has_registered(), now)};
    if (wide) {
      // A CPU's model is that of its slots already.
      const bool named = first.device() == v1::DEVICE_CPU || node.cpu().model().empty();
      row.insert(row.end(),
                 {node.hostname(), node.version(), FormatBytes(memory), first.model(),
                  absl::StrCat(named ? "" : absl::StrCat(node.cpu().model(), ", "), node.cpu().instruction_set()),
                  BusyCores(node.use()), UsedMemory(node.use()), absl::StrJoin(node.labels(), ","),
                  ReservedFor(node.reservation(), now)});
    }
    row.emplace_back(absl::StrJoin(jobs, ","));
    table.Add(std::move(row));
  }
  return table;
}

std::string NodeNotes(const v1::ListNodesReply& reply) {
  std::string lines;
  for (const v1::Node& node : reply.nodes()) {
    if (!node.drain_reason().empty()) {
      absl::StrAppend(&lines, node.id(), " was drained by the coordinator after ", OneLine(node.drain_reason()),
                      "\n  once it is repaired: muster undrain ", node.id(), "\n");
    }
    if (const std::string why = NotReady(node); !why.empty() && node.state() == v1::NODE_STATE_LIVE) {
      absl::StrAppend(&lines, node.id(), " takes no new ranks: ", OneLine(why), "\n");
      if (!ProblemsOf(node.preflight()).empty()) {
        absl::StrAppend(&lines, "  it is checked every minute; to check it now: muster undrain ", node.id(), "\n");
      }
    }
    for (const v1::Slot& slot : node.slots()) {
      if (slot.state() != v1::SLOT_STATE_STUCK) continue;
      absl::StrAppend(&lines, "slot ", slot.index(), " of ", node.id(), " is stuck: ", OneLine(slot.stuck()),
                      "\n  the process was killed but does not exit: see /proc/PID/stack on the node, or reboot it\n");
    }
    if (node.state() == v1::NODE_STATE_LOST) {
      absl::StrAppend(&lines, node.id(), " is lost; if it is gone for good: muster nodes forget ", node.id(), "\n");
    }
  }
  return lines;
}

Table LinkTable(const std::vector<v1::NodeLink>& links, absl::Time now) {
  // Of the core of FROM: what it moves over sockets, and takes to compress a million gradients to int8.
  const bool cores = std::any_of(links.begin(), links.end(), [](const v1::NodeLink& link) { return link.has_core(); });
  std::vector<Column> columns = {
      {"FROM"}, {"TO"}, {"BANDWIDTH", true}, {"USUAL", true, /*optional=*/1}, {"LATENCY", true}};
  if (cores) {
    columns.push_back({"CORE-SOCKETS", true, /*optional=*/3});
    columns.push_back({"CORE-INT8", true, /*optional=*/2});
  }
  columns.push_back({"MEASURED", true});
  Table table(columns);
  for (const v1::NodeLink& link : links) {
    const bool slow = link.usual_bytes_per_second() > 0 && link.bytes_per_second() < link.usual_bytes_per_second() / 2;
    std::vector<Cell> row = {link.from(), link.node(),
                             Cell(FormatBitRate(link.bytes_per_second()), slow ? Colour::kYellow : Colour::kNone),
                             link.usual_bytes_per_second() > 0 ? FormatBitRate(link.usual_bytes_per_second()) : "",
                             FormatLatency(link.latency_seconds())};
    if (cores) {
      const v1::CoreRates& core = link.core();
      row.emplace_back(core.socket_bytes_per_second() > 0 ? FormatBitRate(core.socket_bytes_per_second()) : "");
      row.emplace_back(core.int8_seconds() > 0 ? FormatLatency(1e6 * core.int8_seconds()) : "");
    }
    row.emplace_back(absl::StrCat(AgeOf(link.measured(), link.has_measured(), now), " ago"));
    table.Add(std::move(row));
  }
  return table;
}

Table MetricsTable(const std::vector<v1::MetricPoint>& points) {
  using P = v1::MetricPoint;
  std::set<std::string> named;  // metrics of validations
  bool samples = false;         // none is of a language model
  bool scales = false, skips = false;
  for (const P& p : points) {
    for (const v1::NamedMetric& metric : p.validation()) named.insert(metric.name());
    samples |= p.has_samples_per_second() && !p.has_tokens_per_second();
    scales |= p.has_loss_scale();
    skips |= p.has_skipped_steps();
  }
  std::vector<Column> columns = {{"STEP", true},
                                 {"LOSS", true},
                                 {"GRAD-NORM", true, /*optional=*/1},
                                 {"LR", true, /*optional=*/1},
                                 {samples ? "SAMPLES/S" : "TOKENS/S", true},
                                 {"STEP-TIME", true, /*optional=*/1},
                                 {"MEMORY", true, /*optional=*/1},
                                 {"VAL-LOSS", true}};
  for (const std::string& name : named) {
    columns.push_back({absl::StrCat("VAL-", absl::AsciiStrToUpper(OneLine(name))), true});
  }
  if (scales) columns.push_back({"LOSS-SCALE", true});
  if (skips) columns.push_back({"SKIPPED", true});
  Table table(columns);
  for (const P& p : points) {
    const bool known = samples ? p.has_samples_per_second() : p.has_tokens_per_second();
    std::vector<Cell> row = {absl::StrCat(p.step()),
                             Metric(p, &P::has_loss, &P::loss),
                             Metric(p, &P::has_gradient_norm, &P::gradient_norm),
                             Metric(p, &P::has_learning_rate, &P::learning_rate),
                             known ? Count(samples ? p.samples_per_second() : p.tokens_per_second()) : "-",
                             p.has_step_seconds() ? absl::StrFormat("%.3fs", p.step_seconds()) : "-",
                             p.has_peak_memory_bytes() ? FormatBytes(p.peak_memory_bytes()) : "-",
                             Metric(p, &P::has_validation_loss, &P::validation_loss)};
    for (const std::string& name : named) {
      const auto found = absl::c_find_if(p.validation(), [&](const auto& metric) { return metric.name() == name; });
      row.emplace_back(found == p.validation().end() ? "-" : Significant(found->value()));
    }
    if (scales) row.emplace_back(p.has_loss_scale() ? absl::StrFormat("%.10g", p.loss_scale()) : "-");
    if (skips) row.emplace_back(absl::StrCat(p.skipped_steps()));
    table.Add(std::move(row));
  }
  return table;
}

std::string EventSubject(const v1::StateEvent& event) {
  return OneLine(event.job().empty() ? event.node() : event.job());
}

std::string EventLine(const v1::StateEvent& event, const Screen& screen, int subject_columns) {
  const std::string subject = EventSubject(event);
  const std::string blanks(static_cast<size_t>(std::max(0, subject_columns - Width(subject))), ' ');
  return absl::StrCat(Paint(screen, Colour::kDim, DateAndTime(screen, FromProto(event.time()))), "  ",
                      absl::StrFormat("%-22s", OneLine(event.kind())), "  ", subject, blanks, "  ",
                      OneLine(event.message()), "\n");
}

std::string DescribeJob(const v1::GetJobReply& reply, const std::vector<v1::StateEvent>& events, const Screen& screen,
                        absl::Time now) {
  const v1::Job& job = reply.job();
  std::string out;
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) absl::StrAppend(&out, absl::StrFormat("%-12s ", absl::StrCat(name, ":")), value, "\n");
  };
  line("Job", OneLine(job.id()));
  line("State", Paint(screen, ColourOf(job.state()), StateName(job.state())));
  line("Reason", OneLine(job.reason()));
  line("Owner", OneLine(job.owner()));
  line("Template", OneLine(job.spec().template_()));
  line("Labels", OneLine(absl::StrJoin(job.labels(), ", ")));
  line("Note", OneLine(job.note()));
  line("Project", OneLine(job.project()));
  line("Reservation", OneLine(job.reservation()));
  line(job.spec().has_exec() ? "Command" : "Model", ModelName(job.spec()));
  line("Strategy",
       absl::StrCat(StrategyName(job.spec()), ParallelName(job.spec()), ", ", RanksOf(job.spec().resources())));
  if (reply.generations_size() > 0) line("Chosen", OneLine(reply.generations(0).strategy_reason()));
  if (job.queue_position() > 0) line("Queue", absl::StrCat("position ", job.queue_position()));
  if (job.has_predicted_start()) line("Starts by", DateAndTime(screen, FromProto(job.predicted_start())));
  if (!job.spec().time_limit().empty()) {
    line("Time limit", absl::StrCat(OneLine(job.spec().time_limit()), ", of which it has used ",
                                    Span(absl::Seconds(std::round(job.held_seconds())))));
  }
  if (job.has_submitted()) line("Submitted", Ago(job.submitted(), screen, now));
  if (job.has_started()) line("Started", Ago(job.started(), screen, now));
  if (job.has_ended()) line("Ended", Ago(job.ended(), screen, now));
  line("Restarts", absl::StrCat(job.restarts(), " (", job.restarts_without_progress(), " without progress)"));
  const v1::MetricPoint& metrics = reply.last_metrics();
  if (metrics.step() > 0) {
    std::string text = absl::StrCat("step ", metrics.step());
    if (!job.spec().has_exec()) absl::StrAppend(&text, " of ", job.spec().train().steps());
    if (metrics.has_loss()) absl::StrAppend(&text, ", loss ", Significant(metrics.loss()));
    if (metrics.has_validation_loss()) {
      absl::StrAppend(&text, ", validation loss ", Validation(metrics));
    }
    if (const std::string rate = Rate(metrics); !rate.empty()) absl::StrAppend(&text, ", ", rate);
    for (const v1::NamedMetric& metric : metrics.reported()) {
      absl::StrAppend(&text, ", ", OneLine(metric.name()), " ", Significant(metric.value()));
    }
    if (metrics.has_skipped_steps())
      absl::StrAppend(&text, ", ", Counted(metrics.skipped_steps(), "step", "steps"), " skipped");
    line("Progress", text);
  }
  if (const std::string left = TimeLeft(job, metrics); !left.empty()) {
    const bool limited = *Remaining(job, metrics) == LimitLeft(job, absl::Seconds(job.held_seconds()));
    line("Time left", absl::StrCat(left, ", until ", EndsAt(job, metrics, screen, now),
                                   limited ? ", when its time limit stops it before its last step" : ""));
  }
  line("Goodput", TimeBreakdownText(job.time_breakdown()));
  line("Last fault", LastFault(job));
  if (const std::string folder = OneLine(reply.tensorboard_directory()); !folder.empty()) {
    line("TensorBoard", absl::StrCat("tensorboard --logdir ", ShellWord(folder)));
  }
  JobView view(screen);
  view.SetJob(job);
  if (const std::string failure = view.FailureText(/*with_reason=*/false); !failure.empty()) {
    absl::StrAppend(&out, "\nFailure:\n", Indented(failure));
  }
  AddGenerations(reply, screen, now, out);
  if (!reply.links().empty()) {
    absl::StrAppend(&out, "\nLinks between its nodes:\n",
                    IndentedTable(LinkTable({reply.links().begin(), reply.links().end()}, now), screen));
  }
  AddCheckpoints(job, screen, now, out);
  if (!events.empty()) out += "\nNewest events:\n";
  for (const v1::StateEvent& event : events) absl::StrAppend(&out, "  ", EventLine(event, screen));
  absl::StrAppend(&out, "\nSpec:\n", Indented(WriteSpec(job.spec())));
  return out;
}

}  // namespace muster::cli
