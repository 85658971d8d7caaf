// One side of bench/single_rank.py: reads lines "N" from standard input, runs N steps, and answers with one JSON line
// of their times, the memory so far, and the planned memory. `--role engine` trains, `--role gemms` runs the GEMMs
// alone.
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/gemms.h"
#include "bench/model.h"
#include "bench/shape_options.h"
#include "bench/status.h"
#include "common/instruction_set.h"
#include "worker/engine/engine.h"

int main(int argc, char** argv) {
  using namespace muster;
  bench::Dimensions shape;
  std::string role = "engine";
  CLI::App app("One side of bench/single_rank.py");
  app.add_option("--role", role)->check(CLI::IsMember({"engine", "gemms"}));
  bench::AddShape(app, shape);
  CLI11_PARSE(app, argc, argv);

  const uint64_t before = bench::StatusBytes("VmRSS");
  uint64_t planned = 0;
  std::unique_ptr<engine::Engine> trained;
  std::unique_ptr<bench::Gemms> gemms;
  std::function<bool()> step;
  if (role == "engine") {
    const auto configured = bench::Configure(shape);
    auto made = configured.ok() ? engine::Engine::Create(configured->config) : configured.status();
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
      return 1;
    }
    trained = *std::move(made);
    planned = configured->memory.peak - configured->memory.fixed;  // of tensors
    const engine::Batch batch = bench::MakeBatch(shape);
    step = [&, batch] { return trained->Step(batch, 1e-4).ok(); };
  } else {
    gemms = bench::MakeGemms(shape);
    step = [&] { return gemms->Step(), true; };
  }
  nlohmann::json ready = {{"instruction_set", std::string(NameOf(FindInstructions().usable))},
                          {"fast_bf16", HasFastBf16(FindInstructions().usable)},
                          {"notes", nlohmann::json::array()}};
  if (trained != nullptr) ready["notes"] = trained->Notes();
  std::cout << ready << std::endl;
  for (int steps = 0; std::cin >> steps;) {
    nlohmann::json answer = {{"milliseconds", nlohmann::json::array()}};
    for (int i = 0; i < steps; ++i) {
      const auto start = std::chrono::steady_clock::now();
      if (!step()) return 1;
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
      answer["milliseconds"].push_back(took.count());
    }
    answer["memory_bytes"] = bench::StatusBytes("VmHWM") - before;
    if (trained != nullptr) answer["planned_bytes"] = planned, answer["counted_bytes"] = trained->peak_memory_bytes();
    std::cout << answer << std::endl;
  }
}
