// Compares the row programs of GPUs (cuda/row_programs.h) with LibTorch's operators on a device, at startup: no GPU of
// that kind may have run them before.
#pragma once

#include <c10/core/Device.h>

#include "absl/status/status.h"

namespace muster::units {

// Runs each operation in bf16 and fp32 on some hundred rows of `device`, on a CPU by a loop. Internal: the first
// operation whose results differ by more than rounding; the message has its name, the dtype and the error. Throws
// c10::Error where a program does not run at all.
absl::Status CheckRowPrograms(at::Device device);

}  // namespace muster::units
