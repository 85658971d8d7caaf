// The partition tables of running generations as they are handed out: serialised once, at the first worker that asks.
//
// Not thread-safe: the loop owns it. What it hands out may be read by any thread, for as long as it is held.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/ids.h"
#include "proto/partition.pb.h"

namespace muster::server {

class Tables {
 public:
  using Key = std::pair<JobId, uint64_t>;  // job, generation

  // The bytes that the table's hash is of. `table`: the generation's own.
  std::shared_ptr<const std::string> BytesOf(const Key& generation, const PartitionTable& table);
  void End(const Key& generation);

 private:
  std::map<Key, std::shared_ptr<const std::string>> bytes_;
};

}  // namespace muster::server
