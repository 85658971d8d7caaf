#include "coordinator/metrics/event_file.h"

#include "absl/strings/str_cat.h"
#include "common/event_record.h"
#include "proto/tensorboard.pb.h"

namespace muster::metrics {
namespace {

constexpr uint64_t kAllSteps = 100'000;
constexpr char kEventFileVersion[] = "brain.Event:2";

double Seconds(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + static_cast<double>(time.nanos()) * 1e-9;
}

TensorBoardEvent At(const MetricPoint& point) {
  TensorBoardEvent event;
  event.set_wall_time(Seconds(point.time()));
  event.set_step(static_cast<int64_t>(point.step()));
  return event;
}

}  // namespace

std::string FileStart(const MetricPoint& point) {
  TensorBoardEvent version;
  version.set_wall_time(Seconds(point.time()));
  version.set_file_version(kEventFileVersion);
  TensorBoardEvent start = At(point);
  start.mutable_session_log()->set_status(TensorBoardEvent::START);
  return EventRecord(version.SerializeAsString()) + EventRecord(start.SerializeAsString());
}

std::string PointRecord(const MetricPoint& point) {
  TensorBoardEvent event = At(point);
  const auto add = [&](const std::string& tag, bool known, double value) {
    if (!known) return;
    TensorBoardEvent::Value& added = *event.mutable_summary()->add_value();
    added.set_tag(tag);
    added.set_simple_value(static_cast<float>(value));
  };
  add("train/loss", point.has_loss(), point.loss());
  add("train/gradient_norm", point.has_gradient_norm(), point.gradient_norm());
  add("train/learning_rate", point.has_learning_rate(), point.learning_rate());
  add("train/skipped_steps", point.has_skipped_steps(), static_cast<double>(point.skipped_steps()));
  add("train/loss_scale", point.has_loss_scale(), point.loss_scale());
  add("validation/loss", point.has_validation_loss(), point.validation_loss());
  for (const NamedMetric& metric : point.validation()) {
    add(absl::StrCat("validation/", metric.name()), true, metric.value());
  }
  for (const NamedMetric& metric : point.reported()) add(metric.name(), true, metric.value());
  add("perf/samples_per_second", point.has_samples_per_second(), point.samples_per_second());
  add("perf/tokens_per_second", point.has_tokens_per_second(), point.tokens_per_second());
  add("perf/model_flops_per_second", point.has_model_flops_per_second(), point.model_flops_per_second());
  add("perf/step_seconds", point.has_step_seconds(), point.step_seconds());
  add("perf/peak_memory_bytes", point.has_peak_memory_bytes(), static_cast<double>(point.peak_memory_bytes()));
  add("perf/communication_seconds", point.has_communication_seconds(), point.communication_seconds());
  return event.has_summary() ? EventRecord(event.SerializeAsString()) : "";
}

bool IsWritten(uint64_t step) {
  uint64_t stride = 1;
  for (uint64_t end = kAllSteps; step > end; end *= 2) stride *= 2;
  return step % stride == 0;
}

}  // namespace muster::metrics
