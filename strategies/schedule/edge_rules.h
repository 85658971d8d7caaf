// The checker's rules for what a stage of a pipeline receives and sends (check.h, "edges"). Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/inventory.pb.h"
#include "strategies/schedule/chunks.h"
#include "strategies/schedule/schedule.h"

namespace muster {

// Walks the ops in issue order. Schedule and inventory outlive it.
class EdgeRules {
 public:
  EdgeRules(const Schedule& schedule, const Inventory& inventory);

  struct Finding {
    std::optional<std::string> wrong = {};  // the rule that the op breaks
    std::vector<size_t> follows = {};       // ops that must have ended before it begins
  };
  // REQUIRES: the op's indices are valid, and its order among passes.
  Finding Run(const Op& op, size_t at);
  // After the last op: what is missing.
  std::optional<std::string> Left() const;

 private:
  using Key = std::pair<int32_t, int32_t>;  // chunk, microbatch
  enum Direction { kActivation, kGradient };
  struct Slot {
    std::optional<Key> owner = {};
    std::optional<size_t> freed = {};  // the pass that read it last
  };
  // What is received, until the pass has ended that reads it last.
  struct Received {
    size_t at = 0;
    int32_t slot = -1;
  };

  Finding Receive(const Op& op, size_t at, Direction direction);
  Finding Send(const Op& op, size_t at, Direction direction);
  Finding Computed(const Op& op, size_t at);
  // Tensors tied to another stage's unit.
  Finding MoveTied(const Op& op, size_t at);
  // The op is the last to read what the chunk received.
  void Free(const Key& key, size_t op);
  // Whether the chunk's microbatch comes back.
  bool HasBackward(const Key& key) const { return last_backward_[static_cast<size_t>(key.first)] >= 0; }

  const Schedule& schedule_;
  const std::vector<ChunkSpan> chunks_;
  const std::vector<int32_t> chunk_of_;  // by unit
  std::vector<int32_t> last_backward_;   // by chunk: the unit whose backward comes last; -1: none has one
  std::vector<Slot> slots_;
  std::array<std::map<Key, Received>, 2> received_;
  std::array<std::map<Key, size_t>, 2> to_send_;  // computed, not sent yet: the op
  std::map<int32_t, std::vector<size_t>> sent_;   // by edge
  struct Tied {
    int32_t unit = -1;
    bool owned = false, trained = false;  // `owned`: by this stage; else its unit borrows it
    TiedEdges edges;
    std::optional<size_t> parameters = {}, gradient = {};  // the ops that moved them
  };
  std::vector<Tied> tied_;
  std::vector<std::vector<size_t>> computed_;  // by unit: its backwards
  bool trains_ = false;
};

}  // namespace muster
