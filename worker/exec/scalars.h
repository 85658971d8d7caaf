// The scalars of a script's TensorBoard events as metrics of steps. Pure.
//
//   Scalars scalars;
//   scalars.Add(event);                                     // in the order of a file
//   for (MetricPoint& point : scalars.Take(false)) ...      // steps that are complete
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "proto/tensorboard.pb.h"

namespace muster::exec {

// The name that a tag has among the metrics of a job: `loss`, `validation_loss`, `learning_rate` and `gradient_norm`
// for the tags that torch's tutorials, Hugging Face's Trainer and Lightning use for these ("Loss/train", "train/loss",
// "eval/loss", "train_loss_step"), else the tag itself, with `_` for characters that no name has. Empty: it has none.
std::string MetricNameOf(absl::string_view tag);

class Scalars {
 public:
  // Ignores what is no scalar of a step: images, histograms, texts.
  void Add(const TensorBoardEvent& event);
  // Takes the points, by step, without times. `all`: also that of the newest step, to which more may be added.
  std::vector<MetricPoint> Take(bool all);
  // Drops steps, so that about `most` are left, evenly spaced however often it is called; validation losses last.
  void ThinTo(size_t most);
  size_t size() const { return points_.size(); }

 private:
  std::map<uint64_t, MetricPoint> points_;
};

// `most` of the points: those with a validation loss first, of the others evenly spaced ones to the last.
std::vector<MetricPoint> Thin(std::vector<MetricPoint> points, size_t most);

}  // namespace muster::exec
