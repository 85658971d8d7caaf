// What a checkpoint holds: the arenas of parameters and of optimizer state, and on a GPU their copies in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "worker/engine/arena.h"
#include "worker/engine/engine.h"

namespace muster::engine {

class State {
 public:
  // `kind`: of StateView.
  void Add(std::string kind, const at::Tensor& arena);
  // Of what the shard owns, in table order.
  std::vector<StateView> Views(const PartitionTable& table, uint32_t shard, const ArenaLayout& layout);
  // Nothing on a CPU, where both are the same.
  void ToHost();
  void FromHost();

 private:
  struct Arena {
    std::string kind;
    at::Tensor device;
    at::Tensor host;
  };
  std::vector<Arena> arenas_;
};

}  // namespace muster::engine
