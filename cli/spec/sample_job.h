// The commented job file that `muster init` writes. Pure.
#pragma once

#include <string>

namespace muster::cli {

struct SampleJob {
  std::string name = "gpt2-tiny";
  std::string model = "gpt2:tiny";  // family:size
  std::string tokens = "train.bin";
  std::string validation;  // empty: a comment shows how
};

// Commented YAML that can be submitted once the data exists. Commented-out fields show their defaults; each may be
// uncommented alone or with all others.
std::string WriteSampleJob(const SampleJob& job);

}  // namespace muster::cli
