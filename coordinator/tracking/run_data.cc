#include "coordinator/tracking/run_data.h"

#include <google/protobuf/descriptor.h>
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
#include "common/proto_time.h"
#include "common/sha256.h"
#include "common/utf8.h"
#include "proto/options.pb.h"

namespace muster::tracking {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

constexpr size_t kMostKeyBytes = 250, kMostParamBytes = 6000, kMostTagBytes = 5000;
constexpr size_t kHashLetters = 8;
constexpr char kLabelTag[] = "muster.label.", kNoteTag[] = "mlflow.note.content";

std::string Dump(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// "full_shard" of RESHARD_FULL_SHARD, as in a job file.
std::string TextOf(const EnumValueDescriptor& value) {
  absl::string_view prefix = value.type()->FindValueByNumber(0)->name(), text = value.name();
  absl::ConsumeSuffix(&prefix, "UNSPECIFIED");
  absl::ConsumePrefix(&text, prefix);
  return absl::AsciiStrToLower(text);
}

ordered_json TreeOf(const Message& message);

// One value: of a singular field (index -1) or an item of a repeated one.
ordered_json ValueOf(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool one = index < 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r.GetInt32(message, &field) : r.GetRepeatedInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r.GetInt64(message, &field) : r.GetRepeatedInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r.GetUInt32(message, &field) : r.GetRepeatedUInt32(message, &field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r.GetUInt64(message, &field) : r.GetRepeatedUInt64(message, &field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r.GetDouble(message, &field) : r.GetRepeatedDouble(message, &field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? r.GetFloat(message, &field) : r.GetRepeatedFloat(message, &field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r.GetBool(message, &field) : r.GetRepeatedBool(message, &field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return TextOf(one ? *r.GetEnum(message, &field) : *r.GetRepeatedEnum(message, &field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r.GetString(message, &field) : r.GetRepeatedString(message, &field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return TreeOf(one ? r.GetMessage(message, &field) : r.GetRepeatedMessage(message, &field, index));
  }
  return nullptr;
}

// As in a job file (proto/options.proto): a oneof is its own key beside its member's fields.
ordered_json TreeOf(const Message& message) {
  ordered_json tree = ordered_json::object();
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string key = field->has_json_name() ? field->json_name() : field->name();
    if (field->is_repeated()) {
      ordered_json& list = tree[key] = ordered_json::array();
      for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
        list.push_back(ValueOf(message, *field, i));
      }
      continue;
    }
    ordered_json value = ValueOf(message, *field, -1);
    if (const auto* oneof = field->real_containing_oneof(); oneof != nullptr) {
      // The spec's `workload: train` is left out, as its fields say it.
      const bool implied = message.GetDescriptor() == JobSpec::descriptor() &&
                           oneof->options().GetExtension(v1::default_member) == field->name() && !value.empty();
      if (!implied) tree[oneof->name()] = key;
      for (auto& [inner, inner_value] : value.items()) tree[inner] = inner_value;
    } else if (value.is_object() && value.size() == 1 && value.value("auto", false)) {
      tree[key] = "auto";
    } else {
      tree[key] = std::move(value);
    }
  }
  return tree;
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
  const auto add_fields = [&](const Message& message, const std::string& prefix) {
    std::vector<const FieldDescriptor*> fields;
    message.GetReflection()->ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->is_repeated() || field->message_type() != nullptr || field->name() == "step") continue;
      const ordered_json value = ValueOf(message, *field, -1);
      if (value.is_number()) add(prefix + field->name(), value.get<double>());
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
  ordered_json tree = TreeOf(shown);
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
