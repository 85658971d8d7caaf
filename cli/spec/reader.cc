#include "cli/spec/reader.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/spec/field.h"
#include "cli/spec/merge.h"
#include "cli/spec/scalar.h"
#include "cli/spec/set.h"
#include "common/flags/suggest.h"
#include "common/message/fields.h"
#include "common/step_bounds.h"
#include "proto/options.pb.h"

namespace muster::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;

// What a key of a map stands for.
struct Slot {
  Message* owner = nullptr;
  const FieldDescriptor* field = nullptr;  // null: the key of a oneof
};

std::string Join(const std::string& path, const std::string& key) {
  return path.empty() ? key : absl::StrCat(path, ".", key);
}

// What older files spell, and what it is now.
struct Retired {
  const char *path, *value, *now;
};
constexpr Retired kRetired[] = {
    {"strategy.kind", "pipeline", "pipelines are now parallel: {pipeline: N} beside the strategy"},
};

// What users of other systems write, and what it is here. Empty `now`: nothing here is like it.
struct Foreign {
  const char *path, *now;
};
constexpr Foreign kForeignFields[] = {
    {"data.path", "data.tokens"},
    {"data.train", "data.tokens"},
    {"data.file", "data.tokens"},
    {"data.val", "data.validation"},
    {"resources.gpus", "resources.ranks"},
    {"resources.gpu", "resources.ranks"},
    {"resources.slots", "resources.ranks"},
    {"resources.world_size", "resources.ranks"},
    {"optimizer.learning_rate", "optimizer.lr"},
    {"learning_rate", "optimizer.lr"},
    {"batch_size", "batch.sequences"},
    {"batch.size", "batch.sequences"},
    {"max_steps", "steps"},
    {"gradient_checkpointing", "activation_checkpointing"},
    {"model.kind", "model.family"},
};
// `path`: of the field, or of the map that has it. The last one that fits counts.
struct ForeignValue {
  const char *path, *value, *now;
};
constexpr ForeignValue kForeignValues[] = {
    {"resources.device", "gpu", "cuda"}, {"resources.device", "tpu", ""},     {"resources.device", "mps", ""},
    {"resources.device", "npu", ""},     {"precision", "float32", "fp32"},    {"precision", "bfloat16", "bf16"},
    {"precision", "float16", "fp16"},    {"precision.params", "float16", ""},
};

// The path with the fewest parts: `lr` is optimizer.lr rather than sync.outer.lr. Empty: several have as few.
std::string OnlyShallowest(const std::vector<std::string>& paths) {
  const auto depth = [](const std::string& path) { return std::count(path.begin(), path.end(), '.'); };
  const auto shallowest = std::min_element(
      paths.begin(), paths.end(), [&](const std::string& a, const std::string& b) { return depth(a) < depth(b); });
  if (shallowest == paths.end()) return "";
  const auto as_few = std::count_if(paths.begin(), paths.end(),
                                    [&](const std::string& path) { return depth(path) == depth(*shallowest); });
  return as_few == 1 ? *shallowest : "";
}

// The first key of `type` that begins so: "every_steps" for "every_". Empty: none.
std::string FirstThatBegins(const Descriptor& type, const std::string& beginning) {
  for (int i = 0; i < type.field_count(); ++i) {
    if (absl::StartsWith(KeyOf(*type.field(i)), beginning)) return KeyOf(*type.field(i));
  }
  return "";
}

class MessageReader {
 public:
  // `whole`: false: a part of a spec, in which a oneof without its key may have the fields of any of its members.
  MessageReader(const Descriptor& root, bool whole, SourceMap& sources, std::vector<Problem>& problems)
      : root_(root), whole_(whole), sources_(sources), problems_(problems) {}

  // `where`: the key of the map.
  void ReadMap(const Node& node, const std::string& path, const Location& where, Message& message) {
    if (node.kind == Node::Kind::kNull && !path.empty()) {
      return Note(node.where, path, "is empty: give it a value or leave the key out");
    }
    if (node.kind == Node::Kind::kScalar && ReadWord(node.text, message)) return;
    if (node.kind != Node::Kind::kMap) {
      std::vector<std::string> words;
      if (!path.empty()) words = WordsFor(*message.GetDescriptor());
      const std::string nearest = node.kind == Node::Kind::kScalar ? Nearest(node.text, words) : "";
      ReadWord(nearest, message);
      words.emplace_back("a map");
      return Note(node.where, path, absl::StrCat("expected ", ListWords(words), ", got ", Describe(node)), nearest);
    }
    std::map<std::string, Slot> slots;
    std::map<std::string, std::string> chosen;  // oneof's key to the chosen member's name; empty: none
    Collect(node, path, where, message, slots, chosen);
    for (const Entry& entry : node.entries) {
      const auto slot = slots.find(entry.key);
      if (slot == slots.end()) {
        if (ReadOfAnyMember(entry, path, where, *message.GetDescriptor(), chosen)) continue;
        NoteUnknown(entry, path, *message.GetDescriptor(), slots, chosen);
      } else if (slot->second.field != nullptr) {
        ReadField(entry.value, Join(path, entry.key), entry.where, *slot->second.owner, *slot->second.field);
      }
    }
  }

 private:
  void Note(const Location& where, const std::string& path, std::string message, std::string suggestion = "") {
    problems_.push_back(Problem{where, path, std::move(message), std::move(suggestion)});
  }

  // A word in place of a map: `parallel: auto`, or `strategy: ddp`, short for `strategy: {kind: ddp}`. False: no word
  // of this type.
  static bool ReadWord(const std::string& word, Message& message) {
    const Descriptor& type = *message.GetDescriptor();
    if (const FieldDescriptor* field = AutoField(type); field != nullptr && word == "auto") {
      message.GetReflection()->SetBool(&message, field, true);
      return true;
    }
    const OneofDescriptor* kinds = NamedByAWord(type);
    const FieldDescriptor* member = kinds == nullptr ? nullptr : Member(*kinds, word);
    if (member != nullptr) message.GetReflection()->MutableMessage(&message, member);
    return member != nullptr;
  }

  // The keys that `message` accepts, given the members that `node` chooses; creates the members.
  void Collect(const Node& node, const std::string& path, const Location& where, Message& message,
               std::map<std::string, Slot>& slots, std::map<std::string, std::string>& chosen) {
    const Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (field.real_containing_oneof() == nullptr) slots[KeyOf(field)] = Slot{&message, &field};
    }
    for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
      const OneofDescriptor& oneof = *type.oneof_decl(i);
      slots[oneof.name()] = Slot{&message, nullptr};
      const FieldDescriptor* member = Choose(node, path, where, oneof);
      chosen[oneof.name()] = member == nullptr ? "" : KeyOf(*member);
      if (member == nullptr) continue;
      Collect(node, path, where, *message.GetReflection()->MutableMessage(&message, member), slots, chosen);
    }
  }

  const FieldDescriptor* Choose(const Node& node, const std::string& path, const Location& where,
                                const OneofDescriptor& oneof) {
    const auto entry =
        std::find_if(node.entries.begin(), node.entries.end(), [&](const Entry& e) { return e.key == oneof.name(); });
    const std::string own_path = Join(path, oneof.name());
    const std::vector<std::string> names = MemberNames(oneof);
    if (entry == node.entries.end()) {
      if (!whole_) return nullptr;
      const FieldDescriptor* member = DefaultMember(oneof);
      if (member == nullptr) Note(where, own_path, absl::StrCat("is required: ", ListWords(names)));
      return member;
    }
    const Node& value = entry->value;
    sources_.Set(own_path, value.where);
    if (value.kind == Node::Kind::kNull) {
      Note(value.where, own_path, absl::StrCat("is empty: write ", ListWords(names)));
      return nullptr;
    }
    if (value.kind != Node::Kind::kScalar) {
      Note(value.where, own_path, absl::StrCat("expected ", ListWords(names), ", got ", Describe(value)));
      return nullptr;
    }
    if (const FieldDescriptor* member = Member(oneof, value.text); member != nullptr) return member;
    for (const Retired& old : kRetired) {
      if (own_path != old.path || value.text != old.value) continue;
      Note(value.where, own_path, old.now);
      return nullptr;
    }
    const std::string nearest = Nearest(value.text, names);
    Note(value.where, own_path, absl::StrCat("expected ", ListWords(names), ", got ", Describe(value)), nearest);
    return Member(oneof, nearest);
  }

  // A key of a oneof whose member is open, in a part of a file or since no member has a name like the one given: its
  // value has to fit one member that has it. False: none has.
  bool ReadOfAnyMember(const Entry& entry, const std::string& path, const Location& where, const Descriptor& type,
                       const std::map<std::string, std::string>& chosen) {
    const Node map{.kind = Node::Kind::kMap, .where = where, .entries = {entry}};
    std::optional<std::vector<Problem>> problems;  // with the first that has it
    for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
      const OneofDescriptor& oneof = *type.oneof_decl(i);
      if (!chosen.at(oneof.name()).empty()) continue;
      for (int m = 0; m < oneof.field_count(); ++m) {
        const Descriptor& member = *oneof.field(m)->message_type();
        const std::vector<std::string> keys = AllKeys(member);
        if (std::find(keys.begin(), keys.end(), entry.key) == keys.end()) continue;
        const std::unique_ptr<Message> read(
            google::protobuf::MessageFactory::generated_factory()->GetPrototype(&member)->New());
        std::vector<Problem> found;
        MessageReader(root_, /*whole=*/false, sources_, found).ReadMap(map, path, where, *read);
        if (found.empty()) return true;
        if (!problems.has_value()) problems = std::move(found);
      }
    }
    if (!problems.has_value()) return false;
    problems_.insert(problems_.end(), problems->begin(), problems->end());
    return true;
  }

  void ReadField(const Node& node, const std::string& path, const Location& key, Message& owner,
                 const FieldDescriptor& field) {
    const bool composite = field.is_repeated() || field.message_type() != nullptr;
    sources_.Set(path, composite ? key : node.where);
    if (field.is_repeated()) return ReadList(node, path, owner, field);
    if (field.message_type() != nullptr) {
      return ReadMap(node, path, key, *owner.GetReflection()->MutableMessage(&owner, &field));
    }
    if (auto problem = SetScalar(node, field, owner)) {
      for (const ForeignValue& foreign : kForeignValues) {
        const bool fits = path == foreign.path || absl::StartsWith(path, absl::StrCat(foreign.path, "."));
        if (fits && node.text == foreign.value) problem->suggestion = foreign.now;
      }
      SetMeant(node, problem->suggestion, field, owner);
      // As the coordinator says it of numbers that the field holds.
      if (path == "steps" && node.kind == Node::Kind::kScalar && CoreType(node.text) == ScalarType::kInteger &&
          !node.quoted) {
        problem->message = StepsOutOfBounds(node.text);
      }
      Note(node.where, path, std::move(problem->message), std::move(problem->suggestion));
    }
  }

  // As if the suggestion were in the file: what depends on the value is checked in the same pass.
  static void SetMeant(const Node& node, const std::string& suggestion, const FieldDescriptor& field, Message& owner) {
    // A suggested string is the value that is there, in quotes.
    if (suggestion.empty() || field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) return;
    Node meant = node;
    meant.text = suggestion;
    meant.quoted = false;
    SetScalar(meant, field, owner);
  }

  void ReadList(const Node& node, const std::string& path, Message& owner, const FieldDescriptor& field) {
    if (node.kind == Node::Kind::kNull) {
      return Note(node.where, path, "is empty: give it a value or leave the key out");
    }
    if (node.kind == Node::Kind::kMap && field.options().GetExtension(v1::pairs)) {
      return ReadPairs(node, path, owner, field);
    }
    const bool or_auto = IsListOrAuto(field), scalar = node.kind == Node::Kind::kScalar;
    if (or_auto && scalar && node.text == "auto") return;
    if (node.kind != Node::Kind::kList) {
      return Note(node.where, path,
                  absl::StrCat("expected ", or_auto ? "auto or a list" : "a list", ", got ", Describe(node)),
                  or_auto && scalar ? Nearest(node.text, {"auto"}) : "");
    }
    for (size_t i = 0; i < node.items.size(); ++i) {
      const Node& item = node.items[i];
      const std::string item_path = absl::StrCat(path, "[", i, "]");
      sources_.Set(item_path, item.where);
      if (field.message_type() != nullptr) {
        ReadMap(item, item_path, item.where, *owner.GetReflection()->AddMessage(&owner, &field));
      } else if (auto problem = SetScalar(item, field, owner)) {
        SetMeant(item, problem->suggestion, field, owner);
        Note(item.where, item_path, std::move(problem->message), std::move(problem->suggestion));
      }
    }
  }

  // `{team: nlp}` as `[team=nlp]`. Values are text, whatever they look like.
  void ReadPairs(const Node& node, const std::string& path, Message& owner, const FieldDescriptor& field) {
    for (const Entry& entry : node.entries) {
      const std::string item_path = Join(path, entry.key);
      sources_.Set(item_path, entry.value.where);
      if (entry.value.kind != Node::Kind::kScalar) {
        Note(entry.value.where, item_path, absl::StrCat("expected a value, got ", Describe(entry.value)));
        continue;
      }
      owner.GetReflection()->AddString(&owner, &field, absl::StrCat(entry.key, "=", entry.value.text));
    }
  }

  // A key that does not fit here: another member's, a misspelled one, or one of another map.
  void NoteUnknown(const Entry& entry, const std::string& path, const Descriptor& type,
                   const std::map<std::string, Slot>& slots, const std::map<std::string, std::string>& chosen) {
    const std::string own_path = Join(path, entry.key);
    if (NoteOtherMember(entry, own_path, type, chosen)) return;
    std::vector<std::string> keys;
    for (const auto& [key, slot] : slots) keys.push_back(key);
    std::string suggestion;
    const auto foreign = std::find_if(std::begin(kForeignFields), std::end(kForeignFields),
                                      [&](const Foreign& field) { return own_path == field.path; });
    if (foreign != std::end(kForeignFields)) {
      suggestion = foreign->now;
    } else if (const std::string longer = FirstThatBegins(type, entry.key + "_"); !longer.empty()) {
      suggestion = Join(path, longer);
    } else if (const std::string nearest = Nearest(entry.key, keys); !nearest.empty()) {
      suggestion = Join(path, nearest);
    } else if (const std::string far = Nearest(entry.key, AllKeys(type)); !far.empty()) {
      suggestion = Join(path, far);
    } else if (const std::string below = OnlyShallowest(PathsEndingIn(type, entry.key)); !below.empty()) {
      suggestion = Join(path, below);
    }
    Note(entry.where, own_path, "unknown field", suggestion);
  }

  bool NoteOtherMember(const Entry& entry, const std::string& path, const Descriptor& type,
                       const std::map<std::string, std::string>& chosen) {
    for (int i = 0; i < type.real_oneof_decl_count(); ++i) {
      const OneofDescriptor& oneof = *type.oneof_decl(i);
      std::vector<std::string> owners;
      for (int m = 0; m < oneof.field_count(); ++m) {
        const Descriptor& member = *oneof.field(m)->message_type();
        const std::vector<std::string> keys = AllKeys(member);
        if (std::find(keys.begin(), keys.end(), entry.key) == keys.end()) continue;
        const std::string name = KeyOf(*oneof.field(m));
        const auto it = chosen.find(oneof.name());
        if (it != chosen.end() && it->second == name) {
          if (NoteOtherMember(entry, path, member, chosen)) return true;
          continue;
        }
        owners.push_back(absl::StrCat(oneof.name(), ": ", name));
      }
      if (owners.empty()) continue;
      const auto it = chosen.find(oneof.name());
      if (it == chosen.end()) continue;
      // The unknown member has been reported, and no known one is like it: its fields cannot be checked.
      if (it->second.empty()) return true;
      Note(entry.where, path,
           absl::StrCat("belongs to ", absl::StrJoin(owners, " or "), ", but ", oneof.name(), " is ", it->second));
      return true;
    }
    return false;
  }

  const Descriptor& root_;
  const bool whole_;
  SourceMap& sources_;
  std::vector<Problem>& problems_;
};

// Checks `kind` and `apiVersion`, which every whole file states so that a later version can recognize old files.
void CheckHeader(const Node& root, bool whole, Reading& reading) {
  const auto check = [&](const std::string& key, const std::string& value, const std::string& expected) {
    const auto entry =
        std::find_if(root.entries.begin(), root.entries.end(), [&](const Entry& e) { return e.key == key; });
    if (entry == root.entries.end()) {
      if (!whole) return;
      reading.problems.push_back(
          Problem{root.where, key, absl::StrCat("is required: add `", key, ": ", expected, "`"), ""});
    } else if (!value.empty() && value != expected) {
      reading.problems.push_back(Problem{entry->value.where, key,
                                         absl::StrCat("expected ", expected, ", got ", Describe(entry->value)),
                                         Nearest(value, {expected})});
    }
  };
  check("apiVersion", reading.spec.api_version(), kApiVersion);
  check("kind", reading.spec.kind(), kJobKind);
}

Reading ReadTree(ParsedYaml parsed, const std::vector<Assignment>& assignments, bool whole = true) {
  Reading reading;
  reading.sources.SetRoot(parsed.root.where);
  const bool has_values =
      parsed.root.kind == Node::Kind::kMap || (parsed.root.kind == Node::Kind::kNull && !assignments.empty());
  reading.complete = parsed.complete && has_values;
  const bool broken = !parsed.problems.empty() && parsed.root.kind != Node::Kind::kMap;
  reading.problems = std::move(parsed.problems);
  if (broken) return reading;
  if (parsed.root.kind == Node::Kind::kNull && assignments.empty()) {
    reading.problems.push_back(Problem{parsed.root.where, "", "is empty: expected a job spec", ""});
    return reading;
  }
  for (const Assignment& assignment : assignments) Assign(assignment, parsed.root, reading.problems);
  MessageReader(*v1::JobSpec::descriptor(), whole, reading.sources, reading.problems)
      .ReadMap(parsed.root, "", parsed.root.where, reading.spec);
  if (parsed.root.kind == Node::Kind::kMap && parsed.complete) CheckHeader(parsed.root, whole, reading);
  SortProblems(reading.problems);
  return reading;
}

}  // namespace

void ReadMessage(const Node& root, Message& message, SourceMap& sources, std::vector<Problem>& problems) {
  MessageReader(*message.GetDescriptor(), /*whole=*/true, sources, problems).ReadMap(root, "", root.where, message);
}

Reading ReadSpec(absl::string_view text, const std::string& name, const std::vector<Assignment>& assignments) {
  return ReadTree(ParseYaml(text, name), assignments);
}

Reading ReadSpecs(const std::vector<SpecText>& files, const std::vector<Assignment>& assignments) {
  ParsedYaml merged = ParseYaml(files.front().text, files.front().name);
  for (size_t i = 1; i < files.size(); ++i) {
    ParsedYaml next = ParseYaml(files[i].text, files[i].name);
    // A file that is not a map cannot be merged; report it as if it were alone.
    const bool fits = merged.root.kind == Node::Kind::kMap && next.root.kind == Node::Kind::kMap;
    if (!fits && next.problems.empty() && merged.problems.empty()) {
      return ReadTree(std::move(merged.root.kind == Node::Kind::kMap ? next : merged), {});
    }
    merged.problems.insert(merged.problems.end(), next.problems.begin(), next.problems.end());
    merged.complete = merged.complete && next.complete;
    if (fits) Merge(v1::JobSpec::descriptor(), std::move(next.root), merged.root);
  }
  return ReadTree(std::move(merged), assignments);
}

Reading ReadFlags(const std::vector<Assignment>& flags, const std::vector<Assignment>& sets,
                  const std::optional<SpecText>& below) {
  ParsedYaml parsed;
  parsed.root.kind = Node::Kind::kMap;
  parsed.root.where.source = std::make_shared<const std::string>("flags");
  std::vector<Assignment> all = {{"--set apiVersion", "apiVersion", kApiVersion}, {"--set kind", "kind", kJobKind}};
  all.insert(all.end(), flags.begin(), flags.end());
  for (const Assignment& flag : all) Assign(flag, parsed.root, parsed.problems);
  if (below.has_value()) {
    ParsedYaml merged = ParseYaml(below->text, below->name);
    if (merged.root.kind != Node::Kind::kMap) return ReadTree(std::move(merged), {});
    merged.problems.insert(merged.problems.end(), parsed.problems.begin(), parsed.problems.end());
    Merge(v1::JobSpec::descriptor(), std::move(parsed.root), merged.root);
    parsed = std::move(merged);
  }
  return ReadTree(std::move(parsed), sets);
}

std::vector<Problem> TemplateProblems(const SpecText& text) {
  Reading reading = ReadTree(ParseYaml(text.text, text.name), {}, /*whole=*/false);
  if (!reading.spec.template_().empty()) {
    reading.problems.push_back(
        Problem{reading.sources.Find("template"), "template", "a template is not merged over another one", ""});
    SortProblems(reading.problems);
  }
  return std::move(reading.problems);
}

std::vector<Problem> Locate(const v1::SpecErrors& errors, const SourceMap& sources) {
  std::vector<Problem> problems;
  for (const v1::SpecError& error : errors.errors()) {
    problems.push_back(Problem{sources.Find(error.path()), error.path(), error.message(), error.suggestion()});
  }
  SortProblems(problems);
  return problems;
}

}  // namespace muster::cli
