// A spec with only the required fields, which tests then change.
#pragma once

#include "proto/spec.pb.h"

namespace muster::spec {

inline JobSpec Good() {
  JobSpec spec;
  spec.set_api_version("muster/v1");
  spec.set_kind("Job");
  spec.set_name("gpt2-tiny");
  Train& train = *spec.mutable_train();
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_data()->set_tokens("/data/train.bin");
  train.set_steps(100);
  return spec;
}

}  // namespace muster::spec
