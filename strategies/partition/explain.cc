#include "strategies/partition/explain.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "strategies/partition/table.h"

namespace muster::partition {
namespace {

constexpr uint64_t kBytes = 4;  // an element of master weights

// A unit whose busiest owner sends this little is no bottleneck.
constexpr uint64_t kSmallUnitBytes = 64 << 10;

// `due`: of each shard, of a unit of its stage. `owned`: a zero for each shard, and left so.
UnitExplanation ExplainUnit(const std::string& name, const OwnedUnit& unit, const std::vector<double>& due,
                            std::vector<uint64_t>& owned) {
  std::vector<uint32_t> owners;
  for (const OwnedRange& range : unit.ranges) {
    if (owned[range.shard] == 0) owners.push_back(range.shard);
    owned[range.shard] += kBytes * (range.end - range.begin);
  }
  std::sort(owners.begin(), owners.end());
  UnitExplanation out;
  out.unit = name;
  out.bytes = kBytes * unit.flat.elements;
  out.owners = static_cast<uint32_t>(owners.size());
  out.ranges = static_cast<uint32_t>(unit.ranges.size());
  for (const uint32_t shard : owners) {
    const uint64_t bytes = std::exchange(owned[shard], 0);
    out.largest_bytes = std::max(out.largest_bytes, bytes);
    const double share = static_cast<double>(bytes) / static_cast<double>(out.bytes);
    if (share / due[shard] <= out.over) continue;
    out.busiest = shard;
    out.busiest_bytes = bytes;
    out.share = share;
    out.over = share / due[shard];
  }
  return out;
}

bool EqualParts(const UnitPartition& unit) {
  if (unit.boundaries_size() == 0) return false;
  for (int s = 0; s + 1 < unit.boundaries_size(); ++s) {
    if (unit.boundaries(s + 1) - unit.boundaries(s) != unit.boundaries(1)) return false;
  }
  return true;
}

// Of a unit that is frozen in part, equal parts of both have two ranges an owner.
bool IsCutInTwo(const OwnedUnit& unit, uint32_t shards) {
  const size_t trained = TrainedPart(unit).ranges.size();
  return trained > 0 && trained <= shards && unit.ranges.size() - trained <= shards;
}

Cuts CutsOf(const PartitionTable& table, const Inventory& inventory, const std::vector<UnitExplanation>& units) {
  bool equal = true, rows = false;
  auto explained = units.begin();
  EachOwnedUnit(table, inventory, [&](const UnitPartition& part, const Unit& unit, const OwnedUnit& owned) {
    const UnitExplanation& own = *explained++;
    if (IsFrozenInPart(unit) && IsCutInTwo(owned, MeshOf(table).shard)) return;
    rows |= own.ranges > own.owners;
    equal &= EqualParts(part);
  });
  if (rows) return Cuts::kRows;
  return equal ? Cuts::kEqual : Cuts::kFitted;
}

// `known`: places in `cut`, by name. Shares of a tensor are one tensor.
void AddCuts(const OwnedUnit& unit, uint64_t most_bytes, std::map<std::string, size_t>& known,
             std::vector<CutTensor>& cut) {
  for (const FlatTensor& tensor : unit.flat.tensors) {
    const uint64_t end = tensor.begin + tensor.elements;
    const auto first = std::partition_point(unit.ranges.begin(), unit.ranges.end(),
                                            [&](const OwnedRange& r) { return r.end <= tensor.begin; });
    const auto last =
        std::partition_point(first, unit.ranges.end(), [&](const OwnedRange& r) { return r.begin < end; });
    if (last - first < 2) continue;
    const auto parts = static_cast<uint32_t>(last - first);
    const auto [at, fresh] = known.emplace(tensor.name, cut.size());
    if (fresh) {
      cut.push_back({tensor.name, parts, kBytes * tensor.elements > most_bytes});
    } else {
      cut[at->second].parts = std::max(cut[at->second].parts, parts);
    }
  }
}

// "h.11.mlp.c_fc.weight" becomes "h.*.mlp.c_fc.weight": a layer's number is between dots.
std::string AnyLayer(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && absl::ascii_isdigit(static_cast<unsigned char>(name[end]))) ++end;
    const bool number = end > i && (i == 0 || name[i - 1] == '.') && (end == name.size() || name[end] == '.');
    if (number) {
      out += '*';
      i = end;
    } else {
      out += name[i++];
    }
  }
  return out;
}

std::string BalanceLine(const Explanation& e, const std::string& measure) {
  const auto [least, most] = std::minmax_element(e.bytes.begin(), e.bytes.end());
  std::string line = absl::StrCat(e.bytes.size(), e.bytes.size() == 1 ? " shard owns " : " shards own ");
  const std::string low = FormatBytes(*least), high = FormatBytes(*most);
  absl::StrAppend(&line, low);
  if (high != low) absl::StrAppend(&line, " to ", high);
  absl::StrAppend(&line, " of parameters", e.bytes.size() == 1 ? "" : " each");
  if (e.bytes.size() == 1) return line;
  absl::StrAppendFormat(&line, ": the largest %.3f × the mean", e.over_mean);
  if (e.over_share != e.over_mean)
    absl::StrAppendFormat(&line, ", at most %.3f × its share of the %s", e.over_share, measure);
  return line;
}

std::string BusiestLine(const Explanation& e) {
  const UnitExplanation* worst = nullptr;
  for (const UnitExplanation& unit : e.units) {
    if (unit.busiest_bytes >= kSmallUnitBytes && (worst == nullptr || unit.over > worst->over)) worst = &unit;
  }
  if (worst == nullptr) return "no shard owns more than 64 KiB of a unit";
  return absl::StrFormat("most uneven unit: shard %d owns %.1f%% of %s (%s), %.2f × its share", worst->busiest,
                         100 * worst->share, worst->unit, FormatBytes(worst->busiest_bytes), worst->over);
}

std::string RangesLine(const Explanation& e) {
  if (e.cuts != Cuts::kRows) {
    const bool two =
        std::any_of(e.units.begin(), e.units.end(), [](const auto& unit) { return unit.ranges > unit.owners; });
    return absl::StrCat("the all-gather of a unit has at most ", e.most_ranges, " ranges, ",
                        two ? "one per owner, or two where a part of the unit is frozen" : "one per owner");
  }
  uint64_t ranges = 0, owners = 0;
  for (const UnitExplanation& unit : e.units) {
    ranges += unit.ranges;
    owners += unit.owners;
  }
  return absl::StrFormat(
      "the all-gather of a unit has up to %d ranges, %.1f × as many as owners: each tensor is split by its own rows, "
      "so "
      "more pieces are copied or sent",
      e.most_ranges, static_cast<double>(ranges) / static_cast<double>(owners));
}

// "wte.weight (8 parts), 12 × h.*.mlp.c_fc.weight (2 to 3 parts)"; empty where none is `larger`, or not.
std::string ListCuts(const Explanation& e, bool larger) {
  struct Similar {
    std::string first;
    uint32_t count = 0;
    uint32_t least = UINT32_MAX;
    uint32_t most = 0;
  };
  std::map<std::string, Similar> similar;
  std::vector<std::string> names;  // in the model's order
  for (const CutTensor& cut : e.cut) {
    if (cut.larger != larger) continue;
    const std::string name = AnyLayer(cut.tensor);
    Similar& a = similar[name];
    if (a.count++ == 0) {
      names.push_back(name);
      a.first = cut.tensor;
    }
    a.least = std::min(a.least, cut.parts);
    a.most = std::max(a.most, cut.parts);
  }
  return absl::StrJoin(names, ", ", [&](std::string* out, const std::string& name) {
    const Similar& a = similar[name];
    absl::StrAppend(out, a.count > 1 ? absl::StrCat(a.count, " × ", name) : a.first, " (", a.least,
                    a.most > a.least ? absl::StrCat(" to ", a.most) : "", " parts)");
  });
}

std::vector<std::string> CutLines(const Explanation& e) {
  std::vector<std::string> lines{absl::StrCat(e.cut.size(), " of ", e.tensors, " tensors are split between shards")};
  if (e.tensor_ranks > 1)
    absl::StrAppend(&lines[0], ", in addition to the split over ", e.tensor_ranks, " tensor ranks");
  if (e.cut.empty()) return lines;
  if (e.cuts == Cuts::kRows) {
    absl::StrAppend(&lines[0], ", each by its own rows");
  } else if (e.cuts == Cuts::kEqual) {
    absl::StrAppend(&lines[0], ": each unit is divided into equal parts");
  } else {
    const std::string larger = ListCuts(e, true), fitted = ListCuts(e, false);
    if (!larger.empty())
      lines.push_back(absl::StrCat("split, because larger than any shard's part of the unit: ", larger));
    if (!fitted.empty()) lines.push_back(absl::StrCat("split, because larger than what was left of a share: ", fitted));
  }
  return lines;
}

}  // namespace

Explanation Explain(const PartitionTable& table, const Inventory& inventory, absl::Span<const uint64_t> weights) {
  const size_t shards = table.shards();
  std::vector<double> due(shards, 1.0 / static_cast<double>(shards));
  if (!weights.empty()) {
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t s = 0; s < shards; ++s) due[s] = static_cast<double>(weights[s]) / sum;
  }
  Explanation e;
  for (const uint64_t elements : OwnedElements(table, inventory)) e.bytes.push_back(kBytes * elements);
  const double total = std::accumulate(e.bytes.begin(), e.bytes.end(), 0.0);
  for (size_t s = 0; s < shards; ++s) {
    const double share = static_cast<double>(e.bytes[s]) / total;
    e.over_mean = std::max(e.over_mean, share * static_cast<double>(shards));
    e.over_share = std::max(e.over_share, share / due[s]);
  }
  // Only the shards of a stage and share own parts of its units.
  for (const std::vector<uint32_t>& owners : GroupsOf(MeshOf(table), {.axes = kShardAxis})) {
    double sum = 0;
    for (const uint32_t s : owners) sum += due[s];
    for (const uint32_t s : owners) due[s] /= sum;
  }
  std::vector<uint64_t> scratch(shards);
  std::map<std::string, size_t> known;
  e.tensor_ranks = TensorRanks(table);
  EachOwnedUnit(table, inventory, [&](const UnitPartition& part, const Unit&, const OwnedUnit& owned) {
    const UnitExplanation unit = ExplainUnit(part.unit(), owned, due, scratch);
    e.most_ranges = std::max(e.most_ranges, unit.ranges);
    e.units.push_back(unit);
    AddCuts(owned, unit.largest_bytes, known, e.cut);
    if (part.tensor() == 0) e.tensors += static_cast<uint32_t>(owned.flat.tensors.size());
  });
  e.cuts = CutsOf(table, inventory, e.units);
  return e;
}

std::vector<std::string> Lines(const Explanation& e, const std::string& measure) {
  std::vector<std::string> lines{BalanceLine(e, measure)};
  if (e.bytes.size() == 1) return lines;
  lines.push_back(BusiestLine(e));
  lines.push_back(RangesLine(e));
  for (std::string& line : CutLines(e)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace muster::partition
