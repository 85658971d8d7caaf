#include "coordinator/tracking/run_data.h"

#include <google/protobuf/message.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/message/tree.h"
#include "common/proto_time.h"
#include "common/sha256.h"
#include "common/utf8.h"

namespace muster::tracking {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostKeyBytes = 250, kMostParamBytes = 6000, kMostTagBytes = 5000;
constexpr size_t kHashLetters = 8;
constexpr char kLabelTag[] = "muster.label.", kNoteTag[] = "mlflow.note.content";

std::string Dump(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void Flatten(const ordered_json& tree, const std::string& prefix, Texts& into) {
  for (const auto& [key, value] : tree.items()) {
    const std::string path = prefix.empty() ? key : absl::StrCat(prefix, ".", key);
    if (value.is_object()) {
      Flatten(value, path, into);
      continue;
    }
    std::string text = Dump(value);
    ShortenUtf8(kMostParamBytes, text);
    into[KeyOf(path)] = std::move(text);
  }
}

void Put(const std::string& key, std::string value, Texts& tags) {
  ShortenUtf8(kMostTagBytes, value);
  tags[KeyOf(key)] = std::move(value);
}

std::string StateOf(const Job& job) {
  std::string state = JobState_Name(job.state());
  return absl::AsciiStrToLower(absl::StripPrefix(state, "JOB_STATE_"));
}

}  // namespace

std::string KeyOf(const std::string& name) {
  std::vector<std::string> parts = absl::StrSplit(name, '/', absl::SkipEmpty());
  for (std::string& part : parts) {
    if (part == "." || part == "..") part.insert(0, "_");
    std::replace_if(
        part.begin(), part.end(),
        [](unsigned char c) { return !absl::ascii_isalnum(c) && !absl::StrContains("_-.: ", static_cast<char>(c)); },
        '_');
  }
  std::string key = absl::StrJoin(parts, "/");
  if (absl::StartsWith(key, "..")) key.insert(0, "_");
  if (key == name && key.size() <= kMostKeyBytes && !key.empty()) return key;
  key.resize(std::min(key.size(), kMostKeyBytes - kHashLetters - 1));
  return absl::StrCat(key, "-", Sha256Hex(name).substr(0, kHashLetters));
}

std::vector<Metric> MetricsOf(const MetricPoint& point) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  std::vector<Metric> metrics;
  const Metric at{.timestamp_ms = std::max<int64_t>(0, absl::ToUnixMillis(FromProto(point.time()))),
                  .step = static_cast<int64_t>(std::min(point.step(), kMost))};
  const auto add = [&](const std::string& name, double value) {
    Metric& metric = metrics.emplace_back(at);
    metric.key = KeyOf(name);
    metric.value = value;
  };
  const auto add_fields = [&](const google::protobuf::Message& message, const std::string& prefix) {
    const ordered_json tree = MessageTree(message);
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    for (const auto* field : fields) {
      const ordered_json& value = tree.at(field->name());
      if (value.is_number() && field->name() != "step") add(prefix + field->name(), value.get<double>());
    }
  };
  add_fields(point, "");
  if (point.has_collective()) add_fields(point.collective(), "collective/");
  for (const NamedMetric& named : point.validation()) add("validation/" + named.name(), named.value());
  for (const NamedMetric& named : point.reported()) add(named.name(), named.value());
  return metrics;
}

Texts ParamsOf(const JobSpec& spec) {
  JobSpec shown = spec;
  shown.clear_labels();
  shown.clear_env();
  ordered_json tree = SpecTree(shown);
  if (spec.env_size() > 0) {
    ordered_json& names = tree["env"] = ordered_json::array();
    for (const EnvVar& variable : spec.env()) names.push_back(variable.name());
  }
  Texts params;
  Flatten(tree, "", params);
  return params;
}

Texts TagsOf(const Job& job, const std::string& store_id) {
  Texts tags;
  Put(kJobTag, job.id(), tags);
  Put(kStoreTag, store_id, tags);
  Put("mlflow.user", job.owner(), tags);
  Put("mlflow.source.type", "JOB", tags);
  Put("mlflow.source.name", job.id(), tags);
  Put("muster.user", job.owner(), tags);
  Put("muster.project", job.project().empty() ? "default" : job.project(), tags);
  Put("muster.state", StateOf(job), tags);
  if (job.generation() > 0) Put("muster.generation", absl::StrCat(job.generation()), tags);
  Put("muster.restarts", absl::StrCat(job.restarts()), tags);
  if (!job.note().empty()) Put(kNoteTag, job.note(), tags);
  if (job.has_failure()) Put("muster.failure", job.failure().exit().message(), tags);
  for (const std::string& label : job.labels()) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(label, absl::MaxSplits('=', 1));
    Put(kLabelTag + parts.first, parts.second, tags);
  }
  // Newest first, so that the end is cut.
  std::vector<PublishedCheckpoint> checkpoints(job.checkpoints().rbegin(), job.checkpoints().rend());
  if (job.has_script_checkpoint()) checkpoints.push_back(job.script_checkpoint());
  if (!checkpoints.empty()) {
    const bool exec = job.spec().has_exec();
    const std::string& folder = exec ? job.spec().exec().workdir() : job.spec().train().checkpoint().path();
    std::vector<std::string> paths;
    for (const PublishedCheckpoint& checkpoint : checkpoints) {
      const bool whole = folder.empty() || absl::StartsWith(checkpoint.directory(), "/");
      paths.push_back(whole ? checkpoint.directory() : absl::StrCat(folder, "/", checkpoint.directory()));
    }
    Put("muster.checkpoint", paths.front(), tags);
    Put("muster.checkpoint_step", absl::StrCat(checkpoints.front().step()), tags);
    Put("muster.checkpoints", absl::StrJoin(paths, "\n"), tags);
  }
  return tags;
}

bool IsOwnTag(const std::string& key) { return absl::StartsWith(key, "muster.") || key == kNoteTag; }

std::string StatusOf(const Job& job) {
  switch (job.state()) {
    case JOB_STATE_COMPLETED:
      return "FINISHED";
    case JOB_STATE_FAILED:
      return "FAILED";
    case JOB_STATE_CANCELLED:
      return "KILLED";
    case JOB_STATE_QUEUED:
    case JOB_STATE_PAUSED:
      return "SCHEDULED";
    default:
      return "RUNNING";
  }
}

}  // namespace muster::tracking
