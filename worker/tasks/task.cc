#include "worker/tasks/task.h"

#include "absl/strings/str_cat.h"
#include "worker/tasks/image_classification.h"
#include "worker/tasks/language_model.h"

namespace muster::tasks {

absl::StatusOr<const Task*> TaskOf(const Inventory& inventory) {
  static const std::vector<const Task*> tasks = {&LanguageModelTask(), &ImageClassificationTask()};
  for (const Task* task : tasks) {
    if (task->name() == inventory.task().name()) return task;
  }
  return absl::UnimplementedError(absl::StrCat("this build has no task \"", inventory.task().name(), "\""));
}

}  // namespace muster::tasks
