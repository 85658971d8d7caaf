// A residual network of one's own for small images, as a library for Muster (docs/custom_models.md).
#include <muster/model.h>

namespace {

// x + f(x)
class ResidualImpl : public torch::nn::Module {
 public:
  explicit ResidualImpl(int64_t channels)
      : first_(torch::nn::Conv2dOptions(channels, channels, 3).padding(1).bias(false)),
        norm_(channels),
        second_(torch::nn::Conv2dOptions(channels, channels, 3).padding(1)) {
    register_module("first", first_);
    register_module("norm", norm_);
    register_module("second", second_);
  }

  torch::Tensor forward(const torch::Tensor& x) { return x + second_(torch::relu(norm_(first_(x)))); }

 private:
  torch::nn::Conv2d first_;
  torch::nn::BatchNorm2d norm_;
  torch::nn::Conv2d second_;
};
TORCH_MODULE(Residual);

muster::Model MakeModel(const muster::Options& options) {
  const int64_t width = options.Integer("width", 8), blocks = options.Integer("blocks", 3);
  const int64_t image = options.Integer("image", 32), classes = options.Integer("classes", 10);
  torch::nn::Sequential layers;
  layers->push_back("stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 3).padding(1)));
  for (int64_t i = 0; i < blocks; ++i) layers->push_back("block" + std::to_string(i), Residual(width));
  layers->push_back("pool", torch::nn::AdaptiveAvgPool2d(torch::nn::AdaptiveAvgPool2dOptions(2)));
  layers->push_back("flatten", torch::nn::Flatten());
  layers->push_back("head", torch::nn::Linear(4 * width, classes));
  const muster::ImageClassification task{3, image, image, classes};
  return muster::Model(task, layers, muster::WrapPolicy::ByType<Residual>());
}

}  // namespace

MUSTER_MODEL(MakeModel)
