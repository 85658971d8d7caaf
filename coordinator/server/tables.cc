#include "coordinator/server/tables.h"

#include "strategies/partition/table.h"

namespace muster::server {

std::shared_ptr<const std::string> Tables::BytesOf(const Key& generation, const PartitionTable& table) {
  std::shared_ptr<const std::string>& bytes = bytes_[generation];
  if (bytes == nullptr) bytes = std::make_shared<const std::string>(partition::TableBytes(table));
  return bytes;
}

void Tables::End(const Key& generation) { bytes_.erase(generation); }

}  // namespace muster::server
