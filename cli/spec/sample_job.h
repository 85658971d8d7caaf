// A job file to begin with: what `muster init` writes. Pure.
#pragma once

#include <string>

namespace muster::cli {

struct SampleJob {
  std::string name = "gpt2-tiny";
  std::string model = "gpt2:tiny";  // family:size
  std::string tokens = "train.bin";
  std::string validation;  // empty: only a comment says how
};

// Commented YAML that can be submitted as it is once the data is there. Fields that are commented out show their
// defaults; each may be uncommented alone or with all others.
std::string WriteSampleJob(const SampleJob& job);

}  // namespace muster::cli
