// Forms the process groups that a rank's schedules name, one after another.
//
//   const auto groups = MakeGroups(mesh, config.schedule.groups, rank, [&](const GroupSpec& group, const Membership&
//   own) {
//     return collectives::MakeGloo({.rank = own.index, .size = own.size, .name = NameOf(group, own)}, rendezvous);
//   });
//   config.groups = groups->by_number;
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "strategies/schedule/mesh.h"
#include "worker/collectives/group.h"

namespace muster::engine {

struct MeshGroups {
  std::vector<collectives::Group*> by_number;  // by Op::group; null: it has one member
  std::vector<std::unique_ptr<collectives::Group>> owned;
};

// Unique in a generation: "shards-4" is the group of rank 4 and of those that share its copy.
std::string NameOf(const GroupSpec& group, const Membership& own);

// Calls `make` for each group of more than one rank in which collectives are issued (none are in kContextTensorGroup),
// in their order; groups with the same members share one. Null from `make`: a group that the schedules do not use.
// Errors of `make`.
using MakeGroup =
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<collectives::Group>>(const GroupSpec&, const Membership&)>;
absl::StatusOr<MeshGroups> MakeGroups(const Mesh& mesh, const std::vector<GroupSpec>& groups, uint32_t rank,
                                      MakeGroup make);

}  // namespace muster::engine
