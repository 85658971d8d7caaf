// A group whose ranks are on one machine and read each other's memory (neighbours.h, transfers.h, messages.h).
#pragma once

#include <memory>

#include "worker/collectives/group.h"
#include "worker/collectives/group_status.h"
#include "worker/collectives/neighbours.h"

namespace muster::collectives {

// All-reduce, all-gather, reduce-scatter and the collectives of shares use memory reads, bit-equal to `gloo`'s results,
// and so do the messages of a group of two ranks, which gives a second meeting of its ranks as `pair`, else null.
// Everything else goes through `gloo`, which shares the status. Dropping a Work before it is done fails the group,
// because other ranks may still read its tensors.
std::unique_ptr<Group> MakeDirect(std::unique_ptr<Group> gloo, std::unique_ptr<Neighbours> neighbours,
                                  std::unique_ptr<Neighbours> pair, std::shared_ptr<GroupStatus> status);

}  // namespace muster::collectives
