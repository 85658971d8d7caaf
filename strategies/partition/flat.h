// Where a unit's tensors are in its flat buffer: one after another, each start rounded up so that every tensor begins
// at a multiple of 64 bytes in fp32. Unless a partition table orders them otherwise, tensors that the optimizer treats
// the same way are adjacent, in the inventory's order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/inventory.pb.h"

namespace muster::partition {

inline constexpr uint64_t kAlignElements = 16;  // 64 bytes of fp32

// What so many elements take.
constexpr uint64_t Padded(uint64_t elements) {
  return (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
}

struct FlatTensor {
  std::string name;
  uint64_t begin = 0;  // elements from the unit's start
  uint64_t elements = 0;
  bool decay = false;
  bool frozen = false;
};

struct FlatUnit {
  std::vector<FlatTensor> tensors;  // ascending begin; by default with weight decay first, then without, then frozen
  uint64_t elements = 0;            // padding included, a multiple of kAlignElements
};

// The indices of a unit's tensors in the default order.
std::vector<int> FlatOrder(const Unit& unit);

FlatUnit Flatten(const Unit& unit);
// In another order: `order` has the indices of all its tensors.
FlatUnit Flatten(const Unit& unit, const std::vector<int>& order);

// Of the tensors that are not frozen, padding included.
uint64_t TrainedElements(const Unit& unit);

// Padding included, all units together.
uint64_t FlatElements(const Inventory& inventory);

}  // namespace muster::partition
