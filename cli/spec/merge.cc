#include "cli/spec/merge.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/flags/suggest.h"
#include "common/message/fields.h"

namespace muster::cli {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;

std::vector<Entry>::iterator EntryOf(Node& map, const std::string& key) {
  return std::find_if(map.entries.begin(), map.entries.end(), [&](const Entry& entry) { return entry.key == key; });
}

bool HasKey(const Descriptor& type, const std::string& key) {
  const std::vector<std::string> keys = AllKeys(type);
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// The kind that the map says, or that the reader suggests in its place and reads; null: none.
const FieldDescriptor* KindIn(Node& map, const OneofDescriptor& oneof) {
  const auto entry = EntryOf(map, oneof.name());
  return entry == map.entries.end() ? nullptr : Member(oneof, Nearest(entry->value.text, MemberNames(oneof)));
}

void DropOtherKinds(const OneofDescriptor& oneof, Node& over, Node& into) {
  const FieldDescriptor* kind = KindIn(over, oneof);
  if (kind == nullptr) return;
  const FieldDescriptor* before = KindIn(into, oneof);
  if (before == kind) return;
  std::erase_if(into.entries, [&](const Entry& entry) {
    if (before == nullptr && HasKey(*kind->message_type(), entry.key)) return false;
    for (int i = 0; i < oneof.field_count(); ++i) {
      if (HasKey(*oneof.field(i)->message_type(), entry.key)) return true;
    }
    return false;
  });
}

// The type of the map that the key takes; null: it takes none, or one of any keys.
const Descriptor* MapType(const Descriptor* type, const std::string& key) {
  for (int i = 0; type != nullptr && i < type->field_count(); ++i) {
    const FieldDescriptor& field = *type->field(i);
    const Descriptor* message = field.is_repeated() ? nullptr : field.message_type();
    if (field.real_containing_oneof() == nullptr) {
      if (KeyOf(field) == key) return message;
    } else if (const Descriptor* found = MapType(message, key); found != nullptr) {
      return found;
    }
  }
  return nullptr;
}

// `ddp` becomes `{kind: ddp}` where that is what it stands for.
void SpellOut(const Descriptor& type, Node& node) {
  const OneofDescriptor* kinds = NamedByAWord(type);
  if (kinds == nullptr || node.kind != Node::Kind::kScalar || Member(*kinds, node.text) == nullptr) return;
  Node map{.kind = Node::Kind::kMap, .where = node.where};
  map.entries.push_back(Entry{kinds->name(), node.where, std::move(node)});
  node = std::move(map);
}

}  // namespace

void Merge(const Descriptor* type, Node over, Node& into) {
  for (int i = 0; type != nullptr && i < type->real_oneof_decl_count(); ++i) {
    DropOtherKinds(*type->oneof_decl(i), over, into);
  }
  into.where = over.where;
  for (Entry& entry : over.entries) {
    const auto same = EntryOf(into, entry.key);
    if (same == into.entries.end()) {
      into.entries.push_back(std::move(entry));
      continue;
    }
    const Descriptor* of_value = MapType(type, entry.key);
    if (of_value != nullptr) {
      SpellOut(*of_value, same->value);
      SpellOut(*of_value, entry.value);
    }
    if (same->value.kind == Node::Kind::kMap && entry.value.kind == Node::Kind::kMap) {
      same->where = entry.where;
      Merge(of_value, std::move(entry.value), same->value);
    } else {
      *same = std::move(entry);
    }
  }
}

}  // namespace muster::cli
