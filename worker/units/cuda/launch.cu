#include "worker/units/cuda/launch.h"

#include <cuda_runtime.h>

#include "worker/units/cuda/adamw_program.h"
#include "worker/units/cuda/llama_programs.h"
#include "worker/units/cuda/row_programs.h"
#include "worker/units/cuda/simt_block.h"

namespace muster::units::programs {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

// A state of SimtBlock is a few 32-bit words.
template <typename S, typename F>
__device__ S EachWord(const S& value, const F& f) {
  constexpr int kWords = sizeof(S) / sizeof(unsigned);
  static_assert(sizeof(S) % sizeof(unsigned) == 0);
  unsigned words[kWords];
  __builtin_memcpy(words, &value, sizeof(S));
  for (int i = 0; i < kWords; ++i) words[i] = f(words[i]);
  S result;
  __builtin_memcpy(&result, words, sizeof(S));
  return result;
}

class Intrinsics {
 public:
  __device__ explicit Intrinsics(void* shared) : shared_(shared) {}
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ void Sync() const { __syncthreads(); }
  template <typename S>
  __device__ S ShuffleDown(const S& value, int lanes) const {
    return EachWord(value, [lanes](unsigned word) { return __shfl_down_sync(kAllLanes, word, lanes); });
  }
  template <typename S>
  __device__ S First(const S& value) const {
    return EachWord(value, [](unsigned word) { return __shfl_sync(kAllLanes, word, 0); });
  }
  template <typename S>
  __device__ S* Shared() const {
    static_assert(sizeof(S) <= sizeof(float4));
    return static_cast<S*>(shared_);
  }

 private:
  void* const shared_;
};

template <typename Program>
__global__ void __launch_bounds__(Program::kThreads) Kernel(const __grid_constant__ Program program) {
  __shared__ float4 states[Program::kThreads / kWarp];
  const Intrinsics intrinsics(states);
  const SimtBlock<Program::kThreads, Intrinsics> block(intrinsics);
  program(block, Place{static_cast<int64_t>(blockIdx.x), static_cast<int64_t>(blockIdx.y)});
}

}  // namespace

template <typename Program>
const char* Launch(const Program& program, void* stream) {
  const Grid grid = program.grid();
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y));
  Kernel<Program><<<blocks, Program::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(program);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

#define MUSTER_LAUNCH(...) template const char* Launch(const __VA_ARGS__&, void*)
#define MUSTER_LAUNCH_FOR(N)                                    \
  MUSTER_LAUNCH(Norm<float, N>);                                \
  MUSTER_LAUNCH(AddAndNorm<float, N>);                          \
  MUSTER_LAUNCH(NormAgain<float, N>);                           \
  MUSTER_LAUNCH(NormBackward<float, N>);                        \
  MUSTER_LAUNCH(AddGemm<float, N>);                             \
  MUSTER_LAUNCH(AddAndGelu<float, N>);                          \
  MUSTER_LAUNCH(CrossEntropy<float, N>);                        \
  MUSTER_LAUNCH(ColumnTiles<SumColumns<float, N>>);             \
  MUSTER_LAUNCH(ColumnTiles<programs::NarrowAndSum<float, N>>); \
  MUSTER_LAUNCH(ColumnTiles<GeluBackward<float, N>>);           \
  MUSTER_LAUNCH(ColumnTiles<NormVectors<float, N>>);            \
  MUSTER_LAUNCH(AdamWStep<N>)
#define MUSTER_LAUNCH_GATED_FOR(N)                     \
  MUSTER_LAUNCH(RmsNorm<float, N>);                    \
  MUSTER_LAUNCH(AddAndRmsNorm<float, N>);              \
  MUSTER_LAUNCH(RmsNormAgain<float, N>);               \
  MUSTER_LAUNCH(RmsNormBackward<float, N>);            \
  MUSTER_LAUNCH(HeadNorm<float, N>);                   \
  MUSTER_LAUNCH(HeadNormBackward<float, N>);           \
  MUSTER_LAUNCH(Rope<float, N>);                       \
  MUSTER_LAUNCH(Add<float, N>);                        \
  MUSTER_LAUNCH(SwiGlu<float, N>);                     \
  MUSTER_LAUNCH(SwiGluBackward<float, N>);             \
  MUSTER_LAUNCH(ColumnTiles<RmsNormVector<float, N>>); \
  MUSTER_LAUNCH(ColumnTiles<HeadNormVector<float, N>>)
MUSTER_LAUNCH_FOR(float);
MUSTER_LAUNCH_FOR(Bf16);
MUSTER_LAUNCH_FOR(Fp16);
MUSTER_LAUNCH_GATED_FOR(float);
MUSTER_LAUNCH_GATED_FOR(Bf16);
MUSTER_LAUNCH_GATED_FOR(Fp16);
MUSTER_LAUNCH(ColumnTotals<float, 1>);
MUSTER_LAUNCH(ColumnTotals<float, 2>);
MUSTER_LAUNCH(LossTotal<float>);
MUSTER_LAUNCH(DropoutFactors);

}  // namespace muster::units::programs
