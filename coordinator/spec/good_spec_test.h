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

// The same of Llama's tiny model with a head of its own, as stages of a pipeline: a tied head would be on two stages.
inline Pipeline& Staged(JobSpec& spec, uint32_t ranks, uint32_t stages) {
  Train& train = *spec.mutable_train();
  train.mutable_model()->mutable_llama()->set_size(LLAMA_SIZE_TINY);
  train.mutable_model()->mutable_llama()->set_tied_head(false);
  spec.mutable_resources()->set_ranks(ranks);
  train.mutable_parallel()->set_pipeline(stages);
  return *train.mutable_pipeline();
}

}  // namespace muster::spec
