// Naming the class of an image: samples are images of an image file with their labels.
#pragma once

#include "worker/tasks/task.h"

namespace muster::tasks {

const Task& ImageClassificationTask();

}  // namespace muster::tasks
