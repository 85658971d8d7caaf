#include "strategies/partition/table.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "models/inventory.h"

namespace muster::partition {
namespace {

absl::Status Wrong(const std::string& tensor, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("partition table: ", tensor, ": ", what));
}

absl::Status CheckPiece(const Piece& piece, uint64_t elements, uint32_t shards) {
  uint64_t covered = 0;
  for (const Extent& extent : piece.extents()) {
    if (extent.shard() >= shards) {
      return Wrong(piece.tensor(), absl::StrCat("shard ", extent.shard(), " of ", shards, " shards"));
    }
    if (extent.begin() != covered) {
      return Wrong(piece.tensor(), absl::StrCat(extent.begin() > covered ? "hole" : "overlap", " at element ",
                                                std::min(extent.begin(), covered)));
    }
    covered += extent.length();
  }
  if (covered != elements)
    return Wrong(piece.tensor(), absl::StrCat("covers ", covered, " of ", elements, " elements"));
  return absl::OkStatus();
}

}  // namespace

PartitionTable Replicated(const Inventory& inventory) {
  PartitionTable table;
  table.set_shards(1);
  for (const Unit& unit : inventory.units()) {
    UnitPartition& part = *table.add_units();
    part.set_unit(unit.name());
    for (const Tensor& tensor : unit.tensors()) {
      Piece& piece = *part.add_pieces();
      piece.set_tensor(tensor.name());
      Extent& extent = *piece.add_extents();
      extent.set_shard(0);
      extent.set_length(models::Elements(tensor));
    }
  }
  return table;
}

absl::Status Check(const PartitionTable& table, const Inventory& inventory) {
  if (table.units_size() != inventory.units_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition table: ", table.units_size(), " units, the model has ", inventory.units_size()));
  }
  for (int u = 0; u < table.units_size(); ++u) {
    const UnitPartition& part = table.units(u);
    const Unit& unit = inventory.units(u);
    if (part.unit() != unit.name()) return Wrong(part.unit(), absl::StrCat("the model has ", unit.name(), " here"));
    std::map<std::string, uint64_t> missing;
    for (const Tensor& tensor : unit.tensors()) missing[tensor.name()] = models::Elements(tensor);
    for (const Piece& piece : part.pieces()) {
      const auto found = missing.find(piece.tensor());
      if (found == missing.end()) return Wrong(piece.tensor(), absl::StrCat("unknown to, or twice in, ", unit.name()));
      if (absl::Status s = CheckPiece(piece, found->second, table.shards()); !s.ok()) return s;
      missing.erase(found);
    }
    if (!missing.empty()) return Wrong(missing.begin()->first, "missing");
  }
  return absl::OkStatus();
}

std::string TableSha256(const PartitionTable& table) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    table.SerializeToCodedStream(&coded);
  }
  return Sha256Hex(bytes);
}

}  // namespace muster::partition
