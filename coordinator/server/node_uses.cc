#include "coordinator/server/node_uses.h"

#include <utility>

#include "common/proto_time.h"

namespace muster::server {
namespace {

constexpr absl::Duration kKept = absl::Hours(1), kApart = absl::Seconds(30);

}  // namespace

void NodeUses::Add(const NodeId& node, NodeUse use, const Now& now) {
  *use.mutable_time() = ToProto(now.wall);
  Prune(now.steady);
  Of& of = nodes_[node];
  if (of.points.empty() || now.steady - of.points.back().at >= kApart) of.points.push_back({now.steady, use});
  of.newest = std::move(use);
}

void NodeUses::Gone(const NodeId& node) {
  if (const auto found = nodes_.find(node); found != nodes_.end()) found->second.newest.Clear();
}

// Of all nodes: one that never returns is forgotten, too.
void NodeUses::Prune(SteadyTime now) {
  for (auto node = nodes_.begin(); node != nodes_.end();) {
    std::deque<Point>& points = node->second.points;
    while (!points.empty() && now - points.front().at > kKept) points.pop_front();
    node = points.empty() ? nodes_.erase(node) : std::next(node);
  }
}

const NodeUse* NodeUses::Newest(const NodeId& node) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() || !found->second.newest.has_time() ? nullptr : &found->second.newest;
}

std::vector<NodeUse> NodeUses::LastHour(const NodeId& node, SteadyTime now) const {
  std::vector<NodeUse> uses;
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return uses;
  for (const Point& point : found->second.points) {
    if (now - point.at <= kKept) uses.push_back(point.use);
  }
  return uses;
}

}  // namespace muster::server
