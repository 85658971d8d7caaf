#include "strategies/hardware.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "strategies/schedule/mesh.h"

namespace muster::strategies {
namespace {

// Ranks on CPUs: what differs is how they compute bf16.
Hardware TwoCores(absl::string_view name, absl::string_view of, double bf16_flops, absl::string_view bf16) {
  return {.name = std::string(name),
          .assumptions = absl::StrCat("two cores of ", of,
                                      ", one thread a rank, as bench/ranks.py and bench/single_rank.py measured: "
                                      "90 GFLOP/s in GEMMs of fp32, ",
                                      bf16,
                                      ", 10 GB/s of memory beside them, Gloo 1.4 GB/s and 100 us a hop, and what "
                                      "moves bytes does not compute; 10G Ethernet between nodes, 0.6 GB/s a rank"),
          .ranks_per_node = 2,
          .fp32_flops = 90e9,
          .bf16_flops = bf16_flops,
          .at_full_speed = 2,
          .memory_bytes_per_second = 10e9,
          .host_bytes_per_second = 10e9,
          .host_memory_bytes_per_second = 10e9,
          .host_bf16_flops = bf16_flops,
          .op_seconds = 20e-6,
          .inside = {1.4e9, 100e-6, 100e-6},
          .between = {0.6e9, 150e-6, 150e-6},
          .sums_by_rings = true,
          .sharing = Sharing::kProcessor};
}

// The built-in ones, with their sources.
const std::vector<Hardware>& KnownHardware() {
  // Reached rates of GEMMs: llm.c trains GPT-2 124M at 468,000 and 1558M at 46,800 tokens/s per H100 in bf16, which
  // are 373 and 459 TFLOP/s (38 and 46% of 989). Others are taken to reach the same 45% of their dense bf16 and TF32
  // rates (data sheets), 75% of their fp32 rate without tensor cores, 80% of their memory's and of their links' rates.
  // Host memory is that of two sockets (eight channels of DDR5-4800, or of DDR4-3200 beside PCIe 4), divided among
  // eight GPUs, and PCIe 16 lanes each, at 80% of their rates. Its GEMMs in bf16 are those of a dozen cores, each as
  // fast as TwoCores: an assumption, not measured.
  // NCCL's latency of a sum grows with the logarithm of the ranks (trees): about 20 us for eight GPUs of a node. That
  // of a gather or a reduce-scatter grows with their number: 1.9 us for each rank over NVLink, 2.5 over PCIe and 4.0
  // for each node over InfiniBand (hwLat in its src/graph/tuning.cc, Ring/LL128; Ethernet's is an assumption). A
  // collective of uneven shares is a group of as many NCCL ops; 3 us for each is an assumption, not measured.
  static const auto* const known = new std::vector<Hardware>{
      {.name = "h100",
       .device = DEVICE_CUDA,
       .assumptions =
           "8 x H100 SXM a node: 445 TFLOP/s bf16 (45% of 989), 223 TFLOP/s TF32, 50 TFLOP/s fp32, 2.7 TB/s HBM3, "
           "NVLink 4 360 GB/s and 6 us a hop (1.9 of a ring), one 400G InfiniBand port a GPU 40 GB/s and 10 us (4), "
           "PCIe 5 50 GB/s "
           "to the host, 60 GB/s of its memory and 1 TFLOP/s of its cores a GPU",
       .ranks_per_node = 8,
       .fp32_flops = 50e12,
       .bf16_flops = 445e12,
       .tf32_flops = 223e12,
       .memory_bytes_per_second = 2.7e12,
       .host_bytes_per_second = 50e9,
       .host_memory_bytes_per_second = 60e9,
       .host_bf16_flops = 1e12,
       .op_seconds = 30e-6,
       .inside = {360e9, 6e-6, 1.9e-6},
       .between = {40e9, 10e-6, 4e-6},
       .share_seconds = 3e-6},
      {.name = "h200",
       .device = DEVICE_CUDA,
       .assumptions =
           "8 x H200 SXM a node: 445 TFLOP/s bf16 (45% of 989), 223 TFLOP/s TF32, 50 TFLOP/s fp32, 3.8 TB/s HBM3e, "
           "NVLink 4 360 GB/s and 6 us a hop (1.9 of a ring), one 400G InfiniBand port a GPU 40 GB/s and 10 us (4), "
           "PCIe 5 50 GB/s "
           "to the host, 60 GB/s of its memory and 1 TFLOP/s of its cores a GPU",
       .ranks_per_node = 8,
       .fp32_flops = 50e12,
       .bf16_flops = 445e12,
       .tf32_flops = 223e12,
       .memory_bytes_per_second = 3.8e12,
       .host_bytes_per_second = 50e9,
       .host_memory_bytes_per_second = 60e9,
       .host_bf16_flops = 1e12,
       .op_seconds = 30e-6,
       .inside = {360e9, 6e-6, 1.9e-6},
       .between = {40e9, 10e-6, 4e-6},
       .share_seconds = 3e-6},
      {.name = "a100",
       .device = DEVICE_CUDA,
       .assumptions =
           "8 x A100 SXM a node: 140 TFLOP/s bf16 (45% of 312), 70 TFLOP/s TF32, 14.6 TFLOP/s fp32, 1.6 TB/s HBM2e, "
           "NVLink 3 240 GB/s and 6 us a hop (1.9 of a ring), one 200G InfiniBand port a GPU 20 GB/s and 10 us (4), "
           "PCIe 4 25 GB/s "
           "to the host, 40 GB/s of its memory and 1 TFLOP/s of its cores a GPU",
       .ranks_per_node = 8,
       .fp32_flops = 14.6e12,
       .bf16_flops = 140e12,
       .tf32_flops = 70e12,
       .memory_bytes_per_second = 1.6e12,
       .host_bytes_per_second = 25e9,
       .host_memory_bytes_per_second = 40e9,
       .host_bf16_flops = 1e12,
       .op_seconds = 30e-6,
       .inside = {240e9, 6e-6, 1.9e-6},
       .between = {20e9, 10e-6, 4e-6},
       .share_seconds = 3e-6},
      TwoCores("cpu", "a server", 85e9, "85 in bf16, which go through fp32 panels"),
      TwoCores("cpu-bf16", "a server with AVX-512 BF16", 150e9, "150 in bf16"),
      {.name = "rtx4090",
       .device = DEVICE_CUDA,
       .assumptions = "8 x RTX 4090 a node: 74 TFLOP/s bf16 (45% of 165), 50 TFLOP/s fp32, 0.8 TB/s GDDR6X, PCIe 4 "
                      "through host memory 10 GB/s and 20 us a hop (2.5 of a ring), 100G Ethernet a node 1.25 GB/s a "
                      "GPU and 30 us (12), "
                      "PCIe 4 25 GB/s to the host, 40 GB/s of its memory and 1 TFLOP/s of its cores a GPU",
       .ranks_per_node = 8,
       .fp32_flops = 50e12,
       .bf16_flops = 74e12,
       .memory_bytes_per_second = 0.8e12,
       .host_bytes_per_second = 25e9,
       .host_memory_bytes_per_second = 40e9,
       .host_bf16_flops = 1e12,
       .op_seconds = 30e-6,
       .inside = {10e9, 20e-6, 2.5e-6},
       .between = {1.25e9, 30e-6, 12e-6},
       .share_seconds = 3e-6},
  };
  return *known;
}

}  // namespace

absl::StatusOr<Hardware> FindHardware(absl::string_view name) {
  std::vector<std::string> names;
  for (const Hardware& hardware : KnownHardware()) {
    if (hardware.name == absl::AsciiStrToLower(name)) return hardware;
    names.push_back(hardware.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("hardware: \"", name, "\" is unknown; known: ", absl::StrJoin(names, ", ")));
}

std::vector<RankPlace> FullNodes(uint32_t world, uint32_t ranks_per_node, uint64_t memory_bytes) {
  std::vector<RankPlace> places(world);
  for (uint32_t rank = 0; rank < world; ++rank)
    places[rank] = {NodePlaceOf(rank, std::max(1u, ranks_per_node)).node, memory_bytes};
  return places;
}

}  // namespace muster::strategies
