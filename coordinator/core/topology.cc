#include "coordinator/core/topology.h"

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/node/node_selector.h"
#include "common/some_of.h"

namespace muster::core {
namespace {

scheduler::TopologyLevel LevelOf(const std::string& key, const Records& records) {
  scheduler::TopologyLevel level{key, {}};
  for (const auto& [id, node] : records.nodes) {
    std::optional<std::string> value = NodeLabel(node.record(), key);
    if (value.has_value()) level.domains[id] = *std::move(value);
  }
  return level;
}

// "s1, s2 and 3 more"
std::string Some(const std::set<std::string>& values) {
  constexpr size_t kNamed = 3;
  return values.size() <= kNamed ? absl::StrJoin(values, " and ") : SomeOf(values, kNamed);
}

}  // namespace

void Select(const Resources& resources, const Records& records, scheduler::Demand& demand) {
  demand.spread = resources.placement() == NODE_PLACEMENT_SPREAD;
  if (const std::string& key = resources.topology().required(); !key.empty()) {
    demand.required = LevelOf(key, records);
    for (const auto& [id, node] : records.nodes) {
      if (!demand.required->domains.contains(id)) demand.avoid.insert(id);
    }
  }
  for (const std::string& key : resources.topology().preferred()) demand.preferred.push_back(LevelOf(key, records));
  if (resources.node_selector().empty()) return;
  for (const auto& [id, node] : records.nodes) {
    if (!Selects(resources.node_selector(), node.record())) demand.avoid.insert(id);
  }
  absl::StrAppend(&demand.where, ", only on nodes with ", absl::StrJoin(resources.node_selector(), " and "));
}

std::string DomainsOf(const Resources& resources, const Records& records, const std::set<std::string>& nodes) {
  const Topology& topology = resources.topology();
  std::vector<std::string> keys(topology.preferred().begin(), topology.preferred().end());
  if (!topology.required().empty()) keys.push_back(topology.required());
  std::string text;
  for (const std::string& key : keys) {
    std::set<std::string> values;
    for (const std::string& id : nodes) {
      const NodeEntry* const node = records.FindNode(NodeId(id));
      if (node != nullptr) values.insert(NodeLabel(node->record(), key).value_or(absl::StrCat("none (", id, ")")));
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", key, " ", Some(values));
  }
  return text;
}

}  // namespace muster::core
