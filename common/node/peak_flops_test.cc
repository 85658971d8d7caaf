#include "common/node/peak_flops.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(PeakFlops, OfKnownGpus) {
  Precision bf16, fp32, tf32;
  bf16.set_compute(DTYPE_BF16);
  fp32.set_compute(DTYPE_FP32);
  tf32.set_tf32(true);
  EXPECT_EQ(PeakFlops("NVIDIA H100 80GB HBM3", bf16), 989e12);
  EXPECT_EQ(PeakFlops("NVIDIA H100 PCIe", bf16), 756e12);
  EXPECT_EQ(PeakFlops("NVIDIA H200", tf32), 494e12);
  EXPECT_EQ(PeakFlops("NVIDIA A100-SXM4-40GB", fp32), 19.5e12);
  EXPECT_EQ(PeakFlops("NVIDIA GeForce RTX 4090", bf16), 165.2e12);
  for (const char* other :
       {"AMD EPYC 9V74", "NVIDIA RTX A1000", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU"}) {
    EXPECT_FALSE(PeakFlops(other, bf16).has_value()) << other;
  }
}

}  // namespace
}  // namespace muster
