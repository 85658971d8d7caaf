// Rates items for users: two inputs, and a loss and a metric of its own (docs/custom_models.md).
#include <muster/model.h>

namespace {

class TowersImpl : public torch::nn::Module {
 public:
  TowersImpl(int64_t items, int64_t width) : user_(8, width), item_(items, width) {
    register_module("user", user_);
    register_module("item", item_);
  }
  torch::Tensor forward(const torch::Tensor& user, const torch::Tensor& item) {
    return torch::cat({torch::relu(user_(user)), item_(item)}, 1);
  }

 private:
  torch::nn::Linear user_;
  torch::nn::Embedding item_;
};
TORCH_MODULE(Towers);

muster::Model MakeModel(const muster::Options& options) {
  const int64_t items = options.Integer("items", 50), width = options.Integer("width", 16);
  muster::Model model(muster::Tensors{.inputs = {muster::Floats("user", {8}), muster::Integers("item", items)},
                                      .targets = {muster::Floats("rating")}});
  model.AddUnit("towers", Towers(items, width));
  model.AddUnit("score", torch::nn::Linear(2 * width, 1));
  model.Loss([](const torch::Tensor& score, const muster::Batch& batch) {
    return torch::mse_loss(score.squeeze(1), batch["rating"], torch::Reduction::Sum);
  });
  model.Metric("mean_absolute_error", [](const torch::Tensor& score, const muster::Batch& batch) {
    return (score.squeeze(1) - batch["rating"]).abs().sum();
  });
  return model;
}

}  // namespace

MUSTER_MODEL(MakeModel)
