// NVIDIA's GPUs by NVML, which comes with the driver.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace muster::agent {

struct Gpu {
  std::string uuid;   // "GPU-..."
  std::string model;  // "NVIDIA H200"
  uint64_t memory_bytes = 0;
};

struct GpuUse {
  std::string uuid;
  double busy = 0;  // share of NVML's last sample period (a sixth of a second to a second) in which a kernel ran
  uint64_t used_memory_bytes = 0;
};

// Calls may block for seconds when a GPU is broken. Not thread-safe.
class Gpus {
 public:
  // Without the library, or a GPU, both lists are empty.
  explicit Gpus(const std::string& library = "libnvidia-ml.so.1");
  ~Gpus();

  // GPUs that do not answer are left out.
  std::vector<Gpu> List() const;
  std::vector<GpuUse> Use() const;

 private:
  class Nvml;
  const std::unique_ptr<Nvml> nvml_;
};

}  // namespace muster::agent
