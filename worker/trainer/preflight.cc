#include "worker/trainer/preflight.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>

#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "worker/collectives/gloo.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/trainer/speed.h"
#ifdef MUSTER_CUDA
#include "worker/collectives/nccl.h"
#endif

namespace muster::trainer {
namespace {

constexpr int64_t kSide = 256, kSpeedWidth = 1024, kSummed = 1 << 16;
constexpr absl::Duration kPeerDeadline = absl::Seconds(30);

c10::Device DeviceOf(bool cuda, int index) {
  return cuda ? c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)) : c10::Device(at::kCPU);
}

// LibTorch reports what a device did wrong by exceptions.
absl::Status Guarded(const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::exception& e) {
    return absl::UnavailableError(e.what());
  }
}

// Sums of small integers are exact in every dtype and order: kSide * 2 * 3, in each element.
absl::Status Multiply(const c10::Device& device) {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  const at::Tensor product = at::mm(at::full({kSide, kSide}, 2, options), at::full({kSide, kSide}, 3, options));
  const int64_t wrong = product.ne(static_cast<double>(6 * kSide)).sum().item<int64_t>();
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(wrong, " of ", kSide * kSide, " elements of a GEMM are wrong: the device computes wrong results"));
}

PreflightFinding CheckDevice(std::string name, bool cuda, int index) {
  PreflightFinding finding;
  finding.name = std::move(name);
  finding.status = Guarded([&]() -> absl::Status {
    const c10::AutoGradMode off(false);
    const c10::Device device = DeviceOf(cuda, index);
    const c10::DeviceGuard guard(device);
    if (absl::Status status = Multiply(device); !status.ok()) return status;
    finding.flops_per_second = MeasureSpeed({.width = kSpeedWidth, .dtype = DTYPE_FP32, .cuda = cuda});
    return finding.flops_per_second > 0 ? absl::OkStatus() : absl::UnavailableError("its speed cannot be measured");
  });
  finding.result = absl::StrFormat("%.3g TFLOP/s in fp32", finding.flops_per_second / 1e12);
  return finding;
}

absl::Status Sum(collectives::Group& group, const c10::Device& device) {
  const at::Tensor values = at::full({kSummed}, group.rank() + 1, at::TensorOptions(at::kFloat).device(device));
  if (absl::Status status = group.AllReduce(values)->Wait(); !status.ok()) return status;
  const auto expected = static_cast<double>(group.size() * (group.size() + 1) / 2);
  const int64_t wrong = values.ne(expected).sum().item<int64_t>();
  if (absl::Status status = group.Health(); !status.ok()) return status;
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("rank ", group.rank(), " got a wrong sum in ", wrong, " of ", kSummed,
                                          " elements of an all-reduce"));
}

absl::StatusOr<std::unique_ptr<collectives::Group>> MakeGroup(const PreflightOptions& options, int rank, int size,
                                                              collectives::KeyValue& meeting) {
#ifdef MUSTER_CUDA
  if (options.cuda) {
    return collectives::MakeNccl({.rank = rank,
                                  .size = size,
                                  .name = "preflight",
                                  .host = options.host,
                                  .device = rank,
                                  .timeout = kPeerDeadline,
                                  .join_timeout = kPeerDeadline},
                                 meeting);
  }
#endif
  return collectives::MakeGloo({.rank = rank,
                                .size = size,
                                .name = "preflight",
                                .host = options.host,
                                .timeout = kPeerDeadline,
                                .join_timeout = kPeerDeadline,
                                .direct = false},
                               meeting);
}

}  // namespace

absl::Status CheckCollective(int size,
                             const std::function<absl::StatusOr<std::unique_ptr<collectives::Group>>(int rank)>& make,
                             bool cuda) {
  std::vector<absl::Status> statuses(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      statuses[static_cast<size_t>(rank)] = Guarded([&]() -> absl::Status {
        const c10::AutoGradMode off(false);
        const c10::Device device = DeviceOf(cuda, rank);
        const c10::DeviceGuard guard(device);
        const absl::StatusOr<std::unique_ptr<collectives::Group>> group = make(rank);
        return group.ok() ? Sum(**group, device) : group.status();
      });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (absl::Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  return absl::OkStatus();
}

void RunPreflight(const PreflightOptions& options, const std::function<void(const std::string& name)>& begun,
                  const std::function<void(const PreflightFinding&)>& found) {
  bool all_answer = true;
  const size_t devices = options.cuda ? options.slots.size() : 1;
  for (size_t i = 0; i < devices; ++i) {
    const std::string name = options.cuda ? absl::StrCat("device ", options.slots[i]) : "cpu";
    begun(name);
    const PreflightFinding finding = CheckDevice(name, options.cuda, static_cast<int>(i));
    all_answer &= finding.status.ok();
    found(finding);
  }
  const int size = options.cuda ? static_cast<int>(devices) : 2;
  if (!all_answer || size < 2) return;
  begun("collective");
  collectives::MemoryKeyValue meeting;
  PreflightFinding finding;
  finding.name = "collective";
  finding.status = CheckCollective(
      size, [&](int rank) { return MakeGroup(options, rank, size, meeting); }, options.cuda);
  finding.result = absl::StrCat("all-reduce over ", size, options.cuda ? " devices by NCCL" : " threads by Gloo",
                                " at ", options.host);
  found(finding);
}

std::string BegunLine(const std::string& name) { return absl::StrCat("begin\t", name, "\n"); }

std::string FoundLine(const PreflightFinding& finding) {
  if (finding.status.ok()) {
    return absl::StrCat("pass\t", finding.name, "\t", finding.result, "\t", finding.flops_per_second, "\n");
  }
  const std::string problem = absl::StrReplaceAll(finding.status.message(), {{"\n", " "}, {"\t", " "}, {"\r", " "}});
  return absl::StrCat("fail\t", finding.name, "\t", problem, "\n");
}

}  // namespace muster::trainer
