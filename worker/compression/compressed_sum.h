// Sums of gradients over the ranks of a group that travel compressed (Communication.compression). What a rank does not
// send in a step it keeps, and adds to the next step's gradients (error feedback: Stich et al. 2018, "Sparsified SGD
// with Memory"; Karimireddy et al. 2019).
//
//   auto sum = MakeCompressedSum(options);
//   Works works = sum->Begin(gradients, step);     // wait for them, then, where strategies::HasSecondExchange:
//   works = sum->Continue();                       // wait for them, then:
//   sum->End();                                    // `gradients` are the sum, the same bits on every rank
//
// Every rank of the group makes the same calls in the same order. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/spec.pb.h"
#include "strategies/compression.h"
#include "worker/collectives/group.h"

namespace muster::compression {

using Works = std::vector<std::unique_ptr<collectives::Work>>;

// What a sum keeps from step to step, for checkpoints. Zeros before the first step; what is loaded is copied into it.
struct StateTensor {
  std::string name;
  at::Tensor values;  // fp32: [elements] of the range, or the shape of a factor of one of its parts
  int part = -1;      // that part
};

class CompressedSum {
 public:
  virtual ~CompressedSum() = default;

  // Compresses `gradients`, fp32 [elements], contiguous, with what earlier steps have left, and issues what travels
  // first. They are the sum's until End. `step`: steps before this one.
  virtual Works Begin(const at::Tensor& gradients, uint64_t step) = 0;
  // Issues what travels next. Empty: nothing does.
  virtual Works Continue() { return {}; }
  // The gradients become the sum over ranks of what was sent, added in the order of ranks. If that is not finite, since
  // some rank's gradients were not, every rank keeps what it had before Begin (top_k on a CPU: but for a rounding, and
  // nothing of an element that was not finite).
  virtual void End() = 0;
  // The same tensors on each call.
  virtual std::vector<StateTensor> State() = 0;
};

struct Options {
  Compression compression;  // resolved; with a kind that compresses
  double momentum = 0;      // with momentum_correction: the optimizer's
  bool nesterov = false;
  uint64_t seed = 0;
  int64_t elements = 0;
  std::vector<strategies::GradientPart> parts = {};  // of the range: whole rows of tensors
  collectives::Group* group = nullptr;               // outlives the sum
  at::Device device = at::kCPU;
  bool portable = false;  // by LibTorch's operators, as on a GPU
};
std::unique_ptr<CompressedSum> MakeCompressedSum(const Options& options);

// One for each kind.
std::unique_ptr<CompressedSum> MakeTopKSum(const Options& options);
std::unique_ptr<CompressedSum> MakePowerSgdSum(const Options& options);
std::unique_ptr<CompressedSum> MakeInt8Sum(const Options& options);

}  // namespace muster::compression
