#include "worker/exec/scalars.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "worker/exec/report_line.h"

namespace muster::exec {
namespace {

constexpr int kFloat = 1, kDouble = 2;  // tensorflow/core/framework/types.proto

struct Known {
  const char* name;
  std::vector<absl::string_view> tags;  // in lower case, words separated by _
};

const std::vector<Known>& KnownNames() {
  static const auto& known = *new std::vector<Known>{
      {"loss", {"loss", "train_loss", "loss_train", "training_loss", "train_loss_step"}},
      {"validation_loss",
       {"val_loss", "loss_val", "valid_loss", "loss_valid", "validation_loss", "loss_validation", "eval_loss",
        "loss_eval"}},
      {"learning_rate", {"lr", "learning_rate", "train_lr", "train_learning_rate"}},
      {"gradient_norm", {"grad_norm", "gradient_norm", "train_grad_norm", "train_gradient_norm"}},
  };
  return known;
}

template <typename T>
std::optional<double> OnlyNumber(const std::string& bytes) {
  T value;
  if (bytes.size() != sizeof value) return std::nullopt;
  std::memcpy(&value, bytes.data(), sizeof value);  // x86-64 is little-endian
  return value;
}

std::optional<double> NumberOf(const TensorBoardEvent::Value& value) {
  if (value.has_simple_value()) return value.simple_value();
  if (!value.has_tensor() || value.metadata().plugin_data().plugin_name() != "scalars") return std::nullopt;
  const TensorBoardEvent::Tensor& tensor = value.tensor();
  if (tensor.dtype() == kFloat) {
    if (tensor.float_val_size() == 1) return tensor.float_val(0);
    return OnlyNumber<float>(tensor.tensor_content());
  }
  if (tensor.dtype() != kDouble) return std::nullopt;
  if (tensor.double_val_size() == 1) return tensor.double_val(0);
  return OnlyNumber<double>(tensor.tensor_content());
}

}  // namespace

std::string MetricNameOf(absl::string_view tag) {
  std::string words;
  for (const char c : tag) words += absl::ascii_isalnum(c) ? absl::ascii_tolower(c) : '_';
  for (const Known& known : KnownNames()) {
    if (std::find(known.tags.begin(), known.tags.end(), words) != known.tags.end()) return known.name;
  }
  std::string name;
  for (const char c : tag) name += IsMetricCharacter(c) ? c : '_';
  return name.size() > kMaxMetricName ? "" : name;
}

void Scalars::Add(const TensorBoardEvent& event) {
  if (event.step() < 0 || static_cast<uint64_t>(event.step()) > kMaxReportedStep) return;
  for (const TensorBoardEvent::Value& value : event.summary().value()) {
    const std::optional<double> number = NumberOf(value);
    const std::string name = number.has_value() ? MetricNameOf(value.tag()) : "";
    if (name.empty()) continue;
    MetricPoint& point = points_[static_cast<uint64_t>(event.step())];
    point.set_step(static_cast<uint64_t>(event.step()));
    SetMetric(name, *number, point);
  }
}

std::vector<MetricPoint> Scalars::Take(bool all) {
  std::vector<MetricPoint> taken;
  while (points_.size() > (all ? 0 : 1)) taken.push_back(std::move(points_.extract(points_.begin()).mapped()));
  return taken;
}

void Scalars::ThinTo(size_t most) {
  if (points_.size() <= most) return;
  const uint64_t last = points_.rbegin()->first, gap = (last - points_.begin()->first) / most + 1;
  uint64_t kept = points_.begin()->first;
  for (auto at = std::next(points_.begin()); at != points_.end();) {
    if (at->first - kept < gap && at->first != last && !at->second.has_validation_loss()) {
      at = points_.erase(at);
      continue;
    }
    if (at->first - kept >= gap) kept = at->first;
    ++at;
  }
  if (points_.size() < most + most / 2) return;
  for (MetricPoint& point : Thin(Take(/*all=*/true), most)) points_.emplace(point.step(), std::move(point));
}

std::vector<MetricPoint> Thin(std::vector<MetricPoint> points, size_t most) {
  if (points.size() <= most) return points;
  const auto validated = static_cast<size_t>(std::count_if(
      points.begin(), points.end(), [](const MetricPoint& point) { return point.has_validation_loss(); }));
  // Of both kinds the i-th is kept where i * most / of passes a whole number.
  struct Kind {
    size_t of, most, seen = 0;
    bool Keep() {
      const size_t before = seen * most / of;
      return ++seen * most / of > before;
    }
  };
  Kind with{validated, std::min(validated, most)};
  Kind without{points.size() - validated, most - with.most};
  std::vector<MetricPoint> kept;
  for (MetricPoint& point : points) {
    if ((point.has_validation_loss() ? with : without).Keep()) kept.push_back(std::move(point));
  }
  return kept;
}

}  // namespace muster::exec
