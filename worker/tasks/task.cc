#include "worker/tasks/task.h"

#include "absl/strings/str_cat.h"
#include "worker/tasks/image_classification.h"
#include "worker/tasks/language_model.h"
#include "worker/tasks/tensors.h"

namespace muster::tasks {

absl::StatusOr<const Task*> TaskOf(const Inventory& inventory) {
  static const std::vector<const Task*> tasks = {&LanguageModelTask(), &ImageClassificationTask(), &TensorsTask()};
  for (const Task* task : tasks) {
    if (task->name() == inventory.task().name()) return task;
  }
  return absl::UnimplementedError(absl::StrCat("this build has no task \"", inventory.task().name(), "\""));
}

std::vector<NamedMetric> TaskMetrics(const Inventory& inventory, const engine::Evaluation& evaluation) {
  std::vector<NamedMetric> metrics;
  for (int i = 0; i < inventory.task().metrics_size(); ++i) {
    NamedMetric& metric = metrics.emplace_back();
    metric.set_name(inventory.task().metrics(i));
    metric.set_value(evaluation.metrics[static_cast<size_t>(i)]);
  }
  return metrics;
}

}  // namespace muster::tasks
