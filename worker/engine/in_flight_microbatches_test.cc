#include "worker/engine/in_flight_microbatches.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"
#include "worker/engine/group_of_others_test.h"
#include "worker/tasks/language_model.h"

namespace muster::engine {
namespace {

// An edge whose receiver takes what is sent as late as it may: when the pass after the next one waits for it. It keeps
// no tensor, as a device does not.
class LateEdge final : public GroupOfOthers {
 public:
  explicit LateEdge(int rank) : GroupOfOthers(rank, 2) {}
  std::unique_ptr<collectives::Work> Send(at::Tensor values, int) override {
    EXPECT_FALSE(last_.has_value() && last_->expired()) << "freed while it is sent, before message " << sent;
    last_.emplace(values.storage().getWeakStorageImpl());
    ++sent;
    return Done();
  }
  // The next step waits for all of this one.
  void EndStep() { last_.reset(); }
  int sent = 0;

 private:
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> last_;
};

// Steps whose last microbatches are empty, again and again by the same tasks, as those before a capture.
TEST(InFlightMicrobatches, OutputsStayUntilAPassHasWaitedForTheirSend) {
  ::muster::Train train;
  Gpt2& g = *train.mutable_model()->mutable_gpt2();
  g.set_layers(4), g.set_heads(1), g.set_width(16), g.set_vocabulary(61), g.set_context(8);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(5), train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_sgd();
  train.mutable_parallel()->set_pipeline(2);
  for (const auto& [schedule, chunks] : {std::pair(PIPELINE_SCHEDULE_GPIPE, 1), std::pair(PIPELINE_SCHEDULE_1F1B, 1),
                                         std::pair(PIPELINE_SCHEDULE_INTERLEAVED, 2)}) {
    train.mutable_pipeline()->set_schedule(schedule), train.mutable_pipeline()->set_chunks(chunks);
    for (const uint32_t rank : {0u, 1u}) {
      for (const uint32_t samples : {5u, 4u, 3u}) {
        SCOPED_TRACE(absl::StrCat(PipelineSchedule_Name(schedule), ", stage ", rank, ", ", samples, " samples"));
        Config config = Configure(train, *models::MakeInventory(train), 2, rank)->config;
        GroupOfOthers group(static_cast<int>(rank), 2);
        std::vector<std::unique_ptr<LateEdge>> edges;
        config.groups.assign(config.schedule.groups.size(), &group);
        for (size_t edge = kGroups; edge < config.groups.size(); ++edge) {
          config.groups[edge] = edges.emplace_back(std::make_unique<LateEdge>(static_cast<int>(rank))).get();
        }
        config.streams = config.portable = config.recorded = config.check_accesses = true;
        const auto engine = Engine::Create(config);
        ASSERT_TRUE(engine.ok()) << engine.status();
        const std::vector<uint32_t> tokens(samples * 9, 1);
        int sent = 0;
        for (int step = 0; step < 6; ++step) {
          const auto result = (*engine)->Step(tasks::TokenBatch(samples, tokens, samples), 0x1p-10);
          ASSERT_TRUE(result.ok()) << result.status();
          for (const auto& edge : edges) sent += edge->sent, edge->EndStep();
        }
        EXPECT_GT(sent, 0);
      }
    }
  }
}

}  // namespace
}  // namespace muster::engine
