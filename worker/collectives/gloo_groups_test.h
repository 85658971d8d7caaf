// The groups of MakeGloo's ranks, all in one process, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "worker/collectives/gloo.h"
#include "worker/collectives/group.h"
#include "worker/collectives/key_value.h"

namespace muster::collectives {

// By rank. `rendezvous` outlives them.
inline std::vector<std::unique_ptr<Group>> JoinGloo(int size, absl::Duration timeout, bool direct,
                                                    KeyValue& rendezvous) {
  std::vector<std::unique_ptr<Group>> groups(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto group = MakeGloo({.rank = rank,
                             .size = size,
                             .name = "world",
                             .host = "127.0.0.1",
                             .timeout = timeout,
                             .join_timeout = absl::Seconds(20),
                             .direct = direct},
                            rendezvous);
      EXPECT_TRUE(group.ok()) << group.status();
      if (group.ok()) groups[static_cast<size_t>(rank)] = *std::move(group);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return groups;
}

}  // namespace muster::collectives
