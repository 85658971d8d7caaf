#include "strategies/pipeline/stages.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "models/inventory.h"
#include "strategies/pipeline/cut.h"

namespace muster::pipeline {
namespace {

// The model's chunks: runs of units of one stage.
struct ModelChunk {
  int begin = 0, end = 0;
  uint32_t stage = 0;
};
std::vector<ModelChunk> ChunksOf(const StageOfUnit& stages) {
  std::vector<ModelChunk> chunks;
  for (int u = 0; u < static_cast<int>(stages.size()); ++u) {
    const bool begins = chunks.empty() || chunks.back().stage != stages[u].stage || stages[u].begins_chunk;
    if (begins) chunks.push_back({u, u, stages[u].stage});
    chunks.back().end = u + 1;
  }
  return chunks;
}

GroupSpec Edge(Channel channel, uint32_t from, uint32_t to) {
  return {
      .axes = kPipelineAxis, .channel = channel, .from = static_cast<int32_t>(from), .to = static_cast<int32_t>(to)};
}

uint32_t ChunksOf(const Train& train) {
  const bool several = train.pipeline().schedule() == PIPELINE_SCHEDULE_INTERLEAVED ||
                       train.pipeline().schedule() == PIPELINE_SCHEDULE_ZERO_BUBBLE;
  return train.parallel().pipeline() * (several ? std::max(1u, train.pipeline().chunks()) : 1);
}

absl::StatusOr<std::vector<int>> ReadCut(const Train& train, const Inventory& inventory, uint32_t chunks) {
  if (train.pipeline().cut_size() + 1 != static_cast<int>(chunks)) {
    return absl::InvalidArgumentError(absl::StrCat("pipeline.cut: names ", train.pipeline().cut_size(),
                                                   " units; the first of each of ", chunks, " chunks but the first is ",
                                                   chunks - 1));
  }
  std::vector<int> begins = {0};
  for (const std::string& name : train.pipeline().cut()) {
    int u = 0;
    while (u < inventory.units_size() && inventory.units(u).name() != name) ++u;
    if (u == inventory.units_size()) {
      return absl::InvalidArgumentError(absl::StrCat("pipeline.cut: the model has no unit ", name, "; it has ",
                                                     inventory.units(0).name(), " to ",
                                                     inventory.units(inventory.units_size() - 1).name()));
    }
    if (u <= begins.back()) {
      return absl::InvalidArgumentError(absl::StrCat("pipeline.cut: ", name, " does not come after ",
                                                     inventory.units(begins.back()).name(),
                                                     ", with which the chunk before it begins"));
    }
    begins.push_back(u);
  }
  return begins;
}

}  // namespace

uint32_t Stages(const StageOfUnit& stages) {
  uint32_t count = 1;
  for (const UnitPlace& unit : stages) count = std::max(count, unit.stage + 1);
  return count;
}

std::vector<int> CutEvenly(const Inventory& inventory, uint32_t chunks) {
  return CutUnits(LoadsOf(inventory), std::vector<ChunkPlace>(chunks))->begins;
}

uint32_t StageOfChunk(PipelineSchedule schedule, uint32_t chunk, uint32_t stages) {
  const uint32_t place = chunk % stages;
  const bool back = schedule == PIPELINE_SCHEDULE_ZERO_BUBBLE && chunk >= stages;
  return back ? stages - 1 - place : place;
}

absl::StatusOr<StageOfUnit> StagesOf(const Train& train, const Inventory& inventory,
                                     absl::Span<const ChunkPlace> by_stage, strategies::Budget* budget) {
  const uint32_t stages = std::max(1u, train.parallel().pipeline());
  StageOfUnit of(static_cast<size_t>(inventory.units_size()));
  if (stages == 1) return of;
  const uint32_t chunks = ChunksOf(train);
  if (chunks > of.size()) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.pipeline: ", chunks, " chunks of a model of ", of.size(),
                                                   " units; use fewer stages or chunks"));
  }
  std::vector<int> begins;
  if (train.pipeline().cut_size() > 0) {
    absl::StatusOr<std::vector<int>> cut = ReadCut(train, inventory, chunks);
    if (!cut.ok()) return cut.status();
    begins = *std::move(cut);
  } else {
    std::vector<uint32_t> stage_of_chunk;
    for (uint32_t c = 0; c < chunks; ++c) {
      stage_of_chunk.push_back(StageOfChunk(train.pipeline().schedule(), c, stages));
    }
    const std::vector<ChunkPlace> equal(stages);
    absl::StatusOr<Cut> cut =
        CutStages(LoadsOf(inventory), by_stage.empty() ? equal : by_stage, stage_of_chunk, budget);
    if (!cut.ok()) return cut.status();
    begins = std::move(cut->begins);
  }
  for (size_t c = 0; c < begins.size(); ++c) {
    const size_t end = c + 1 < begins.size() ? static_cast<size_t>(begins[c + 1]) : of.size();
    const uint32_t stage = StageOfChunk(train.pipeline().schedule(), static_cast<uint32_t>(c), stages);
    const bool same = c > 0 && of[begins[c] - 1].stage == stage;
    std::fill(of.begin() + begins[c], of.begin() + static_cast<std::ptrdiff_t>(end), UnitPlace(stage));
    of[begins[c]].begins_chunk = same;
  }
  return of;
}

StageOfUnit StagesOf(const PartitionTable& table) {
  StageOfUnit of;
  for (const UnitPartition& unit : table.units()) {
    if (unit.tensor() == 0) of.emplace_back(unit.stage(), unit.begins_chunk());
  }
  return of;
}

PartitionTable Join(const std::vector<PartitionTable>& of, const StageOfUnit& stages, uint32_t tensor) {
  if (of.size() == 1) return of[0];
  const Mesh mesh{.pipeline = Stages(stages), .shard = of[0].shards(), .tensor = tensor};
  PartitionTable table;
  table.set_shards(mesh.owners());
  if (mesh.pipeline > 1) table.set_stages(mesh.pipeline);
  if (tensor > 1) table.set_tensor(tensor);
  for (uint32_t share = 0; share < tensor; ++share) {
    std::vector<int> next(mesh.pipeline);
    for (const auto& [stage, begins_chunk] : stages) {
      const PartitionTable& own = of[PartAt(mesh, {.pipeline = stage, .tensor = share})];
      UnitPartition& unit = *table.add_units() = own.units(next[stage]++);
      unit.set_stage(stage), unit.set_begins_chunk(begins_chunk), unit.set_tensor(share);
      for (Piece& piece : *unit.mutable_pieces()) {
        for (Extent& extent : *piece.mutable_extents()) {
          extent.set_shard(OwnerAt(mesh, {.pipeline = stage, .shard = extent.shard(), .tensor = share}));
        }
      }
    }
  }
  return table;
}

Inventory StageInventory(const Inventory& inventory, const StageOfUnit& stages, uint32_t stage) {
  Inventory of = models::WithoutUnits(inventory);
  of.set_model_units(static_cast<uint32_t>(inventory.units_size()));
  of.set_first_trained(static_cast<uint32_t>(models::FirstTrained(inventory)));
  for (const ModelChunk& chunk : ChunksOf(stages)) {
    if (chunk.stage != stage) continue;
    Chunk& own = *of.add_chunks();
    own.set_begin(static_cast<uint32_t>(of.units_size()));
    own.set_model_begin(static_cast<uint32_t>(chunk.begin));
    if (chunk.begin > 0) {
      const Unit& before = inventory.units(chunk.begin - 1);
      own.set_input_bytes(before.output_bytes());
      *own.mutable_inputs() = before.outputs();
    }
    for (int u = chunk.begin; u < chunk.end; ++u) *of.add_units() = inventory.units(u);
  }
  for (TiedTensor& tied : TiedTensors(inventory, stages)) {
    if (tied.owner_stage() == stage || tied.user_stage() == stage) *of.add_tied() = std::move(tied);
  }
  return of;
}

absl::Status CheckCut(const Inventory& inventory, const StageOfUnit& stages) {
  if (ChunksOf(stages).size() == 1) return absl::OkStatus();
  if (const absl::Status known = models::CheckOutputs(inventory); !known.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.pipeline: ", known.message()));
  }
  return absl::OkStatus();
}

absl::Status CheckTies(const Inventory& inventory, const StageOfUnit& stages) {
  const std::vector<TiedTensor> all = TiedTensors(inventory, stages);
  std::map<std::tuple<uint32_t, uint32_t, std::string>, const TiedTensor*> of_owner, of_user;  // by edge and unit
  for (const TiedTensor& tied : all) {
    const TiedTensor& lent =
        *of_owner.try_emplace({tied.owner_stage(), tied.user_stage(), tied.owner()}, &tied).first->second;
    const TiedTensor& borrowed =
        *of_user.try_emplace({tied.owner_stage(), tied.user_stage(), tied.user()}, &tied).first->second;
    if (lent.user() == tied.user() && borrowed.owner() == tied.owner()) continue;
    const bool several_users = lent.user() != tied.user();
    const std::string &first = (several_users ? lent : borrowed).tensor().name(), &second = tied.tensor().name();
    const std::string tensors = first == second ? first : absl::StrCat(first, " and ", second);
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel.pipeline: ",
        several_users ? absl::StrCat("units ", lent.user(), " and ", tied.user(), " on stage ", tied.user_stage(),
                                     " both borrow ", tensors, " of unit ", tied.owner())
                      : absl::StrCat("unit ", tied.user(), " on stage ", tied.user_stage(), " borrows ", tensors,
                                     " of units ", borrowed.owner(), " and ", tied.owner()),
        " on stage ", tied.owner_stage(),
        ", and a unit can share tensors with one unit of another stage only; use another pipeline.cut, or no "
        "pipeline"));
  }
  return absl::OkStatus();
}

std::vector<TiedTensor> TiedTensors(const Inventory& inventory, const StageOfUnit& stages) {
  std::map<absl::string_view, int> unit_of;  // those that others borrow from: few of thousands
  for (const Unit& unit : inventory.units()) {
    for (const Borrow& borrow : unit.borrows()) unit_of[borrow.unit()] = -1;
  }
  for (int u = 0; !unit_of.empty() && u < inventory.units_size(); ++u) {
    if (const auto found = unit_of.find(inventory.units(u).name()); found != unit_of.end()) found->second = u;
  }
  std::vector<TiedTensor> all;
  for (int u = 0; u < inventory.units_size(); ++u) {
    for (const Borrow& borrow : inventory.units(u).borrows()) {
      const auto owner = unit_of.find(borrow.unit());
      if (owner->second < 0 || stages[owner->second].stage == stages[u].stage) continue;
      TiedTensor& tied = all.emplace_back();
      for (const Tensor& tensor : inventory.units(owner->second).tensors()) {
        if (tensor.name() == borrow.tensor()) *tied.mutable_tensor() = tensor;
      }
      tied.set_owner(borrow.unit()), tied.set_user(inventory.units(u).name());
      tied.set_owner_stage(stages[owner->second].stage), tied.set_user_stage(stages[u].stage);
    }
  }
  std::stable_sort(all.begin(), all.end(), [&](const TiedTensor& a, const TiedTensor& b) {
    return unit_of.at(a.owner()) > unit_of.at(b.owner());
  });
  return all;
}

std::vector<GroupSpec> Edges(const Inventory& inventory, const StageOfUnit& stages) {
  std::vector<GroupSpec> edges;
  const int first_trained = models::FirstTrained(inventory);  // no gradient goes further back
  const std::vector<ModelChunk> chunks = ChunksOf(stages);
  for (size_t c = 1; c < chunks.size(); ++c) {
    if (chunks[c - 1].stage == chunks[c].stage) continue;
    for (const GroupSpec& edge : {Edge(Channel::kActivations, chunks[c - 1].stage, chunks[c].stage),
                                  Edge(Channel::kGradients, chunks[c].stage, chunks[c - 1].stage)}) {
      if (edge.channel == Channel::kGradients && chunks[c].begin <= first_trained) continue;
      if (std::find(edges.begin(), edges.end(), edge) == edges.end()) edges.push_back(edge);
    }
  }
  for (const TiedTensor& tied : TiedTensors(inventory, stages)) {
    for (const GroupSpec& edge : {Edge(Channel::kTied, tied.owner_stage(), tied.user_stage()),
                                  Edge(Channel::kTiedGradients, tied.user_stage(), tied.owner_stage())}) {
      if (std::find(edges.begin(), edges.end(), edge) == edges.end()) edges.push_back(edge);
    }
  }
  return edges;
}

StageEdges EdgesOf(const Inventory& inventory, const StageOfUnit& stages, uint32_t stage) {
  StageEdges of{.groups = CommonGroups(), .of_chunk = {}, .of_tied = {}};
  const auto number = [&](const GroupSpec& edge) {
    const auto found = std::find(of.groups.begin(), of.groups.end(), edge);
    const auto number = static_cast<int32_t>(found - of.groups.begin());
    if (found == of.groups.end()) of.groups.push_back(edge);
    return number;
  };
  const std::vector<ModelChunk> chunks = ChunksOf(stages);
  if (chunks.size() == 1) return of;
  const int first_trained = models::FirstTrained(inventory);
  for (size_t c = 0; c < chunks.size(); ++c) {
    if (chunks[c].stage != stage) continue;
    ChunkEdges& own = of.of_chunk.emplace_back();
    if (c > 0 && chunks[c - 1].stage != stage) {
      own.receive = number(Edge(Channel::kActivations, chunks[c - 1].stage, stage));
      if (chunks[c].begin > first_trained) {
        own.send_gradient = number(Edge(Channel::kGradients, stage, chunks[c - 1].stage));
      }
    }
    if (c + 1 < chunks.size() && chunks[c + 1].stage != stage) {
      own.send = number(Edge(Channel::kActivations, stage, chunks[c + 1].stage));
      if (chunks[c].end > first_trained)
        own.receive_gradient = number(Edge(Channel::kGradients, chunks[c + 1].stage, stage));
    }
  }
  for (const TiedTensor& tied : TiedTensors(inventory, stages)) {
    if (tied.owner_stage() != stage && tied.user_stage() != stage) continue;
    of.of_tied.push_back({number(Edge(Channel::kTied, tied.owner_stage(), tied.user_stage())),
                          number(Edge(Channel::kTiedGradients, tied.user_stage(), tied.owner_stage()))});
  }
  return of;
}

}  // namespace muster::pipeline
