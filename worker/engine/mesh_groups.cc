#include "worker/engine/mesh_groups.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace muster::engine {

std::string NameOf(const GroupSpec& group, const Membership& own) {
  return absl::StrCat(absl::StrReplaceAll(Print(group), {{" ", "-"}, {",", ""}}), "-", own.first);
}

absl::StatusOr<MeshGroups> MakeGroups(const Mesh& mesh, const std::vector<GroupSpec>& groups, uint32_t rank,
                                      MakeGroup make) {
  MeshGroups made;
  const GroupSpec issues_none = CommonGroups()[kContextTensorGroup];
  for (size_t g = 0; g < groups.size(); ++g) {
    collectives::Group*& group = made.by_number.emplace_back(nullptr);
    const std::optional<Membership> own = MembershipOf(mesh, groups[g], rank);
    if (!own.has_value() || own->size == 1 || groups[g] == issues_none) continue;
    for (size_t other = 0; other < g; ++other) {
      if (made.by_number[other] != nullptr && ShareMembers(mesh, groups[other], groups[g]))
        group = made.by_number[other];
    }
    if (group != nullptr) continue;
    auto one = make(groups[g], *own);
    if (!one.ok()) return one.status();
    if (*one == nullptr) continue;
    group = one->get();
    made.owned.push_back(*std::move(one));
  }
  return made;
}

}  // namespace muster::engine
