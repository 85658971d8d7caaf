// The serialized partition tables of running generations, serialized once when the first worker fetches them.
//
// Not thread-safe: the loop owns it. Any thread may read a returned table for as long as it holds it.
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

  // The bytes that the table's hash covers. `table`: the generation's own.
  std::shared_ptr<const std::string> BytesOf(const Key& generation, const PartitionTable& table);
  void End(const Key& generation);

 private:
  std::map<Key, std::shared_ptr<const std::string>> bytes_;
};

}  // namespace muster::server
