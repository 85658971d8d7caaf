// Pipelines train as one rank does, on any mesh, by every schedule and strategy.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/engine/strategy_trials_test.h"

namespace muster::engine {
namespace {

using T = ::muster::Train;

Choose By(PipelineSchedule schedule, uint32_t chunks, Choose strategy) {
  return [=](T& train) {
    strategy(train);
    train.mutable_pipeline()->set_schedule(schedule);
    train.mutable_pipeline()->set_chunks(chunks);
  };
}

const std::vector<std::pair<std::string, std::pair<PipelineSchedule, uint32_t>>> kSchedules = {
    {"gpipe", {PIPELINE_SCHEDULE_GPIPE, 1}},
    {"1f1b", {PIPELINE_SCHEDULE_1F1B, 1}},
    {"interleaved", {PIPELINE_SCHEDULE_INTERLEAVED, 2}},
};

Trial OneRank(const Model& model, bool sgd) {
  return {.name = "single", .choose = Single, .sgd = sgd, .model = model};
}

// Seven sequences in microbatches of one: none of the numbers of stages divides them.
TEST(Pipelines, EveryScheduleTrainsAsOneRankDoes) {
  const Model model = LlamaTrialModel();
  for (const bool sgd : {true, false}) {
    const Curve expected = Train(OneRank(model, sgd));
    for (const auto& [name, schedule] : kSchedules) {
      for (const uint32_t stages : {2u, 4u}) {
        if (stages * schedule.second > 5) continue;  // it has five units
        const Trial trial{.name = absl::StrCat(name, " on ", stages, sgd ? " sgd" : ""),
                          .choose = By(schedule.first, schedule.second, Single),
                          .ranks = stages,
                          .microbatch = 1,
                          .sgd = sgd,
                          .set = [](Config& config) { config.check_accesses = true; },
                          .model = model,
                          .sgd_limit = 3e-6,
                          .stages = stages};
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

TEST(Pipelines, EveryStrategyTrainsInsideThem) {
  const Model model = LlamaTrialModel();
  const Curve expected = Train(OneRank(model, true));
  for (const auto& [name, strategy] : Strategies()) {
    const bool hybrid = name.starts_with("hybrid");
    for (const auto& [schedule_name, schedule] : kSchedules) {
      const Trial trial{.name = absl::StrCat(name, ", ", schedule_name),
                        .choose = By(schedule.first, schedule.second, strategy),
                        .ranks = hybrid ? 8u : 4u,
                        .microbatch = 1,
                        .sgd = true,
                        .set = [](Config& config) { config.check_accesses = true; },
                        .model = model,
                        .sgd_limit = 3e-6,
                        .stages = 2};
      ExpectSame(trial, Train(trial), expected);
    }
  }
}

}  // namespace
}  // namespace muster::engine
