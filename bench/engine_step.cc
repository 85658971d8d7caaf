// Time and memory of one training step on this machine:   engine_step [threads] [sequences] [steps] [tiny|small|…]
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "models/inventory.h"
#include "strategies/compile.h"
#include "worker/engine/engine.h"

int main(int argc, char** argv) {
  using namespace muster;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1, sequences = argc > 2 ? std::atoi(argv[2]) : 8;
  const int steps = argc > 3 ? std::atoi(argv[3]) : 30;
  std::string size = "GPT2_SIZE_";
  for (const char* c = argc > 4 ? argv[4] : "tiny"; *c != 0; ++c) size += static_cast<char>(std::toupper(*c));
  Gpt2Size model = GPT2_SIZE_UNSPECIFIED;
  if (threads < 1 || sequences < 1 || steps < 1 || !Gpt2Size_Parse(size, &model)) {
    std::fprintf(stderr, "usage: engine_step [threads] [sequences] [steps] [tiny|small|medium|large|xl]\n");
    return 2;
  }
  engine::Config config;
  config.threads = threads;
  config.train.mutable_model()->mutable_gpt2()->set_size(model);
  config.train.mutable_strategy()->mutable_single();
  config.train.mutable_batch()->set_sequences(sequences);
  Optimizer& o = *config.train.mutable_optimizer();
  o.mutable_adamw()->set_beta1(0.9);
  o.mutable_adamw()->set_beta2(0.999);
  o.mutable_adamw()->set_eps(1e-8);
  o.set_weight_decay(0.1);
  o.set_clip_norm(1.0);
  config.inventory = *models::MakeInventory(config.train.model());
  const auto layout = *strategies::MakeLayout(config.train, config.inventory, 1);
  config.table = layout.table;
  config.role = layout.roles[0];
  const auto program = *strategies::Compile(config.train, config.inventory, layout, 0);
  config.schedule = program.schedule;
  auto engine = engine::Engine::Create(config).value();
  const size_t context = config.inventory.context();
  std::vector<uint32_t> tokens(sequences * (context + 1));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * 2654435761u >> 24) & 255;
  const engine::Batch batch{static_cast<uint64_t>(sequences), tokens, sequences * context};
  std::vector<double> milliseconds;
  for (int i = 0; i < steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (!engine->Step(batch, 1e-3).ok()) return 1;
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const double median = milliseconds[milliseconds.size() / 2];
  const double each = static_cast<double>(sequences) * static_cast<double>(context);
  std::printf("threads %d, %d x %zu tokens: step min %.1f median %.1f ms, %.0f tokens/s\n", threads, sequences, context,
              milliseconds[0], median, each / median * 1000);
  std::printf("memory: planned %.1f MiB, measured %.1f MiB\n", static_cast<double>(program.memory.peak) / (1 << 20),
              static_cast<double>(engine->peak_memory_bytes()) / (1 << 20));
}
