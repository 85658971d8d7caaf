// Samples of named tensors of safetensors files, for custom models that compute their own loss and metrics.
#pragma once

#include "worker/tasks/task.h"

namespace muster::tasks {

const Task& TensorsTask();

}  // namespace muster::tasks
