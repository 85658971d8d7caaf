// Beside LibTorch's batch normalization of all ranks' samples at once.
#include "worker/units/sync_batch_norm.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <barrier>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "worker/units/autograd.h"

namespace muster::units {
namespace {

constexpr double kMomentum = 0.3, kEpsilon = 1e-5;
constexpr int64_t kChannels = 5;

// Ranks as threads that meet at a table.
class Table {
 public:
  explicit Table(size_t ranks) : rows_(ranks), barrier_(static_cast<std::ptrdiff_t>(ranks)) {}
  at::Tensor Meet(size_t rank, const at::Tensor& values) {
    rows_[rank] = values.clone();
    barrier_.arrive_and_wait();
    const at::Tensor all = at::stack(rows_);
    barrier_.arrive_and_wait();
    return all;
  }

 private:
  std::vector<at::Tensor> rows_;
  std::barrier<> barrier_;
};

class Seat final : public SampleRanks {
 public:
  Seat(Table* table, size_t rank) : table_(*table), rank_(rank) {}
  at::Tensor Gather(const at::Tensor& values) override { return table_.Meet(rank_, values); }
  void Sum(const at::Tensor& values) override { values.copy_(table_.Meet(rank_, values).sum(0)); }

 private:
  Table& table_;
  const size_t rank_;
};

struct Result {
  at::Tensor y, grad_x, grad_weight, grad_bias, running_mean, running_var;
};

at::Tensor Weight() { return at::arange(kChannels, at::kFloat).mul(0.3).add(0.5).requires_grad_(true); }
at::Tensor Bias() { return at::arange(kChannels, at::kFloat).mul(-0.2).add(0.1).requires_grad_(true); }
// Per channel another mean and spread; `offset` / spread is how much a sum of squares would cancel.
at::Tensor Samples(int64_t samples, double offset) {
  const at::Tensor t = at::arange(samples * kChannels * 6, at::kFloat).mul(0.7).sin().view({samples, kChannels, 2, 3});
  const at::Tensor channel = at::arange(1, kChannels + 1, at::kFloat).view({1, -1, 1, 1});
  return t.mul(channel).add(channel.mul(offset));
}
at::Tensor OutputGradient(const at::Tensor& y) {
  return at::arange(y.numel(), at::kFloat).mul(1.3).cos().view(y.sizes()).to(y.scalar_type());
}

template <typename F>
Result TrainOn(const at::Tensor& x, const at::Tensor& grad_y, F&& normalize) {
  const c10::AutoGradMode on(true);
  Result result{.running_mean = at::arange(kChannels, at::kFloat), .running_var = at::ones({kChannels})};
  const at::Tensor leaf = x.detach().requires_grad_(true), weight = Weight(), bias = Bias();
  result.y = normalize(leaf, weight, bias, result.running_mean, result.running_var);
  const std::vector<at::Tensor> gradients = Gradients(result.y, grad_y, {leaf, weight, bias});
  result.grad_x = gradients[0], result.grad_weight = gradients[1], result.grad_bias = gradients[2];
  result.y = result.y.detach();
  return result;
}

Result Whole(const at::Tensor& x, const at::Tensor& grad_y) {
  return TrainOn(x, grad_y,
                 [](const auto& in, const auto& weight, const auto& bias, const auto& mean, const auto& variance) {
                   return at::batch_norm(in, weight, bias, mean, variance, true, kMomentum, kEpsilon, false);
                 });
}

// By rank; each has `shares` of the samples.
std::vector<Result> Synchronized(const at::Tensor& x, const at::Tensor& grad_y, const std::vector<int64_t>& shares) {
  Table table(shares.size());
  std::vector<Result> results(shares.size());
  std::vector<std::thread> ranks;
  int64_t first = 0;
  for (size_t rank = 0; rank < shares.size(); first += shares[rank++]) {
    ranks.emplace_back([&, rank, own = x.narrow(0, first, shares[rank]), grad = grad_y.narrow(0, first, shares[rank])] {
      Seat seat(&table, rank);
      results[rank] = TrainOn(
          own, grad, [&](const auto& in, const auto& weight, const auto& bias, const auto& mean, const auto& variance) {
            return SyncBatchNorm(in, weight, bias, {mean, variance, kMomentum, kEpsilon}, seat);
          });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return results;
}

at::Tensor Joined(const std::vector<Result>& results, at::Tensor Result::*part) {
  std::vector<at::Tensor> parts;
  for (const Result& result : results) parts.push_back(result.*part);
  return at::cat(parts);
}

double Far(const at::Tensor& ours, const at::Tensor& theirs) {
  return ours.sub(theirs).to(at::kDouble).norm().div(theirs.to(at::kDouble).norm()).item<double>();
}

TEST(SyncBatchNorm, IsBatchNormOfAllSamplesTogether) {
  for (const std::vector<int64_t>& shares :
       std::vector<std::vector<int64_t>>{{3, 3}, {4, 3}, {5, 0, 1}, {0, 6, 0, 1}, {7}}) {
    int64_t all = 0;
    std::string name;
    for (const int64_t share : shares) all += share, name += std::to_string(share) + " ";
    const at::Tensor x = Samples(all, 2), grad_y = OutputGradient(x);
    const Result whole = Whole(x, grad_y);
    const std::vector<Result> ours = Synchronized(x, grad_y, shares);
    EXPECT_LT(Far(Joined(ours, &Result::y), whole.y), 1e-6) << name;
    EXPECT_LT(Far(Joined(ours, &Result::grad_x), whole.grad_x), 1e-5) << name;
    at::Tensor weight = at::zeros({kChannels}), bias = at::zeros({kChannels});
    for (const Result& result : ours) {
      weight.add_(result.grad_weight), bias.add_(result.grad_bias);
      EXPECT_LT(Far(result.running_mean, whole.running_mean), 1e-6) << name;
      EXPECT_LT(Far(result.running_var, whole.running_var), 1e-6) << name;
      EXPECT_TRUE(result.running_var.equal(ours[0].running_var)) << name << "equal on all ranks, to the bit";
    }
    EXPECT_LT(Far(weight, whole.grad_weight), 1e-5) << name;
    EXPECT_LT(Far(bias, whole.grad_bias), 1e-6) << name;
  }
}

// Where sums of squares less the square of the sum would keep no digit.
TEST(SyncBatchNorm, AMeanFarFromZeroCostsNoPrecision) {
  const at::Tensor x = Samples(6, 1000), grad_y = OutputGradient(x);
  const Result whole = Whole(x, grad_y);
  const std::vector<Result> ours = Synchronized(x, grad_y, {4, 2});
  EXPECT_LT(Far(Joined(ours, &Result::y), whole.y), 1e-3);
  EXPECT_LT(Far(ours[0].running_var, whole.running_var), 1e-4);
}

// bf16 rounds to 8 bits; statistics are fp32.
TEST(SyncBatchNorm, TakesStatisticsOfNarrowTypesInFp32) {
  const at::Tensor x = Samples(6, 2).to(at::kBFloat16), grad_y = OutputGradient(x);
  const Result whole = Whole(x.to(at::kFloat), grad_y.to(at::kFloat));
  const std::vector<Result> ours = Synchronized(x, grad_y, {4, 2});
  EXPECT_EQ(ours[0].y.scalar_type(), at::kBFloat16);
  EXPECT_LT(Far(Joined(ours, &Result::y).to(at::kFloat), whole.y), 5e-3);
  EXPECT_LT(Far(Joined(ours, &Result::grad_x).to(at::kFloat), whole.grad_x), 1e-2);
  EXPECT_LT(Far(ours[0].running_mean, whole.running_mean), 1e-6);
  EXPECT_LT(Far(ours[0].running_var, whole.running_var), 1e-6);
}

class Broken final : public SampleRanks {
 public:
  at::Tensor Gather(const at::Tensor& values) override { return values.view({1, -1}); }
  void Sum(const at::Tensor&) override { throw std::runtime_error("rank 1 is gone"); }
};

TEST(SyncBatchNorm, AFailureComesThroughAutograd) {
  const at::Tensor x = Samples(2, 0);
  Broken broken;
  try {
    TrainOn(x, OutputGradient(x),
            [&](const auto& in, const auto& weight, const auto& bias, const auto& mean, const auto& variance) {
              return SyncBatchNorm(in, weight, bias, {mean, variance, kMomentum, kEpsilon}, broken);
            });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "rank 1 is gone");
  }
}

TEST(SyncBatchNorm, KeepsNoGraphWhereNoneIsNeeded) {
  const at::Tensor x = Samples(2, 0), mean = at::zeros({kChannels}), variance = at::ones({kChannels});
  Broken broken;
  const c10::AutoGradMode off(false);
  EXPECT_FALSE(SyncBatchNorm(x, Weight(), Bias(), {mean, variance, kMomentum, kEpsilon}, broken).requires_grad());
}

}  // namespace
}  // namespace muster::units
