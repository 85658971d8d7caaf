#include "worker/compression/compressed_sum.h"

namespace muster::compression {
namespace {

class EmptySum final : public CompressedSum {
 public:
  Works Begin(const at::Tensor&, uint64_t) override { return {}; }
  void End() override {}
  std::vector<StateTensor> State() override { return {}; }
};

}  // namespace

std::unique_ptr<CompressedSum> MakeCompressedSum(const Options& options) {
  if (options.elements == 0) return std::make_unique<EmptySum>();
  if (options.compression.has_top_k()) return MakeTopKSum(options);
  if (options.compression.has_power_sgd()) return MakePowerSgdSum(options);
  return MakeInt8Sum(options);
}

}  // namespace muster::compression
