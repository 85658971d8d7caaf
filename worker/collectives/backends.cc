#include "worker/collectives/backends.h"

#include <torch/version.h>

#include "absl/strings/str_cat.h"

#ifdef MUSTER_CUDA
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif

namespace muster::collectives {
namespace {

#ifdef MUSTER_CUDA
// 13020 is 13.2: CUDART_VERSION in cuda_runtime_api.h.
std::string CudaVersion(int64_t number) { return absl::StrCat(number / 1000, ".", number % 1000 / 10); }

// 22809 is 2.28.9: NCCL_VERSION in nccl.h.
std::string NcclVersion(int number) {
  return absl::StrCat(number / 10'000, ".", number % 10'000 / 100, ".", number % 100);
}

absl::Status AddCuda(std::vector<BuiltBackend>& backends) {
  int runtime = 0, nccl = 0;
  if (const cudaError_t error = cudaRuntimeGetVersion(&runtime); error != cudaSuccess) {
    return absl::InternalError(absl::StrCat("libcudart: ", cudaGetErrorString(error)));
  }
  if (const ncclResult_t result = ncclGetVersion(&nccl); result != ncclSuccess) {
    return absl::InternalError(absl::StrCat("libnccl: ", ncclGetErrorString(result)));
  }
  try {
    // libtorch_cuda registers itself when it is loaded; without it LibTorch has no CUDA and this throws.
    at::detail::getCUDAHooks().versionCUDART();
  } catch (const c10::Error& error) {
    return absl::InternalError(absl::StrCat("libtorch_cuda is not loaded: ", error.what_without_backtrace()));
  }
  backends.push_back({"cuda", CudaVersion(runtime)});
  backends.push_back({"nccl", NcclVersion(nccl)});
  return absl::OkStatus();
}
#endif

}  // namespace

absl::StatusOr<std::vector<BuiltBackend>> Backends() {
  std::vector<BuiltBackend> backends = {
      {"cpu", absl::StrCat("LibTorch ", TORCH_VERSION)}, {"gloo", ""}, {"direct", ""}};
#ifdef MUSTER_CUDA
  if (absl::Status status = AddCuda(backends); !status.ok()) return status;
#endif
  return backends;
}

std::string Describe(const std::vector<BuiltBackend>& backends) {
  std::string text;
  for (const BuiltBackend& backend : backends) {
    absl::StrAppend(&text, backend.name, backend.version.empty() ? "" : " ", backend.version, "\n");
  }
  return text;
}

}  // namespace muster::collectives
