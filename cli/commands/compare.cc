#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/follow_job.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "common/message/tree.h"

namespace muster::cli {
namespace {

using nlohmann::ordered_json;

// The last value of a metric and, of one that is to fall, the lowest.
struct Figure {
  double last = 0, best = 0;
};

struct Compared {
  v1::Job job;
  uint64_t step = 0;
  std::map<std::string, std::string> fields;  // "optimizer.lr": "0.001", of the resolved spec
  std::map<std::string, Figure> figures;      // by the name of the metric
};

// Lists as they are in JSON.
void Flatten(const ordered_json& tree, const std::string& prefix, std::map<std::string, std::string>& into) {
  for (const auto& [key, value] : tree.items()) {
    const std::string path = prefix.empty() ? key : absl::StrCat(prefix, ".", key);
    if (value.is_object()) {
      Flatten(value, path, into);
    } else {
      into[path] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
}

void Note(const std::string& name, double value, std::map<std::string, Figure>& figures) {
  const auto [at, fresh] = figures.emplace(name, Figure{value, value});
  if (fresh) return;
  at->second.last = value;
  at->second.best = std::fmin(at->second.best, value);  // of NaN and a number, the number
}

void Note(const v1::MetricPoint& point, std::map<std::string, Figure>& figures) {
  if (point.has_loss()) Note("loss", point.loss(), figures);
  if (point.has_validation_loss()) Note("validation loss", point.validation_loss(), figures);
  if (point.has_tokens_per_second()) Note("tokens per second", point.tokens_per_second(), figures);
  if (point.has_samples_per_second()) Note("samples per second", point.samples_per_second(), figures);
  for (const v1::NamedMetric& named : point.validation()) Note("validation " + named.name(), named.value(), figures);
  for (const v1::NamedMetric& named : point.reported()) Note(named.name(), named.value(), figures);
}

absl::StatusOr<Compared> Look(Client& client, const std::string& name) {
  const absl::StatusOr<v1::GetJobReply> got = client.GetJob(name);
  if (!got.ok()) return got.status();
  Compared compared;
  compared.job = got->job();
  compared.step = std::max(got->job().progress_step(), got->last_metrics().step());
  Flatten(SpecTree(got->job().spec()), "", compared.fields);
  v1::WatchRequest request;
  request.set_job(got->job().id());
  request.set_metrics(true);
  const absl::Status read = ReadItems(client, request, [&](const v1::WatchItem& item) {
    if (item.has_metrics()) Note(item.metrics(), compared.figures);
  });
  if (!read.ok()) return read;
  return compared;
}

bool Falls(const std::string& metric) {
  return metric == "loss" || metric.find("loss") != std::string::npos || metric == "validation perplexity";
}

// Rows of a name and a text for each job, in the order of the page `compare`.
std::vector<std::vector<Cell>> FigureRows(const std::vector<Compared>& jobs) {
  std::vector<std::vector<Cell>> rows;
  const auto add = [&](const std::string& name, const auto& text) {
    std::vector<Cell>& row = rows.emplace_back();
    row.emplace_back(name);
    for (const Compared& job : jobs) row.emplace_back(text(job));
  };
  add("state", [](const Compared& c) { return StateName(c.job.state()); });
  add("user", [](const Compared& c) { return c.job.owner(); });
  add("step", [](const Compared& c) { return absl::StrCat(c.step); });
  std::set<std::string> names;
  for (const Compared& job : jobs) {
    for (const auto& [name, figure] : job.figures) names.insert(name);
  }
  for (const std::string& name : names) {
    const auto value = [&](const Compared& c, double Figure::*of) {
      const auto found = c.figures.find(name);
      return found == c.figures.end() || std::isnan(found->second.*of) ? "" : Significant(found->second.*of);
    };
    add(name, [&](const Compared& c) { return value(c, &Figure::last); });
    if (Falls(name)) add("best " + name, [&](const Compared& c) { return value(c, &Figure::best); });
  }
  add("training seconds", [](const Compared& c) { return Significant(c.job.time_breakdown().training()); });
  add("restarts", [](const Compared& c) { return absl::StrCat(c.job.restarts()); });
  return rows;
}

// Paths of the fields that are not the same in all specs.
std::vector<std::string> Differing(const std::vector<Compared>& jobs) {
  std::set<std::string> all;
  for (const Compared& job : jobs) {
    for (const auto& [path, value] : job.fields) all.insert(path);
  }
  std::vector<std::string> differing;
  for (const std::string& path : all) {
    std::set<std::optional<std::string>> values;
    for (const Compared& job : jobs) {
      const auto found = job.fields.find(path);
      values.insert(found == job.fields.end() ? std::nullopt : std::optional(found->second));
    }
    if (values.size() > 1) differing.push_back(path);
  }
  return differing;
}

std::string FieldOf(const Compared& job, const std::string& path) {
  const auto found = job.fields.find(path);
  return found == job.fields.end() ? "" : OneLine(found->second);
}

ordered_json Tree(const std::vector<Compared>& jobs, const std::vector<std::string>& differing) {
  ordered_json list = ordered_json::array();
  for (const Compared& job : jobs) {
    ordered_json figures = ordered_json::object(), fields = ordered_json::object();
    for (const auto& [name, figure] : job.figures) {
      figures[name] = {{"last", figure.last}};
      if (Falls(name)) figures[name]["best"] = figure.best;
    }
    for (const std::string& path : differing) {
      const auto found = job.fields.find(path);
      fields[path] = found == job.fields.end() ? ordered_json() : ordered_json(found->second);
    }
    list.push_back({{"job", job.job.id()},
                    {"state", StateName(job.job.state())},
                    {"user", job.job.owner()},
                    {"step", job.step},
                    {"metrics", std::move(figures)},
                    {"training_seconds", job.job.time_breakdown().training()},
                    {"restarts", job.job.restarts()},
                    {"fields", std::move(fields)}});
  }
  return list;
}

void Show(const std::vector<Compared>& jobs, const std::vector<std::string>& differing, const Screen& screen) {
  const auto table = [&](const char* title) {
    std::vector<Column> columns = {{title}};
    for (const Compared& job : jobs) columns.push_back({job.job.id(), true});
    return Table(columns);
  };
  Table figures = table("FIGURE");
  for (std::vector<Cell>& row : FigureRows(jobs)) figures.Add(std::move(row));
  Print(figures.RenderOrBlocks(screen));
  if (differing.empty()) return Print("\nThe specs are the same.\n");
  Table fields = table("FIELD");
  for (const std::string& path : differing) {
    std::vector<Cell> row = {path};
    for (const Compared& job : jobs) row.emplace_back(FieldOf(job, path));
    fields.Add(std::move(row));
  }
  Print("\n" + fields.RenderOrBlocks(screen));
}

}  // namespace

void RegisterCompare(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::vector<std::string> names;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "compare", kGroupLook, "Compare jobs: the fields that differ, last and best metrics",
                 "muster compare gpt2-tiny-x7f2 @last\nmuster compare @last gpt2-tiny-x7f2 -o json");
  command->add_option("JOB", flags->names, "ids, unique prefixes of ids, or @last")->required()->expected(2, 100);
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    std::vector<Compared> jobs;
    for (const std::string& text : flags->names) {
      const absl::StatusOr<std::string> name = invocation.JobNamed(text, **client);
      if (!name.ok()) return name.status();
      absl::StatusOr<Compared> compared = Look(**client, *name);
      if (!compared.ok()) return compared.status();
      jobs.push_back(*std::move(compared));
    }
    const std::vector<std::string> differing = Differing(jobs);
    if (flags->format == Format::kTable) {
      Show(jobs, differing, invocation.Out());
    } else {
      PrintTree(Tree(jobs, differing), flags->format);
    }
    return kOk;
  });
}

}  // namespace muster::cli
