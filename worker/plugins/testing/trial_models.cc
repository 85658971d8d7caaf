// Models for tests, one for each value of the option `kind`: some that train, and some that are wrong in one way.
#include <muster/model.h>

#include <atomic>
#include <string>
#include <vector>

namespace {

constexpr int64_t kWidth = 39, kVocabulary = 61, kContext = 16;  // nothing divides them

// x + W2 gelu(W1 mean of what came before); W1 and its bias may be another mixer's.
class MixerImpl : public torch::nn::Module {
 public:
  explicit MixerImpl(const MixerImpl* owner = nullptr)
      : norm_(torch::nn::LayerNormOptions({kWidth})),
        in_(owner == nullptr ? torch::nn::Linear(kWidth, 75) : owner->in_),
        out_(75, kWidth),
        causal_([] {
          return torch::ones({kContext, kContext}).tril() / torch::arange(1, kContext + 1).unsqueeze(1);
        }) {
    register_module("norm", norm_);
    register_module("in", in_);
    register_module("out", out_);
    gain_ = register_parameter("gain", torch::ones({kWidth}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t tokens = x.size(1);
    const torch::Tensor mean = causal_.On(x.device()).narrow(0, 0, tokens).narrow(1, 0, tokens).to(x.dtype());
    return x + gain_ * out_(torch::gelu(in_(mean.matmul(norm_(x)))));
  }

 private:
  torch::nn::LayerNorm norm_;
  torch::nn::Linear in_, out_;
  muster::Constant causal_;
  torch::Tensor gain_;
};
TORCH_MODULE(Mixer);

// The head of a language model; its matrix may be the embedding's.
class TiedHeadImpl : public torch::nn::Module {
 public:
  explicit TiedHeadImpl(torch::Tensor table) : norm_(torch::nn::LayerNormOptions({kWidth})) {
    register_module("norm", norm_);
    table_ = register_parameter("table", std::move(table));
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm_(x).matmul(table_.t()); }

 private:
  torch::nn::LayerNorm norm_;
  torch::Tensor table_;
};
TORCH_MODULE(TiedHead);

muster::Model Language(bool tied) {
  torch::nn::Embedding embedding(kVocabulary, kWidth);
  muster::Model model(muster::LanguageModel{.vocabulary = kVocabulary, .context = kContext});
  model.AddUnit("embedding", embedding);
  for (int i = 0; i < 3; ++i) {
    const std::string name = "mixer" + std::to_string(i);
    model.AddUnit(name, Mixer()).Initialize(name + ".gain", muster::Ones());
  }
  model.AddUnit("head", TiedHead(tied ? embedding->weight : torch::randn({kVocabulary, kWidth})));
  return model;
}

// Each of the last two mixers has the W1 of the one two before it, and the head the embedding's matrix.
muster::Model SharedMixers() {
  torch::nn::Embedding embedding(kVocabulary, kWidth);
  muster::Model model(muster::LanguageModel{.vocabulary = kVocabulary, .context = kContext});
  model.AddUnit("embedding", embedding);
  std::vector<Mixer> mixers;
  for (size_t i = 0; i < 4; ++i) {
    mixers.push_back(Mixer(i < 2 ? nullptr : mixers[i - 2].get()));
    const std::string name = "mixer" + std::to_string(i);
    model.AddUnit(name, mixers.back()).Initialize(name + ".gain", muster::Ones());
  }
  model.AddUnit("head", TiedHead(embedding->weight));
  return model;
}

// Whose residual stream is in `type` whatever the parameters are in.
muster::Model Residuals(torch::Dtype type) {
  torch::nn::Embedding embedding(kVocabulary, kWidth);
  Mixer mixer;
  TiedHead head(torch::randn({kVocabulary, kWidth}));
  muster::Model model(muster::LanguageModel{.vocabulary = kVocabulary, .context = kContext});
  model.AddUnit("embedding", embedding.ptr(), [=](const torch::Tensor& x) mutable { return embedding(x).to(type); });
  model.AddUnit("mixer", mixer.ptr(), [=](const torch::Tensor& x) mutable {
    return x + mixer(x.to(mixer->parameters()[0].dtype())).to(type);
  });
  model.Initialize("mixer.gain", muster::Ones());
  model.AddUnit("head", head.ptr(),
                [=](const torch::Tensor& x) mutable { return head(x.to(head->parameters()[0].dtype())); });
  return model;
}

constexpr muster::ImageClassification kImages{.channels = 3, .height = 8, .width = 8, .classes = 7};

torch::nn::Sequential Images() {
  return torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1).bias(false)),
                               torch::nn::BatchNorm2d(6), torch::nn::ReLU(), torch::nn::Conv2d(6, 5, 3),
                               torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(5 * 6 * 6, 11),
                               torch::nn::Tanh(), torch::nn::Linear(11, 7));
}

muster::Model Cut(const torch::nn::Sequential& layers,
                  const muster::WrapPolicy& policy = muster::WrapPolicy::EachModule()) {
  return {kImages, layers, policy};
}

// A module that computes `forward`, with a matrix of 192 x 7.
template <typename F>
muster::Model By(const F& forward) {
  torch::nn::Linear linear(3 * 8 * 8, 7);
  muster::Model model(kImages);
  model.AddUnit("all", linear.ptr(),
                [linear, forward](const torch::Tensor& x) mutable { return forward(linear, x.flatten(1)); });
  return model;
}

// What a user and three items have in common: a rating, and whether the user clicked.
constexpr int64_t kUser = 8, kItems = 53, kInner = 11;

class TowersImpl : public torch::nn::Module {
 public:
  TowersImpl() : user_(kUser, kInner), items_(kItems, kInner) {
    register_module("user", user_);
    register_module("items", items_);
  }
  torch::Tensor forward(const torch::Tensor& user, const torch::Tensor& items) {
    return torch::cat({torch::relu(user_(user)), items_(items).mean(1)}, 1);
  }

 private:
  torch::nn::Linear user_;
  torch::nn::Embedding items_;
};
TORCH_MODULE(Towers);

muster::Tensors Ratings() {
  return {.inputs = {muster::Floats("user", {kUser}), muster::Integers("items", kItems, {3})},
          .targets = {muster::Floats("rating"), muster::Floats("clicked")}};
}

torch::Tensor RatingLoss(const torch::Tensor& y, const muster::Batch& batch) {
  return torch::mse_loss(y.select(1, 0), batch["rating"], torch::Reduction::Sum) +
         torch::binary_cross_entropy_with_logits(y.select(1, 1), batch["clicked"], {}, {}, torch::Reduction::Sum);
}

// Two inputs, two targets, two metrics.
muster::Model TwoTowers(const muster::Tensors& task = Ratings()) {
  torch::nn::Sequential mixer(torch::nn::Linear(2 * kInner, 13), torch::nn::Tanh());
  return muster::Model(task)
      .AddUnit("towers", Towers())
      .AddUnit("mixer", mixer.ptr(), [mixer](const torch::Tensor& x) mutable { return mixer->forward(x); })
      .AddUnit("head", torch::nn::Linear(13, 2));
}

muster::Model Rated() {
  muster::Model model = TwoTowers();
  model.Loss(RatingLoss)
      .Metric("mean_absolute_error",
              [](const torch::Tensor& y, const muster::Batch& batch) {
                return (y.select(1, 0) - batch["rating"]).abs().sum();
              })
      .Metric("accuracy", [](const torch::Tensor& y, const muster::Batch& batch) {
        return y.select(1, 1).gt(0).eq(batch["clicked"].gt(0.5)).sum();
      });
  return model;
}

// One tensor, which is input and target, as autoencoders have it; each of its elements is a target.
muster::Model Autoencoder() {
  const muster::BatchTensor signal = muster::Floats("signal", {2, 7});
  muster::Model model(muster::Tensors{.inputs = {signal}, .targets = {signal}, .targets_per_sample = 14});
  torch::nn::Linear encoder(14, 5), decoder(5, 14);
  model.AddUnit("encoder", encoder.ptr(),
                [encoder](const muster::Batch& batch) mutable { return encoder(batch["signal"].flatten(1)); });
  model.AddUnit("decoder", decoder);
  return model.Loss([](const torch::Tensor& y, const muster::Batch& batch) {
    return torch::mse_loss(y, batch["signal"].flatten(1), torch::Reduction::Sum);
  });
}

muster::Model WrongTensors(const std::string& kind) {
  using torch::Tensor;
  if (kind == "tensors without a loss") return TwoTowers();
  if (kind == "tensors with a mean") {
    return TwoTowers().Loss(
        [](const Tensor& y, const muster::Batch& b) { return torch::mse_loss(y.select(1, 0), b["rating"]); });
  }
  if (kind == "tensors with a mean metric") {
    return Rated().Metric("mean", [](const Tensor& y, const muster::Batch&) { return y.square().mean(); });
  }
  if (kind == "tensors with a root metric") {
    return Rated().Metric("root", [](const Tensor& y, const muster::Batch&) { return y.square().sum().sqrt(); });
  }
  if (kind == "tensors with a vector of losses") {
    return TwoTowers().Loss([](const Tensor& y, const muster::Batch&) { return y.square().sum(1); });
  }
  if (kind == "tensors of another name") {
    return TwoTowers().Loss([](const Tensor& y, const muster::Batch& batch) { return (y - batch["stars"]).sum(); });
  }
  if (kind == "tensors with a metric called loss") return Rated().Metric("loss", RatingLoss);
  if (kind == "tensors with a metric called rank") return Rated().Metric("rank", RatingLoss);
  if (kind == "tensors twice") {
    return TwoTowers({.inputs = {muster::Floats("user", {8}), muster::Floats("user", {8})}});
  }
  if (kind == "tensors that differ") {
    return TwoTowers({.inputs = {muster::Floats("user", {8})}, .targets = {muster::Floats("user", {9})}});
  }
  if (kind == "tensors without inputs") return TwoTowers({.targets = Ratings().targets}).Loss(RatingLoss);
  if (kind == "tensors without a bound") {
    muster::Tensors task = Ratings();
    task.inputs[1].bound = -1;
    return TwoTowers(task).Loss(RatingLoss);
  }
  if (kind == "integers without a bound") {
    return TwoTowers({.inputs = {muster::Floats("user", {kUser}), muster::Integers("items", 0, {3})}});
  }
  if (kind == "tensors with too many inputs") {
    muster::Tensors task = Ratings();
    task.inputs.push_back(muster::Floats("more"));
    return TwoTowers(task).Loss(RatingLoss);
  }
  if (kind == "images with metrics") return Cut(Images()).Metric("zero", RatingLoss);
  throw std::invalid_argument("there is no kind " + kind);
}

muster::Model Wrong(const std::string& kind) {
  using torch::Tensor;
  using torch::nn::Linear;
  using torch::nn::Sequential;
  if (kind == "dropout") return Cut(Sequential(torch::nn::Flatten(), torch::nn::Dropout(0.1), Linear(192, 7)));
  if (kind == "functional dropout") {
    return By([](Linear& l, const Tensor& x) { return l(torch::dropout(x, 0.5, l->is_training())); });
  }
  if (kind == "cumulative norm") {
    return Cut(Sequential(torch::nn::BatchNorm2d(torch::nn::BatchNorm2dOptions(3).momentum(std::nullopt)),
                          torch::nn::Flatten(), Linear(192, 7)));
  }
  if (kind == "double") {
    Linear linear(192, 7);
    linear->to(torch::kDouble);
    return Cut(Sequential(torch::nn::Flatten(), linear));
  }
  if (kind == "mask") {
    Linear linear(192, 7);
    linear->register_buffer("mask", torch::ones({7, 7}).tril());
    return Cut(Sequential(torch::nn::Flatten(), linear));
  }
  if (kind == "constructed constant") {
    const Tensor scale = torch::ones({7});
    return By([scale](Linear& l, const Tensor& x) { return l(x) * scale; });
  }
  if (kind == "unused parameter") return By([](Linear& l, const Tensor& x) { return x.matmul(l->weight.t()); });
  if (kind == "wrong classes") return Cut(Sequential(torch::nn::Flatten(), Linear(192, 9)));
  if (kind == "changes the samples") {
    return Cut(Sequential(torch::nn::Flatten(), Linear(192, 192),
                          torch::nn::Unflatten(torch::nn::UnflattenOptions(0, {1, -1})), Linear(192, 7)));
  }
  if (kind == "unstable") {
    static std::atomic<int> calls = 0;
    return By([](Linear& l, const Tensor& x) { return l(x) * ++calls; });
  }
  if (kind == "frozen") {
    Linear linear(192, 7);
    linear->bias.set_requires_grad(false);
    return Cut(Sequential(torch::nn::Flatten(), linear));
  }
  if (kind == "no default") {
    Linear linear(192, 7);
    linear->register_parameter("scale", torch::ones({7}));
    return Cut(Sequential(torch::nn::Flatten(), linear));
  }
  if (kind == "misnamed initialize") return Cut(Images()).Initialize("0.wait", muster::Ones());
  if (kind == "no units") return muster::Model(kImages);
  if (kind == "one class") return muster::Model({3, 8, 8, 1}, Images(), muster::WrapPolicy::EachModule());
  return WrongTensors(kind);
}

muster::Model MakeModel(const muster::Options& options) {
  const std::string kind = options.Text("kind", "images");
  if (kind == "language") return Language(/*tied=*/false);
  if (kind == "tied language") return Language(/*tied=*/true);
  if (kind == "shared mixers") return SharedMixers();
  if (kind == "wide residuals") return Residuals(torch::kFloat);
  if (kind == "double residuals") return Residuals(torch::kDouble);
  if (kind == "images") {
    return Cut(Images(), muster::WrapPolicy::MinParameters(options.Integer("min_parameters", 1)));
  }
  if (kind == "images by type") return Cut(Images(), muster::WrapPolicy::ByType<torch::nn::Linear>());
  if (kind == "images with a loss") {
    return Cut(Images()).Loss([](const torch::Tensor& y, const torch::Tensor& targets, double smoothing) {
      return torch::nn::functional::cross_entropy(
          y, targets,
          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum).label_smoothing(smoothing));
    });
  }
  if (kind == "two towers") return Rated();
  if (kind == "autoencoder") return Autoencoder();
  return Wrong(kind);
}

}  // namespace

MUSTER_MODEL(MakeModel)
