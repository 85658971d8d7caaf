// The checker's rules for inputs of recomputed units that are offloaded (check.h, "inputs"). Pure.
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
#include "strategies/schedule/schedule.h"

namespace muster {

// Walks the ops in issue order. Schedule and inventory outlive it.
class InputRules {
 public:
  InputRules(const Schedule& schedule, const Inventory& inventory);

  struct Finding {
    std::optional<std::string> wrong = {};              // the rule that the op breaks
    std::array<std::optional<size_t>, 2> follows = {};  // ops that must have ended before it begins
  };
  // REQUIRES: the op's indices are valid, and its order among passes.
  Finding Run(const Op& op, size_t at);
  // After the last op: what is offloaded and never fetched.
  std::optional<std::string> Left() const;

 private:
  using Key = std::pair<int32_t, int32_t>;  // unit, microbatch
  struct Input {
    size_t offloaded = 0;
    bool released = false;
    std::optional<size_t> fetched = {};
    int32_t slot = -1;  // on the device, when it is fetched
  };
  struct Slot {
    std::optional<Key> owner = {};
    std::optional<size_t> freed = {};
  };

  Finding Offload(const Op& op, size_t at);
  Finding Release(const Op& op);
  Finding Fetch(const Op& op, size_t at);
  Finding FollowPass(const Op& op, size_t at);
  std::optional<std::string> Take(const Op& op, std::vector<Slot>& slots, std::vector<int32_t>& slot_of) const;
  std::string NameOf(const Key& input) const;

  const Inventory& inventory_;
  std::vector<bool> recomputed_;                 // by unit
  std::vector<std::array<size_t, 2>> forwards_;  // by microbatch: the last two
  std::vector<int32_t> forwarded_;               // by microbatch: units forwarded
  std::map<Key, Input> inputs_;                  // that are offloaded, until their backward
  size_t on_device_ = 0;                         // of them, those that are not released
  std::vector<int32_t> slot_of_, host_slot_of_;  // by unit
  std::vector<Slot> slots_, host_slots_;
};

}  // namespace muster
