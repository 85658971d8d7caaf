#include "worker/engine/norm.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace muster::engine {
namespace {

TEST(FlatNorm, IsRightAtEverySizeAroundItsRows) {
  std::minstd_rand random(5);
  for (const int64_t n : {int64_t{1}, int64_t{16}, int64_t{4095}, int64_t{4096}, int64_t{4097}, int64_t{50'000}}) {
    at::Tensor flat = at::empty({n}, at::kFloat);
    double square = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float x = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
      flat.mutable_data_ptr<float>()[i] = x;
      square += static_cast<double>(x) * x;
    }
    EXPECT_NEAR(FlatNorm(flat).item<double>(), std::sqrt(square), 3e-7 * std::sqrt(square)) << n;
  }
}

// LibTorch's own reduction is off by 3e-3 here, and by more the larger the model.
TEST(FlatNorm, DoesNotLoseTheTailOfALargeModel) {
  constexpr int64_t n = int64_t{1} << 24;
  const at::Tensor flat = at::empty({n}, at::kFloat).fill_(1.1e-3);
  EXPECT_NEAR(FlatNorm(flat).item<double>(), 1.1e-3 * 4096, 3e-6 * 1.1e-3 * 4096);
}

TEST(FlatNorm, ShowsWhatIsNotFinite) {
  at::Tensor flat = at::empty({10'000}, at::kFloat).fill_(1);
  flat.mutable_data_ptr<float>()[5'000] = std::nanf("");
  EXPECT_TRUE(std::isnan(FlatNorm(flat).item<double>()));
}

}  // namespace
}  // namespace muster::engine
