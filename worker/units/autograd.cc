#include "worker/units/autograd.h"

#include <c10/core/GradMode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

namespace muster::units {
namespace {

using Closure = std::function<std::vector<at::Tensor>(const at::Tensor&)>;

class ClosureNode final : public torch::autograd::Node {
 public:
  ClosureNode(torch::autograd::edge_list&& edges, Closure backward)
      : Node(std::move(edges)), backward_(std::move(backward)) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return backward_(gradients[0]);
  }
  void release_variables() override { backward_ = nullptr; }

 private:
  Closure backward_;
};

// LibTorch holds nodes by std::shared_ptr in 2.11, with a deleter of its own, and by c10::intrusive_ptr in 2.13.
template <typename N, typename Pointer = decltype(torch::autograd::Edge::function), typename... Arguments>
Pointer MakeNode(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(new N(std::forward<Arguments>(arguments)...), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace

std::vector<at::Tensor> Gradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                  const std::vector<at::Tensor>& inputs) {
  return torch::autograd::grad({output}, inputs, {output_gradient});
}

std::vector<at::Tensor> PossibleGradients(const at::Tensor& output, const at::Tensor& output_gradient,
                                          const std::vector<at::Tensor>& inputs) {
  return torch::autograd::grad({output}, inputs, {output_gradient}, /*retain_graph=*/false, /*create_graph=*/false,
                               /*allow_unused=*/true);
}

at::Tensor WithBackward(const at::Tensor& output, const std::vector<at::Tensor>& inputs, Closure backward) {
  const bool needed =
      std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& input) { return input.requires_grad(); });
  if (!c10::GradMode::is_enabled() || !needed) return output;
  torch::autograd::set_history(output,
                               MakeNode<ClosureNode>(torch::autograd::collect_next_edges(inputs), std::move(backward)));
  return output;
}

}  // namespace muster::units
