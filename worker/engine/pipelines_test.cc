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

Trial OneRank(const Model& model, bool sgd) { return {.name = "single", .choose = Single, .sgd = sgd, .model = model}; }

Trial OnStages(const std::string& name, uint32_t stages, const Choose& choose, const Model& model, bool sgd) {
  return {.name = name,
          .choose = choose,
          .ranks = stages,
          .microbatch = 1,
          .sgd = sgd,
          .set = [](Config& config) { config.check_accesses = true; },
          .model = model,
          .sgd_limit = 3e-6,
          .stages = stages};
}

// Seven sequences in microbatches of one: none of the numbers of stages divides them.
TEST(Pipelines, EveryScheduleTrainsAsOneRankDoes) {
  const Model model = LlamaTrialModel();
  for (const bool sgd : {true, false}) {
    const Curve expected = Train(OneRank(model, sgd));
    for (const auto& [name, schedule] : kSchedules) {
      for (const uint32_t stages : {2u, 4u}) {
        if (stages * schedule.second > 5) continue;  // it has five units
        const Trial trial = OnStages(absl::StrCat(name, " on ", stages, sgd ? " sgd" : ""), stages,
                                     By(schedule.first, schedule.second, Single), model, sgd);
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

TEST(Pipelines, EveryStrategyTrainsInsideThem) {
  // GPT-2's head borrows the embedding of another stage.
  for (const Model& model : {TrialModel(), LlamaTrialModel()}) {
    const Curve expected = Train(OneRank(model, true));
    for (const auto& [name, strategy] : Strategies()) {
      const bool hybrid = name.starts_with("hybrid");
      for (const auto& [schedule_name, schedule] : kSchedules) {
        Trial trial = OnStages(absl::StrCat(model.has_gpt2() ? "gpt2 " : "llama ", name, ", ", schedule_name), 2,
                               By(schedule.first, schedule.second, strategy), model, true);
        trial.ranks = hybrid ? 8 : 4;
        ExpectSame(trial, Train(trial), expected);
      }
    }
  }
}

}  // namespace
}  // namespace muster::engine
