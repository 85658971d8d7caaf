#include "docs/generate/spec_fields.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/spec/field.h"
#include "cli/spec/reader.h"
#include "cli/spec/schema.h"
#include "common/message/fields.h"
#include "coordinator/spec/resolve.h"
#include "proto/spec.pb.h"

namespace muster::docs {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

// The fields from the root down to a map.
using Way = std::vector<const FieldDescriptor*>;

constexpr char kRequired[] = "required";
constexpr char kNone[] = "none";
constexpr char kDepends[] = "depends";
constexpr char kOfItsFields[] = "of its fields";

constexpr char kTokens[] = "data: {tokens: /data/train.bin, validation: /data/val.bin}\n";

// Jobs in which fields get their defaults. What differs between them is what other defaults may follow from.
std::vector<JobSpec> MakeJobs() {
  struct Base {
    std::string job;
    std::vector<cli::Assignment> models;  // changes of its model
  };
  const std::vector<Base> bases = {
      {absl::StrCat(kTokens, "model: {family: gpt2, size: tiny}\n"), {{"", "model.size", "small"}}},
      {"data: {images: /data/train.bin, validation: /data/val.bin}\nmodel: {family: resnet, depth: 20}\n",
       {{"", "model.depth", "18"}, {"", "model.stem", "imagenet"}}},
      {absl::StrCat(kTokens,
                    "model: {family: llama, size: tiny, rope_scaling: {kind: llama3, factor: 8, original_context: "
                    "8192}}\nresources: {ranks: 2}\nparallel: {pipeline: 2}\n"),
       {{"", "model.size", "1b"}}},
      {absl::StrCat(kTokens, "model: {family: gpt2, size: tiny}\nprecision: {compute: fp16}\n"),
       {{"", "precision.loss_scaling.initial", "0.5"}}},
      {R"(data: {tensors: /data/train.safetensors}
model:
  family: custom
  library: /opt/libmine.so
  task: {name: tensors, tensors: [{name: user, type: float, shape: [8], input: true}], targets_per_sample: 1}
  units: [{name: all, kind: custom.modules, tensors: [{name: all.weight, shape: [8], init: {kind: zeros}}]}]
)",
       {}},
  };
  std::vector<JobSpec> jobs;
  for (const Base& base : bases) {
    std::vector<std::vector<cli::Assignment>> changes = {
        {},
        {{"", "resources.ranks", "4"}},
        {{"", "batch.sequences", "64"}},
        {{"", "optimizer.lr", "0.01"}, {"", "optimizer.weight_decay", "0.01"}},
        {{"", "optimizer", "sgd"}},
        {{"", "optimizer", "muon"}},
        {{"", "resources.ranks", "2"}, {"", "strategy", "ddp"}, {"", "communication.compression", "top_k"}},
        {{"", "sync", "{delay: 5, outer: {momentum: 0}}"}},
        {{"", "lora.rank", "16"}},
    };
    for (const cli::Assignment& model : base.models) changes.push_back({model});
    for (const std::vector<cli::Assignment>& change : changes) {
      jobs.push_back(cli::ReadSpec(absl::StrCat("apiVersion: muster/v1\nkind: Job\nname: a\nsteps: 1000\n"
                                                "checkpoint: {path: '/runs/{job}'}\n",
                                                base.job),
                                   "", change)
                         .spec);
    }
  }
  return jobs;
}

const std::vector<JobSpec>& Jobs() {
  static const auto& jobs = *new std::vector<JobSpec>(MakeJobs());
  return jobs;
}

// The map at the end of the way, made where it is missing; of lists the first entry.
Message* Make(Message& root, const Way& way) {
  Message* at = &root;
  for (const FieldDescriptor* field : way) {
    const Reflection* const r = at->GetReflection();
    if (!field->is_repeated()) {
      at = r->MutableMessage(at, field);
    } else {
      at = r->FieldSize(*at, field) > 0 ? r->MutableRepeatedMessage(at, field, 0) : r->AddMessage(at, field);
    }
  }
  return at;
}

// Null: there is none.
const Message* Find(const Message& root, const Way& way) {
  const Message* at = &root;
  for (const FieldDescriptor* field : way) {
    const Reflection* const r = at->GetReflection();
    if (field->is_repeated()) {
      if (r->FieldSize(*at, field) == 0) return nullptr;
      at = &r->GetRepeatedMessage(*at, field, 0);
    } else {
      if (!r->HasField(*at, field)) return nullptr;
      at = &r->GetMessage(*at, field);
    }
  }
  return at;
}

bool Has(const Message& owner, const FieldDescriptor& field) {
  const Reflection* const r = owner.GetReflection();
  if (field.is_repeated()) return r->FieldSize(owner, &field) > 0;
  return r->HasField(owner, &field);
}

void Clear(Message& owner, const FieldDescriptor& field) { owner.GetReflection()->ClearField(&owner, &field); }

std::string NumberText(double value) { return absl::StrCat(value); }

// One value of a scalar field as YAML. `at`: its place in a list.
std::string ValueText(const Message& owner, const FieldDescriptor& field, int at) {
  const Reflection* const r = owner.GetReflection();
  const bool list = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(list ? r->GetRepeatedInt32(owner, &field, at) : r->GetInt32(owner, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(list ? r->GetRepeatedInt64(owner, &field, at) : r->GetInt64(owner, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(list ? r->GetRepeatedUInt32(owner, &field, at) : r->GetUInt32(owner, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(list ? r->GetRepeatedUInt64(owner, &field, at) : r->GetUInt64(owner, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return NumberText(list ? r->GetRepeatedDouble(owner, &field, at) : r->GetDouble(owner, &field));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return absl::StrCat(list ? r->GetRepeatedFloat(owner, &field, at) : r->GetFloat(owner, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return (list ? r->GetRepeatedBool(owner, &field, at) : r->GetBool(owner, &field)) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(list ? *r->GetRepeatedEnum(owner, &field, at) : *r->GetEnum(owner, &field));
    case FieldDescriptor::CPPTYPE_STRING:
      return list ? r->GetRepeatedString(owner, &field, at) : r->GetString(owner, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return "";
}

std::string Text(const Message& owner, const FieldDescriptor& field) {
  if (!field.is_repeated()) return ValueText(owner, field, 0);
  std::vector<std::string> values;
  for (int i = 0; i < owner.GetReflection()->FieldSize(owner, &field); ++i)
    values.push_back(ValueText(owner, field, i));
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

// What the resolver fills in for an absent field. Empty: nothing.
std::string Filled(JobSpec spec, const Way& way, const FieldDescriptor& field) {
  Clear(*Make(spec, way), field);
  spec::Resolve({}, spec);
  const Message* const owner = Find(spec, way);
  return owner != nullptr && Has(*owner, field) ? Text(*owner, field) : "";
}

// The kind that the resolver makes a message with where the job names none. Empty: it makes none.
std::string FilledKind(JobSpec spec, const Way& way, const OneofDescriptor& oneof) {
  Message& owner = *Make(spec, way);
  owner.GetReflection()->ClearOneof(&owner, &oneof);
  spec::Resolve({}, spec);
  const Message* const filled = Find(spec, way);
  if (filled == nullptr) return "";
  const FieldDescriptor* const chosen = filled->GetReflection()->GetOneofFieldDescriptor(*filled, &oneof);
  return chosen == nullptr ? "" : KeyOf(*chosen);
}

// Whether the resolver calls the field missing in some of the jobs; if not in all, its comment says where.
bool IsRequired(const std::string& path, const Way& way, const FieldDescriptor& field) {
  return std::any_of(Jobs().begin(), Jobs().end(), [&](JobSpec spec) {
    Clear(*Make(spec, way), field);
    const std::vector<SpecError> errors = spec::Resolve({}, spec);
    return std::any_of(errors.begin(), errors.end(), [&](const SpecError& error) {
      return absl::StrReplaceAll(error.path(), {{"[0]", ""}}) == path && absl::StartsWith(error.message(), "missing");
    });
  });
}

// Defaults that others than the resolver give.
const std::map<std::string, std::string>& OtherDefaults() {
  static const auto& defaults = *new std::map<std::string, std::string>{
      {"checkpoint.path", "runs/{job}"},        // the CLI, beside the job file
      {"detection_seconds", "of the service"},  // the coordinator's --detection
      {"resources.min_ranks", kDepends},        // ranks
      {"strategy.bucket_mib", kDepends},        // a part of the model
      {"strategy.shard_ranks", kDepends},       // the ranks of a node
      {"checkpoint.async", "true"},             // the trainer
      {"checkpoint.every_seconds", "0"},
      {"strategy.wrap_mib", "0"},  // the compiler of schedules; likewise the following
      {"strategy.shares", "memory"},
      {"model.rope_scaling.beta_fast", "32"},  // the model; likewise the following
      {"model.rope_scaling.beta_slow", "1"},
      {"model.rope_scaling.attention_factor", kDepends},            // kind, factor
      {"project", kDepends},                                        // the projects of its user
      {"pipeline.chunks", kDepends},                                // schedule
      {"pipeline.cut", "auto"},                                     // the planner
      {"lora.targets", kDepends},                                   // the model's layers
      {"offload.optimizer", kDepends},                              // parameters
      {"communication.compression.momentum_correction", kDepends},  // the optimizer
      {"bench.bucket_bytes", kDepends},                             // strategy.bucket_mib
      {"sync", kNone},
      {"bench", kNone},
      {"workdir", kDepends},  // the rank's folder
      {"apiVersion", kRequired},
      {"kind", kRequired},
  };
  return defaults;
}

// The one text that they have in all jobs where they have any, else `depends`. Empty: in none.
template <typename TextIn>
std::string InAllJobs(const TextIn& text_in) {
  std::string text;
  for (const JobSpec& job : Jobs()) {
    const std::string here = text_in(job);
    if (!text.empty() && !here.empty() && here != text) return kDepends;
    if (text.empty()) text = here;
  }
  return text;
}

std::string DefaultOf(const std::string& path, const Way& way, const FieldDescriptor& field) {
  const auto other = OtherDefaults().find(path);
  if (other != OtherDefaults().end()) return other->second;
  const std::string value = InAllJobs([&](const JobSpec& job) { return Filled(job, way, field); });
  if (!value.empty()) return value;
  if (IsRequired(path, way, field)) return kRequired;
  return field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL && !field.is_repeated() ? "false" : kNone;
}

// By a field's key; of keys that are not here the end decides, e.g. _seconds.
std::string UnitOf(const std::string& path, const std::string& key) {
  static const auto& units = *new std::map<std::string, std::string>{
      {"steps", "steps"},         {"every_steps", "steps"},     {"warmup_steps", "steps"},
      {"warm_up_steps", "steps"}, {"growth_interval", "steps"}, {"milestones", "steps"},
      {"every", "steps"},         {"delay", "steps"},           {"ranks", "ranks"},
      {"min_ranks", "ranks"},     {"shard_ranks", "ranks"},     {"tensor", "ranks"},
      {"sequences", "sequences"}, {"microbatch", "sequences"},  {"context", "tokens"},
      {"window", "tokens"},       {"vocabulary", "tokens"},     {"original_context", "tokens"},
      {"crop_padding", "pixels"}, {"image", "pixels"},          {"bytes", "bytes"},
      {"keep", "checkpoints"},    {"prefetch", "units"},        {"max_restarts", "restarts"},
      {"layers", "layers"},       {"block", "elements"},        {"pipeline", "stages"},
      {"replicas", "replicas"},   {"chunks", "chunks"},         {"fragments", "parts"},
  };
  if (absl::StrContains(path, "timeout_seconds.") || absl::EndsWith(key, "_seconds")) return "seconds";
  if (absl::EndsWith(key, "_mib")) return "MiB";
  if (absl::EndsWith(key, "_bytes")) return "bytes";
  if (path == "parallel.context") return "ranks";  // of a model it is tokens
  if (path == "lora.rank" || path == "communication.compression.rank") return "columns";
  const auto found = units.find(key);
  return found == units.end() ? "" : found->second;
}

// Of fields whose default says too little of what may stand there.
const std::map<std::string, std::string>& Examples() {
  static const auto& examples = *new std::map<std::string, std::string>{
      {"apiVersion", "muster/v1"},
      {"kind", "Job"},
      {"name", "gpt2-tiny"},
      {"detection_seconds", "30"},
      {"env.name", "NCCL_DEBUG"},
      {"env.value", "INFO"},
      {"time_limit", "48h"},
      {"project", "default"},
      {"labels", "[team=nlp]"},
      {"command", "[python3, train.py]"},
      {"workdir", "."},
      {"image", "docker.io/library/python:3.12"},
      {"resources.ranks", "4"},
      {"after", "[prepare-x7k2]"},
      {"template", "base"},
      {"resources.min_ranks", "2"},
      {"resources.node_selector", "[rack=a, node!=gpu-7]"},
      {"resources.placement", "spread"},
      {"resources.topology.required", "rack"},
      {"resources.topology.preferred", "[switch, rack]"},
      {"resources.reservation", "workshop"},
      {"steps", "1000"},
      {"freeze", "[\"h.0.*\"]"},
      {"label_smoothing", "0.1"},
      {"lora.alpha", "16"},
      {"lora.targets", "[attn.c_attn]"},
      {"dropout.embedding", "0.1"},
      {"dropout.attention", "0.1"},
      {"dropout.residual", "0.1"},
      {"offload.to", "/nvme/muster"},
      {"model.from", "gpt2-hf"},
      {"model.layers", "4"},
      {"model.heads", "4"},
      {"model.key_value_heads", "2"},
      {"model.width", "128"},
      {"model.head_width", "32"},
      {"model.inner", "384"},
      {"model.vocabulary", "50257"},
      {"model.context", "1024"},
      {"model.window", "4096"},
      {"model.rope_base", "500000"},
      {"model.full_layers", "[0, 8]"},
      {"model.depth", "18"},
      {"model.image", "32"},
      {"model.library", "libmine.so"},
      {"model.inventory", "mine.json"},
      {"model.options.name", "width"},
      {"model.options.value", "\"64\""},
      {"model.rope_scaling.factor", "8"},
      {"model.rope_scaling.original_context", "8192"},
      {"model.rope_scaling.high_frequency_factor", "4"},
      {"model.rope_scaling.beta_fast", "32"},
      {"model.rope_scaling.short_factors", "[1, 1.05]"},
      {"model.rope_scaling.long_factors", "[1, 2.5]"},
      {"data.tokens", "train.bin"},
      {"data.validation", "val.bin"},
      {"data.images", "train.bin"},
      {"data.tensors", "\"train-*.safetensors\""},
      {"data.mean", "[0.4914, 0.4822, 0.4465]"},
      {"data.standard_deviation", "[0.2470, 0.2435, 0.2616]"},
      {"data.augmentation.crop_padding", "4"},
      {"batch.sequences", "64"},
      {"batch.microbatch", "8"},
      {"strategy.bucket_mib", "25"},
      {"strategy.wrap_mib", "16"},
      {"strategy.reshard", "shard_grad_op"},
      {"strategy.shard_ranks", "8"},
      {"optimizer.lr", "3e-4"},
      {"optimizer.weight_decay", "0.1"},
      {"optimizer.adamw_weight_decay", "0.1"},
      {"optimizer.lr_schedule.warmup_steps", "50"},
      {"optimizer.lr_schedule.min_lr", "3e-5"},
      {"optimizer.lr_schedule.milestones", "[32000, 48000]"},
      {"checkpoint.path", "\"runs/{job}\""},
      {"checkpoint.every_seconds", "600"},
      {"checkpoint.resume_from", "runs/gpt2-x7f2"},
      {"validation.sequences", "64"},
      {"sync.mix", "0.5"},
      {"pipeline.chunks", "2"},
      {"pipeline.cut", "[h.4, h.8]"},
      {"parallel.pipeline", "2"},
      {"parallel.tensor", "2"},
      {"parallel.context", "2"},
      {"communication.timeout_seconds.context", "1200"},
      {"communication.timeout_seconds.pipeline", "1200"},
      {"communication.timeout_seconds.replica", "1200"},
      {"communication.timeout_seconds.shard", "1200"},
      {"communication.timeout_seconds.tensor", "1200"},
      {"communication.compression.warm_up_steps", "1000"},
      {"bench.bytes", "[65536, 1048576]"},
      {"bench.bucket_bytes", "26214400"},
  };
  return examples;
}

// Fields that job files may not set, so that no example of them is valid.
bool IsSetByCoordinator(const std::string& path) { return path == "sync.run" || path == "sync.replica"; }

std::string ExampleOf(const std::string& path, const FieldDescriptor& field, const std::string& fallback) {
  if (IsSetByCoordinator(path)) return "";
  const auto found = Examples().find(path);
  if (found != Examples().end()) return found->second;
  const bool known = fallback != kRequired && fallback != kNone && fallback != kDepends && !fallback.empty();
  std::string value;
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
    // The first that is not the default.
    for (const std::string& text : OfferedTexts(field)) {
      if (value.empty() && text != fallback) value = text;
    }
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    value = fallback == "true" ? "false" : "true";
  } else if (known) {
    return fallback;
  } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    value = "text";
  } else {
    value = "1";
  }
  return field.is_repeated() ? absl::StrCat("[", value, "]") : value;
}

std::string MapExampleOf(const std::string& path) {
  static const auto& examples = *new std::map<std::string, std::string>{
      {"resources", "{ranks: 4}"},
      {"resources.topology", "{preferred: [rack]}"},
      {"env", "[{name: NCCL_DEBUG, value: INFO}]"},
      {"model", "{family: gpt2, size: tiny}"},
      {"model.rope_scaling", "{kind: linear, factor: 2}"},
      {"model.options", "[{name: width, value: \"64\"}]"},
      {"model.task",
       "{name: tensors, tensors: [{name: user, type: float, shape: [8], input: true}], targets_per_sample: 1}"},
      {"model.units",
       "[{name: all, kind: custom.modules, tensors: [{name: all.weight, shape: [8], init: {kind: zeros}}]}]"},
      {"data", "{tokens: train.bin, validation: val.bin}"},
      {"data.augmentation", "{flip: true, crop_padding: 4}"},
      {"strategy", "{kind: fsdp}"},
      {"batch", "{sequences: 64, microbatch: 8}"},
      {"precision", "{compute: bf16}"},
      {"precision.loss_scaling", "{initial: 65536}"},
      {"optimizer", "{kind: adamw, lr: 3e-4}"},
      {"optimizer.lr_schedule", "{kind: cosine, warmup_steps: 50}"},
      {"checkpoint", "{path: \"runs/{job}\", every_steps: 500}"},
      {"validation", "{every_steps: 100}"},
      {"on_nonfinite", "{kind: skip}"},
      {"lora", "{rank: 8}"},
      {"dropout", "{residual: 0.1}"},
      {"offload", "{optimizer: true}"},
      {"parallel", "{pipeline: 2}"},
      {"pipeline", "{schedule: interleaved}"},
      {"communication", "{compression: {kind: int8}}"},
      {"communication.compression", "{kind: int8}"},
      {"communication.timeout_seconds", "{replica: 1200}"},
      {"sync", "{every: 50}"},
      {"sync.outer", "{lr: 0.7}"},
      {"bench", "{collectives: [all_reduce], modes: [flat], bytes: [1024]}"},
  };
  const auto found = examples.find(path);
  return found == examples.end() ? "" : found->second;
}

std::string TypeOf(const FieldDescriptor& field) {
  std::string type;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      type = "integer";
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64:
      type = "integer, 0 or more";
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      type = "number";
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      type = "true or false";
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      type = cli::ListWords(OfferedTexts(field));
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      type = "string";
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      type = AutoField(*field.message_type()) != nullptr      ? "map, or the word auto"
             : NamedByAWord(*field.message_type()) != nullptr ? "map, or a kind alone"
                                                              : "map";
      break;
  }
  if (!field.is_repeated()) return type;
  return absl::StrCat("list of: ", type, IsListOrAuto(field) ? ", or the word auto" : "");
}

// What others write into a spec, e.g. `muster model inspect`; described where it is made.
bool IsOfSpec(const Descriptor& type) { return type.file() == JobSpec::descriptor()->file(); }

class Walk {
 public:
  std::vector<SpecSection> Sections() {
    Map(*JobSpec::descriptor(), "", {});
    return std::move(sections_);
  }

 private:
  static std::string Join(const std::string& path, const std::string& key) {
    return path.empty() ? key : absl::StrCat(path, ".", key);
  }

  void Map(const Descriptor& type, const std::string& path, const Way& way) {
    const size_t at = sections_.size();
    sections_.push_back({path, "", path.empty() ? "" : cli::CommentOf(type), {}});
    Below below;
    Fields(type, path, way, at, below);
    for (const auto& next : below) next();
  }

  // Sections that follow that of the fields.
  using Below = std::vector<std::function<void()>>;

  void Fields(const Descriptor& type, const std::string& path, const Way& way, size_t at, Below& below) {
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const OneofDescriptor* const oneof = field.real_containing_oneof();
      if (oneof == nullptr) {
        Add(field, path, way, at, below);
      } else if (oneof->field(0) == &field) {
        Choice(*oneof, path, way, at, below);
      }
    }
  }

  // The root's fields of the default choice stand beside its own: a job is a training if it does not say otherwise.
  void Choice(const OneofDescriptor& oneof, const std::string& path, const Way& way, size_t at, Below& below) {
    const FieldDescriptor* const by_default = DefaultMember(oneof);
    SpecField field;
    field.path = Join(path, oneof.name());
    field.key = oneof.name();
    field.type = cli::ListWords(MemberNames(oneof));
    field.fallback = kRequired;
    if (by_default != nullptr) {
      field.fallback = InAllJobs([&](const JobSpec& job) { return FilledKind(job, way, oneof); });
      if (field.fallback.empty()) field.fallback = KeyOf(*by_default);
    }
    field.example = MemberNames(oneof).back();
    const std::string comment = cli::CommentOf(oneof);
    field.meaning = absl::StrCat("which of them; each has fields of its own", comment.empty() ? "" : "; ", comment);
    for (int m = 0; m < oneof.field_count(); ++m) {
      const FieldDescriptor& member = *oneof.field(m);
      field.values.emplace_back(KeyOf(member), cli::CommentOf(*member.message_type()));
    }
    sections_[at].fields.push_back(field);
    for (int m = 0; m < oneof.field_count(); ++m) {
      const FieldDescriptor& member = *oneof.field(m);
      Way inner = way;
      inner.push_back(&member);
      if (path.empty() && &member == by_default) {
        Fields(*member.message_type(), path, inner, at, below);
        continue;
      }
      if (member.message_type()->field_count() == 0) continue;
      below.push_back([this, &member, path, inner, &oneof] {
        const size_t own = sections_.size();
        sections_.push_back({path, absl::StrCat(oneof.name(), ": ", KeyOf(member)), "", {}});
        Below after;
        Fields(*member.message_type(), path, inner, own, after);
        for (const auto& next : after) next();
      });
    }
  }

  void Add(const FieldDescriptor& field, const std::string& path, const Way& way, size_t at, Below& below) {
    SpecField row;
    row.key = KeyOf(field);
    row.path = Join(path, row.key);
    row.type = TypeOf(field);
    row.meaning = cli::CommentOf(field);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const bool absent = field.is_repeated() || absl::StrContains(row.meaning, "default: none");
      row.fallback = absent || OtherDefaults().contains(row.path) ? kNone : kOfItsFields;
      row.example = MapExampleOf(row.path);
      if (IsOfSpec(*field.message_type())) {
        row.link = row.path;
        Way inner = way;
        inner.push_back(&field);
        below.push_back([this, &field, inner, inside = row.path] { Map(*field.message_type(), inside, inner); });
      }
    } else {
      if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING) row.unit = UnitOf(row.path, row.key);
      row.fallback = DefaultOf(row.path, way, field);
      row.example = ExampleOf(row.path, field, row.fallback);
    }
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      for (int v = 1; v < field.enum_type()->value_count(); ++v) {
        const std::string comment = cli::CommentOf(*field.enum_type()->value(v));
        if (!comment.empty()) row.values.emplace_back(EnumText(*field.enum_type()->value(v)), comment);
      }
    }
    sections_[at].fields.push_back(std::move(row));
  }

  std::vector<SpecSection> sections_;
};

}  // namespace

std::vector<SpecSection> SpecSections() { return Walk().Sections(); }

}  // namespace muster::docs
