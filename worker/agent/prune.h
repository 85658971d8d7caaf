// Chooses which folders of finished ranks to remove. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster::agent {

struct DoneFolder {
  std::string path;
  uint64_t bytes = 0;
  absl::Time done;
};

struct PruneLimits {
  size_t folders = 256;
  uint64_t bytes = uint64_t{4} << 30;  // on the disk, with all that ranks have left in subfolders
};

// Paths, oldest first; what is left keeps both limits.
std::vector<std::string> ChoosePruned(std::vector<DoneFolder> folders, const PruneLimits& limits);

// Removes such folders of `run`, and only ones that are marked done.
void PruneDone(const std::string& run, const PruneLimits& limits);

}  // namespace muster::agent
