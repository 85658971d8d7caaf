// How busy nodes are, as their workers measure it, within the last hour. In memory only: a restart begins anew.
//
// Not thread-safe.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "common/clock.h"
#include "common/ids.h"
#include "proto/job.pb.h"

namespace muster::server {

class NodeUses {
 public:
  // `use`: as its worker sent it.
  void Add(const NodeId& node, NodeUse use, const Now& now);
  // Its worker is gone, so the newest measurement is no longer current.
  void Gone(const NodeId& node);

  // Null: unknown.
  const NodeUse* Newest(const NodeId& node) const;
  // Oldest first, about two a minute.
  std::vector<NodeUse> LastHour(const NodeId& node, SteadyTime now) const;

 private:
  struct Point {
    SteadyTime at;
    NodeUse use;
  };
  struct Of {
    std::deque<Point> points;
    NodeUse newest;  // without a time: unknown
  };
  void Prune(SteadyTime now);

  std::map<NodeId, Of> nodes_;
};

}  // namespace muster::server
