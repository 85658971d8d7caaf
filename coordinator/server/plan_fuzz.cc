// libFuzzer's entry: bytes choose the numbers of a spec. Aborts when a spec that the resolver accepts is not planned
// within the budget of work and memory, or ends with an error that says nothing of the job.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <new>
#include <string>

#include "coordinator/spec/plan.h"
#include "coordinator/spec/resolve.h"
#include "testing/fuzz.h"

namespace {

// What the program holds, and the most of it since it was last reset; 0 where a sanitizer has the allocator.
std::atomic<int64_t> live = 0, peak = 0;

#ifndef __SANITIZE_ADDRESS__

void* Allocate(size_t size) {
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  const int64_t now = live += static_cast<int64_t>(malloc_usable_size(memory));
  if (now > peak) peak = now;
  return memory;
}

void Free(void* memory) {
  if (memory != nullptr) live -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

#endif

}  // namespace

#ifndef __SANITIZE_ADDRESS__

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { Free(memory); }
void operator delete[](void* memory) noexcept { Free(memory); }
void operator delete(void* memory, size_t) noexcept { Free(memory); }
void operator delete[](void* memory, size_t) noexcept { Free(memory); }
#endif

namespace {

// Numbers from bytes; 0 when they have run out.
class Numbers {
 public:
  Numbers(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint32_t Below(uint32_t end) {
    uint32_t n = 0;
    for (int i = 0; i < 3; ++i) n = n << 8 | (at_ < size_ ? data_[at_++] : 0);
    return n % end;
  }
  // 1 to `most`, smaller numbers more often: large ones take long.
  uint32_t UpTo(uint32_t most) {
    const uint32_t n = Below(most);
    return 1 + (n >> Below(8));
  }

 private:
  const uint8_t* const data_;
  const size_t size_;
  size_t at_ = 0;
};

// Stages, on a number of ranks that they divide.
void Pipeline(Numbers& numbers, muster::JobSpec& spec) {
  muster::Train& train = *spec.mutable_train();
  const uint32_t stages = numbers.UpTo(256), each = std::max(1u, spec.resources().ranks() / stages);
  spec.mutable_resources()->set_ranks(std::min(4096 / stages, each) * stages);
  spec.mutable_resources()->clear_min_ranks();
  train.mutable_parallel()->set_pipeline(stages);
  if (train.batch().has_microbatch()) {  // not more microbatches than are allowed
    train.mutable_batch()->set_sequences(std::max(1u, std::min(train.batch().sequences(), 50'000u)));
  }
  const auto schedule = static_cast<muster::PipelineSchedule>(numbers.Below(muster::PipelineSchedule_ARRAYSIZE));
  if (stages > 1) train.mutable_pipeline()->set_schedule(schedule);
  if (stages > 1 && schedule == muster::PIPELINE_SCHEDULE_INTERLEAVED) {
    train.mutable_pipeline()->set_chunks(2 + numbers.Below(7));
  }
  if (stages > 1 && schedule == muster::PIPELINE_SCHEDULE_ZERO_BUBBLE) {
    train.mutable_pipeline()->set_chunks(1 + numbers.Below(2));
  }
}

// Ranks that compute each unit together, on a number of ranks that they divide.
void Tensor(Numbers& numbers, muster::JobSpec& spec) {
  muster::Train& train = *spec.mutable_train();
  const uint32_t stages = std::max(1u, train.parallel().pipeline()),
                 most = std::min(64u, std::max(1u, spec.resources().ranks() / stages)), tensor = numbers.UpTo(most);
  spec.mutable_resources()->set_ranks(std::max(1u, spec.resources().ranks() / (stages * tensor)) * stages * tensor);
  spec.mutable_resources()->clear_min_ranks();
  train.clear_lora();
  train.mutable_parallel()->set_tensor(tensor);
  train.mutable_parallel()->set_sequence_parallel(tensor > 1 && numbers.Below(2) == 0);
  const auto set = [&](auto& model) {
    model.set_heads(tensor), model.set_width(2 * tensor * (1 + numbers.Below(1024 / tensor)));
    model.set_vocabulary(tensor + numbers.Below(1 << 16)), model.set_context(tensor * (1 + numbers.Below(64)));
  };
  if (!train.model().has_llama()) return set(*train.mutable_model()->mutable_gpt2());
  set(*train.mutable_model()->mutable_llama());
  train.mutable_model()->mutable_llama()->set_inner(tensor * (1 + numbers.Below(1 << 8)));
}

// Ranks that share each sequence, on a number of ranks that they divide, with everything else that divides them.
void Context(Numbers& numbers, muster::JobSpec& spec) {
  muster::Train& train = *spec.mutable_train();
  const uint32_t tensor = std::max(1u, train.parallel().tensor()),
                 others = std::max(1u, train.parallel().pipeline()) * tensor,
                 most = std::min(64u, std::max(1u, spec.resources().ranks() / others)), context = numbers.UpTo(most);
  spec.mutable_resources()->set_ranks(std::max(1u, spec.resources().ranks() / (others * context)) * others * context);
  spec.mutable_resources()->clear_min_ranks();
  train.mutable_parallel()->set_context(context);
  const uint32_t tokens = 2 * context * tensor * (1 + numbers.Below(64));
  if (train.model().has_llama()) {
    train.mutable_model()->mutable_llama()->set_context(tokens);
  } else {
    train.mutable_model()->mutable_gpt2()->set_context(tokens);
  }
}

muster::JobSpec SpecOf(Numbers& numbers) {
  muster::JobSpec spec;
  spec.set_name("fuzz");
  muster::Train& train = *spec.mutable_train();
  train.mutable_data()->set_tokens("/t");
  train.set_steps(1);
  train.mutable_checkpoint()->set_path("/c");
  const uint32_t layers = numbers.UpTo(4096);
  const auto set = [&](auto& model) {
    model.set_layers(layers), model.set_heads(1), model.set_width(2 * (1 + numbers.Below(1024)));
    model.set_vocabulary(1 + numbers.Below(1 << 16)), model.set_context(1 + numbers.Below(1 << 12));
  };
  if (numbers.Below(2) == 0) {
    muster::Llama& llama = *train.mutable_model()->mutable_llama();
    set(llama);
    llama.set_inner(1 + numbers.Below(1 << 13));
  } else {
    set(*train.mutable_model()->mutable_gpt2());
  }
  const uint32_t ranks = numbers.UpTo(4096);
  spec.mutable_resources()->set_ranks(ranks);
  if (numbers.Below(4) == 0) spec.mutable_resources()->set_min_ranks(1 + numbers.Below(ranks));
  // As many microbatches as are allowed, or any number.
  const uint32_t most = 250'000 / (layers + 2),
                 least = spec.resources().has_min_ranks() ? spec.resources().min_ranks() : ranks;
  const uint32_t sequences = numbers.Below(2) == 0 ? most * least : 1 + numbers.Below(1 << 20);
  train.mutable_batch()->set_sequences(std::max(1u, std::min(sequences, 1u << 20)));
  if (numbers.Below(2) == 0) train.mutable_batch()->set_microbatch(1);
  train.set_activation_checkpointing(numbers.Below(2) == 0);
  if (numbers.Below(2) == 0) train.mutable_precision()->set_compute(muster::DTYPE_BF16);
  muster::Strategy& strategy = *train.mutable_strategy();
  const auto placement = static_cast<muster::Placement>(numbers.Below(muster::Placement_ARRAYSIZE));
  switch (numbers.Below(4)) {
    case 0:
      strategy.mutable_auto_();
      break;
    case 1:
      strategy.mutable_ddp()->set_bucket_mib(numbers.Below(1000) / 100.0);
      break;
    case 2: {
      muster::Zero& zero = *strategy.mutable_zero();
      zero.set_stage(1 + numbers.Below(3));
      zero.set_placement(placement);
      zero.set_contiguous(numbers.Below(2) == 0);
      zero.set_prefetch(numbers.Below(65));
      zero.set_wrap_mib(numbers.Below(1000) / 100.0);
      if (numbers.Below(2) == 0) zero.set_shares(muster::SHARES_SPEED);
      break;
    }
    default: {
      muster::Fsdp& fsdp = *strategy.mutable_fsdp();
      fsdp.set_reshard(static_cast<muster::Reshard>(numbers.Below(muster::Reshard_ARRAYSIZE)));
      fsdp.set_placement(placement);
      fsdp.set_prefetch(numbers.Below(65));
      fsdp.set_wrap_mib(numbers.Below(1000) / 100.0);
      if (numbers.Below(2) == 0) fsdp.set_shares(muster::SHARES_SPEED);
      if (numbers.Below(2) == 0) fsdp.set_accumulation(muster::ACCUMULATION_HOLD);
    }
  }
  // At the end, so that seeds mean what they meant.
  if (numbers.Below(3) == 0) {
    train.mutable_lora()->set_rank(numbers.UpTo(4096));
    if (numbers.Below(2) == 0) train.mutable_lora()->add_targets(train.model().has_llama() ? "q_proj" : "attn.c_attn");
  }
  for (const char* pattern : {"*", "!*norm*", "*.1.*", "!*ln_*", "*a*b*c*d*e*f*g*h*i*j*k*l*m*n*o*p*", "!*head*"}) {
    if (numbers.Below(6) == 0) train.add_freeze(pattern);
  }
  if (numbers.Below(3) == 0) train.mutable_dropout()->set_residual(0.1), train.mutable_dropout()->set_attention(0.1);
  if (numbers.Below(3) == 0) Pipeline(numbers, spec);
  if (numbers.Below(4) == 0) Tensor(numbers, spec);
  if (numbers.Below(4) == 0) {
    train.clear_pipeline(), train.clear_parallel(), train.clear_strategy();
    train.mutable_parallel()->set_auto_(true);
  }
  // strategy: auto, of strategies alone.
  if (numbers.Below(2) == 0 && !train.has_parallel()) train.mutable_parallel()->set_pipeline(1);
  if (numbers.Below(4) == 0 && !train.parallel().auto_()) Context(numbers, spec);
  return spec;
}

[[noreturn]] void Fail(const muster::JobSpec& spec, const std::string& what) {
  std::fprintf(stderr, "%s\n%s\n", what.c_str(), spec.DebugString().c_str());
  std::abort();
}

}  // namespace

namespace muster::fuzz {

std::vector<std::string> Seeds() {
  // Layers, width, ranks and the rest: the largest, the smallest, and a few in between.
  const auto numbers = [](std::initializer_list<uint32_t> all, char rest) {
    std::string bytes;
    for (const uint32_t n : all) {
      for (const int shift : {16, 8, 0}) bytes += static_cast<char>(n >> shift);
    }
    return bytes + std::string(60, rest);
  };
  return {std::string(96, '\xFF'),
          std::string(96, '\0'),
          numbers({999, 0, 127, 256, 128, 63, 0, 1, 0, 0, 0, 0, 0, 0}, 1),
          numbers({4095, 0, 0, 0, 0, 4095, 0, 1, 0, 0, 1, 1, 2, 2, 2, 0, 7}, 2),
          numbers({1299, 0, 63, 1000, 100, 4095, 0, 1, 0, 0, 0, 1, 3, 3, 4, 64}, 3),
          numbers({299, 0, 127, 1000, 100, 511, 0, 1, 0, 0, 0, 0, 2, 3, 1, 0, 1}, 0),
          numbers({79, 0, 511, 1000, 100, 4095, 0, 63, 0, 1, 511, 0, 0, 0, 1, 3, 1, 1, 1, 0, 1, 1}, 0)};
}

std::vector<std::string> Words() {
  return {std::string("\x00\x00\x00", 3), std::string("\x00\x00\x01", 3), std::string("\x00\x00\x02", 3),
          std::string("\x00\x0F\xFF", 3), std::string("\x00\x03\xE8", 3), std::string("\x00\x00\x40", 3)};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;  // NOLINT: a function of its own
  Numbers numbers(data, size);
  JobSpec spec = SpecOf(numbers);
  if (!spec::Resolve({}, spec).empty()) return 0;
  spec::PlanFor on = spec::AnySlots(spec, *strategies::FindHardware("h100"), numbers.Below(2) == 0 ? 1 : 0);
  if (numbers.Below(4) == 0) {
    for (RankPlace& rank : on.slots.ranks) rank = {numbers.Below(8), rank.memory_bytes, 1e9 * (1 + numbers.Below(9))};
  }
  on.ops = numbers.Below(2) == 0;
  const strategies::Budget::Limits limits;
  strategies::Budget budget(limits);
  const int64_t before = live;
  peak = before;
  {
    const absl::StatusOr<spec::MadePlan> plan = spec::MakePlan(spec, on, &budget);
    const absl::StatusCode code = plan.status().code();
    if (!plan.ok() && code != absl::StatusCode::kInvalidArgument && code != absl::StatusCode::kResourceExhausted) {
      Fail(spec, plan.status().ToString());
    }
    if (!plan.ok() && plan.status().message().size() < 40) Fail(spec, "an error that says too little");
  }
  if (budget.spent() > limits.work) Fail(spec, "more work than the budget has");
  if (peak - before > static_cast<int64_t>(limits.bytes)) {
    Fail(spec, "held " + std::to_string((peak - before) >> 20) + " MiB, counted " +
                   std::to_string(budget.most_bytes() >> 20));
  }
  return 0;
}
