// A group whose other ranks are not there: every collective is done at once and leaves the numbers as they are, but
// zeros are received. For what does not depend on the other ranks: a rank's memory, and the order of its ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/collectives/group.h"

namespace muster::engine {

class GroupOfOthers : public collectives::Group {
 public:
  // `health`, if not null, is the group's, and outlives it.
  GroupOfOthers(int rank, int size, const absl::Status* health = nullptr) : rank_(rank), size_(size), health_(health) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<collectives::Work> AllReduce(at::Tensor) override { return Done(); }
  std::unique_ptr<collectives::Work> AllGather(std::vector<at::Tensor>) override { return Done(); }
  std::unique_ptr<collectives::Work> ReduceScatter(std::vector<at::Tensor>) override { return Done(); }
  std::unique_ptr<collectives::Work> Broadcast(at::Tensor, int) override { return Done(); }
  std::unique_ptr<collectives::Work> BroadcastShares(std::vector<collectives::RankShare>) override { return Done(); }
  std::unique_ptr<collectives::Work> ReduceShares(std::vector<collectives::RankShare>) override { return Done(); }
  std::unique_ptr<collectives::Work> Send(at::Tensor, int) override { return Done(); }
  std::unique_ptr<collectives::Work> Recv(at::Tensor values, int) override {
    values.zero_();
    return Done();
  }
  absl::Status Barrier() override { return absl::OkStatus(); }
  absl::Status Health() override { return health_ == nullptr ? absl::OkStatus() : *health_; }

 protected:
  static std::unique_ptr<collectives::Work> Done() { return std::make_unique<DoneWork>(); }

 private:
  class DoneWork final : public collectives::Work {
   public:
    absl::Status Wait() override { return absl::OkStatus(); }
    bool done() const override { return true; }
  };

  const int rank_, size_;
  const absl::Status* const health_;
};

}  // namespace muster::engine
