#include "strategies/partition/table.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/sha256.h"
#include "models/inventory.h"

namespace muster::partition {
namespace {

absl::Status Wrong(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("partition table: ", name, ": ", what));
}

// Whether a cut before element `at` of the tensor divides an atom.
bool Divides(const Tensor& tensor, uint64_t at) {
  if (at == 0 || at >= models::Elements(tensor)) return false;
  if (tensor.atom() == ATOM_WHOLE) return true;
  return tensor.atom() == ATOM_ROW && at % (models::Elements(tensor) / tensor.shape(0)) != 0;
}

// The shards that own parts of a unit: those of its stage with its share of the tensors.
struct Owners {
  Mesh mesh;
  uint32_t stage, tensor;

  uint32_t count() const { return mesh.shard; }
  uint32_t At(uint32_t s) const { return OwnerAt(mesh, {.pipeline = stage, .shard = s, .tensor = tensor}); }
  bool Has(uint32_t shard) const {
    const Coordinate at = CoordinateOfOwner(mesh, shard);
    return at.pipeline == stage && at.tensor == tensor;
  }
};
Owners OwnersOf(const PartitionTable& table, const UnitPartition& part) {
  return {MeshOf(table), part.stage(), part.tensor()};
}

absl::Status CheckPiece(const Piece& piece, const Tensor& tensor, const Owners& owners) {
  uint64_t covered = 0;
  for (const Extent& extent : piece.extents()) {
    if (!owners.Has(extent.shard())) {
      return Wrong(piece.tensor(),
                   absl::StrCat("shard ", extent.shard(), " of ", owners.count(), " shards",
                                owners.At(0) > 0 ? absl::StrCat(" from ", owners.At(0)) : "",
                                owners.mesh.tensor > 1 ? absl::StrCat(", each ", owners.mesh.tensor) : ""));
    }
    if (extent.begin() != covered) {
      return Wrong(piece.tensor(), absl::StrCat(extent.begin() > covered ? "hole" : "overlap", " at element ",
                                                std::min(extent.begin(), covered)));
    }
    if (Divides(tensor, covered)) return Wrong(piece.tensor(), absl::StrCat("must not be cut at element ", covered));
    covered += extent.length();
  }
  const uint64_t elements = models::Elements(tensor);
  if (covered == elements) return absl::OkStatus();
  return Wrong(piece.tensor(), absl::StrCat("covers ", covered, " of ", elements, " elements"));
}

absl::Status CheckBoundaries(const UnitPartition& part, const FlatUnit& flat, const Unit& unit, uint32_t shards) {
  if (static_cast<uint32_t>(part.boundaries_size()) != shards + 1 || part.boundaries(0) != 0) {
    return Wrong(part.unit(), absl::StrCat(part.boundaries_size(), " boundaries for ", shards, " shards"));
  }
  if (part.boundaries(static_cast<int>(shards)) < flat.elements) {
    return Wrong(part.unit(), absl::StrCat("hole at element ", part.boundaries(static_cast<int>(shards))));
  }
  std::map<std::string, const Tensor*> by_name;
  for (const Tensor& tensor : unit.tensors()) by_name[tensor.name()] = &tensor;
  std::vector<const Tensor*> tensors;  // in the order of the flat buffer
  for (const FlatTensor& t : flat.tensors) tensors.push_back(by_name.at(t.name));
  size_t t = 0;  // the tensor that the boundary lies in, or before
  for (int i = 1; i < part.boundaries_size(); ++i) {
    const uint64_t at = part.boundaries(i);
    if (at < part.boundaries(i - 1)) return Wrong(part.unit(), absl::StrCat("overlap at element ", at));
    if (at % kAlignElements != 0) return Wrong(part.unit(), absl::StrCat("boundary ", at, " is not a multiple of 16"));
    while (t < tensors.size() && at >= flat.tensors[t].begin + flat.tensors[t].elements) ++t;
    if (t == tensors.size() || at <= flat.tensors[t].begin || !Divides(*tensors[t], at - flat.tensors[t].begin))
      continue;
    return Wrong(flat.tensors[t].name, absl::StrCat("must not be cut at element ", at - flat.tensors[t].begin));
  }
  return absl::OkStatus();
}

// Indices of the unit's tensors, in the order of the pieces.
absl::StatusOr<std::vector<int>> Order(const UnitPartition& part, const Unit& unit) {
  std::map<std::string, int> missing;
  for (int t = 0; t < unit.tensors_size(); ++t) missing[unit.tensors(t).name()] = t;
  std::vector<int> order;
  for (const Piece& piece : part.pieces()) {
    const auto found = missing.find(piece.tensor());
    if (found == missing.end()) return Wrong(piece.tensor(), absl::StrCat("unknown to, or twice in, ", unit.name()));
    order.push_back(found->second);
    missing.erase(found);
  }
  if (!missing.empty()) return Wrong(missing.begin()->first, "missing");
  return order;
}

absl::Status CheckUnit(const UnitPartition& part, const Unit& unit, const Owners& owners) {
  if (part.unit() != unit.name()) return Wrong(part.unit(), absl::StrCat("the model has ", unit.name(), " here"));
  const bool by_boundaries = part.boundaries_size() > 0;
  if (by_boundaries && part.pieces_size() == 0) return CheckBoundaries(part, Flatten(unit), unit, owners.count());
  const absl::StatusOr<std::vector<int>> order = Order(part, unit);
  if (!order.ok()) return order.status();
  if (by_boundaries) {
    for (const Piece& piece : part.pieces()) {
      if (piece.extents_size() > 0) return Wrong(piece.tensor(), "has extents, and its unit boundaries");
    }
    return CheckBoundaries(part, Flatten(unit, *order), unit, owners.count());
  }
  for (int i = 0; i < part.pieces_size(); ++i) {
    if (absl::Status s = CheckPiece(part.pieces(i), unit.tensors((*order)[i]), owners); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void Append(std::vector<OwnedRange>& ranges, uint32_t shard, uint64_t begin, uint64_t end) {
  if (begin == end) return;
  if (!ranges.empty() && ranges.back().shard == shard) {
    ranges.back().end = end;
  } else {
    ranges.push_back({shard, begin, end});
  }
}

OwnedUnit Own(const UnitPartition& part, const Unit& unit, const Owners& owners) {
  OwnedUnit owned;
  owned.flat = part.pieces_size() == 0 ? Flatten(unit) : Flatten(unit, *Order(part, unit));
  if (part.boundaries_size() > 0) {
    owned.flat.elements = part.boundaries(part.boundaries_size() - 1);
    for (int s = 0; s + 1 < part.boundaries_size(); ++s) {
      Append(owned.ranges, owners.At(static_cast<uint32_t>(s)), part.boundaries(s), part.boundaries(s + 1));
    }
    return owned;
  }
  uint64_t at = 0;
  for (int i = 0; i < part.pieces_size(); ++i) {
    const FlatTensor& tensor = owned.flat.tensors[i];
    const bool last = i + 1 == part.pieces_size();
    const uint64_t next = last ? owned.flat.elements : owned.flat.tensors[i + 1].begin;
    for (const Extent& extent : part.pieces(i).extents()) {
      const uint64_t end = tensor.begin + extent.begin() + extent.length();
      const uint64_t padded = end == tensor.begin + tensor.elements ? next : end;
      Append(owned.ranges, extent.shard(), at, padded);
      at = padded;
    }
  }
  return owned;
}

}  // namespace

uint32_t Stages(const PartitionTable& table) { return std::max(1u, table.stages()); }

uint32_t TensorRanks(const PartitionTable& table) { return std::max(1u, table.tensor()); }

Mesh MeshOf(const PartitionTable& table) {
  return WithShardsFor({.pipeline = Stages(table), .tensor = TensorRanks(table)}, table.shards());
}

PartitionTable TableOf(const PartitionTable& table, uint32_t stage, uint32_t tensor) {
  PartitionTable of;
  const Mesh mesh = MeshOf(table);
  of.set_shards(mesh.shard);
  for (const UnitPartition& unit : table.units()) {
    if (unit.stage() != stage || unit.tensor() != tensor) continue;
    UnitPartition& own = *of.add_units() = unit;
    own.clear_stage(), own.clear_begins_chunk(), own.clear_tensor();
    for (Piece& piece : *own.mutable_pieces()) {
      for (Extent& extent : *piece.mutable_extents()) {
        extent.set_shard(CoordinateOfOwner(mesh, extent.shard()).shard);
      }
    }
  }
  return of;
}

OwnedUnit OwnedUnitOf(const PartitionTable& table, const Inventory& inventory, int unit) {
  return Own(table.units(unit), inventory.units(unit), OwnersOf(table, table.units(unit)));
}

void EachOwnedUnit(const PartitionTable& table, const Inventory& inventory,
                   absl::FunctionRef<void(const UnitPartition&, const Unit&, const OwnedUnit&)> visit) {
  // A table of one share has that share's inventory.
  const bool shares = TensorRanks(table) > 1;
  for (uint32_t tensor = 0; tensor < TensorRanks(table); ++tensor) {
    const std::optional<Inventory> own =
        shares ? std::optional<Inventory>(models::ShareOf(inventory, tensor)) : std::nullopt;
    const Inventory& share = shares ? *own : inventory;
    for (int u = 0; u < share.units_size(); ++u) {
      const UnitPartition& part = table.units(static_cast<int>(tensor) * share.units_size() + u);
      visit(part, share.units(u), Own(part, share.units(u), OwnersOf(table, part)));
    }
  }
}

std::vector<OwnedUnit> OwnedUnits(const PartitionTable& table, const Inventory& inventory) {
  std::vector<OwnedUnit> units;
  for (int u = 0; u < inventory.units_size(); ++u) units.push_back(OwnedUnitOf(table, inventory, u));
  return units;
}

uint64_t BufferElements(const PartitionTable& table, const Inventory& inventory, int unit) {
  const UnitPartition& part = table.units(unit);
  if (part.boundaries_size() > 0) return part.boundaries(part.boundaries_size() - 1);
  return Flatten(inventory.units(unit)).elements;
}

bool HasFrozen(const Unit& unit) {
  return std::any_of(unit.tensors().begin(), unit.tensors().end(), [](const Tensor& t) { return t.frozen(); });
}

bool IsFrozenInPart(const Unit& unit) { return HasFrozen(unit) && TrainedElements(unit) > 0; }

OwnedUnit TrainedPart(const OwnedUnit& unit) {
  const std::vector<FlatTensor>& all = unit.flat.tensors;
  if (std::none_of(all.begin(), all.end(), [](const FlatTensor& t) { return t.frozen; })) return unit;
  OwnedUnit trained;
  std::vector<uint64_t> begins;  // by tensor: trained elements before it, padding included
  for (size_t i = 0; i < all.size(); ++i) {
    begins.push_back(trained.flat.elements);
    if (all[i].frozen) continue;
    trained.flat.tensors.push_back(all[i]);
    trained.flat.tensors.back().begin = trained.flat.elements;
    const uint64_t next = i + 1 < all.size() ? all[i + 1].begin : unit.flat.elements;
    trained.flat.elements += next - all[i].begin;
  }
  size_t t = 0;  // the tensor that the boundary lies in
  const auto mapped = [&](uint64_t at) {
    while (t + 1 < all.size() && all[t + 1].begin <= at) ++t;
    if (all[t].frozen) return begins[t];
    return begins[t] + (at - all[t].begin);
  };
  for (const OwnedRange& range : unit.ranges) {
    const uint64_t begin = trained.ranges.empty() ? 0 : trained.ranges.back().end;
    Append(trained.ranges, range.shard, begin, mapped(range.end));
  }
  return trained;
}

std::vector<bool> EvenUnits(const PartitionTable& table, const Inventory& inventory) {
  std::vector<bool> even;
  for (int u = 0; u < table.units_size(); ++u) {
    const UnitPartition& part = table.units(u);
    bool equal =
        part.boundaries_size() == static_cast<int>(MeshOf(table).shard) + 1 && !IsFrozenInPart(inventory.units(u));
    for (int s = 1; equal && s < part.boundaries_size(); ++s) {
      equal = part.boundaries(s) == static_cast<uint64_t>(s) * part.boundaries(1);
    }
    even.push_back(equal);
  }
  return even;
}

std::vector<uint64_t> OwnedElements(const PartitionTable& table, const Inventory& inventory) {
  std::vector<uint64_t> elements(table.shards());
  EachOwnedUnit(table, inventory, [&](const UnitPartition&, const Unit&, const OwnedUnit& unit) {
    for (const OwnedRange& range : unit.ranges) elements[range.shard] += range.end - range.begin;
  });
  return elements;
}

std::vector<uint64_t> TrainedElements(const PartitionTable& table, const Inventory& inventory) {
  std::vector<uint64_t> elements(table.shards());
  EachOwnedUnit(table, inventory, [&](const UnitPartition&, const Unit&, const OwnedUnit& unit) {
    for (const OwnedRange& range : TrainedPart(unit).ranges) elements[range.shard] += range.end - range.begin;
  });
  return elements;
}

namespace {

// Of the units of one share.
absl::Status CheckShare(const PartitionTable& table, const Inventory& share, uint32_t tensor) {
  const uint32_t stages = Stages(table);
  for (int u = 0; u < share.units_size(); ++u) {
    const UnitPartition& part = table.units(static_cast<int>(tensor) * share.units_size() + u);
    if (part.stage() >= stages || part.stage() != table.units(u).stage()) {
      return Wrong(part.unit(), absl::StrCat("stage ", part.stage(), " of ", stages, " stages"));
    }
    if (part.tensor() != tensor) {
      return Wrong(part.unit(), absl::StrCat("share ", part.tensor(), " of its tensors, and ", tensor, " is expected"));
    }
    if (absl::Status s = CheckUnit(part, share.units(u), OwnersOf(table, part)); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Check(const PartitionTable& table, const Inventory& inventory) {
  const uint32_t stages = Stages(table), tensor = TensorRanks(table);
  // A share of a model has a table of its own.
  const uint32_t expected = models::IsShare(inventory) ? 1 : models::TensorRanks(inventory);
  if (tensor != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition table: ", tensor, " ranks compute a unit together, and ", expected, " are expected"));
  }
  if (static_cast<uint64_t>(table.units_size()) != uint64_t{tensor} * static_cast<uint64_t>(inventory.units_size())) {
    return absl::InvalidArgumentError(absl::StrCat("partition table: ", table.units_size(), " units, the model has ",
                                                   inventory.units_size(), tensor > 1 ? " in each share" : ""));
  }
  if (table.shards() == 0) return absl::InvalidArgumentError("partition table: no shard");
  if (table.shards() % (uint64_t{stages} * tensor) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("partition table: ", table.shards(), " shards, and ", stages,
                                                   " stages ", tensor > 1 ? absl::StrCat("of ", tensor, " ") : "",
                                                   "do not divide them"));
  }
  for (uint32_t t = 0; t < tensor; ++t) {
    const absl::Status s = CheckShare(table, tensor > 1 ? models::ShareOf(inventory, t) : inventory, t);
    if (!s.ok()) return s;
  }
  std::vector<bool> used(stages);
  for (const UnitPartition& unit : table.units()) used[unit.stage()] = true;
  if (const auto unused = std::find(used.begin(), used.end(), false); unused != used.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition table: stage ", unused - used.begin(), " of ", stages, " has no unit"));
  }
  return absl::OkStatus();
}

std::string TableBytes(const PartitionTable& table) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    table.SerializeToCodedStream(&coded);
  }
  return bytes;
}

std::string TableSha256(const PartitionTable& table) { return Sha256Hex(TableBytes(table)); }

}  // namespace muster::partition
