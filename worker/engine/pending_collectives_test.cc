#include "worker/engine/pending_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace muster::engine {
namespace {

using testing::ElementsAre;

class FakeWork final : public collectives::Work {
 public:
  FakeWork(std::vector<std::string>* log, std::string name, absl::Status status)
      : log_(log), name_(std::move(name)), status_(std::move(status)) {}
  absl::Status Wait() override {
    log_->push_back(name_);
    return status_;
  }
  bool done() const override { return true; }

 private:
  std::vector<std::string>* const log_;
  const std::string name_;
  const absl::Status status_;
};

struct PendingCollectivesTest : testing::Test {
  void Add(int32_t op, Stream stream, const std::string& name, absl::Status status = absl::OkStatus()) {
    pending.Add(op, stream, std::make_unique<FakeWork>(&log, name, std::move(status)),
                [this, name](const collectives::Work&) { log.push_back("then " + name); });
  }
  PendingCollectives pending;
  std::vector<std::string> log;
};

TEST_F(PendingCollectivesTest, WaitsForAllBeforeItOnItsStreamAndForNothingElse) {
  Add(3, Stream::kReduce, "a");
  Add(4, Stream::kGather, "other");
  Add(5, Stream::kReduce, "b");
  Add(7, Stream::kReduce, "later");
  EXPECT_EQ(pending.First(Stream::kReduce), 3);
  EXPECT_EQ(pending.First(Stream::kCompute), std::nullopt);
  EXPECT_TRUE(pending.Wait(5, Stream::kReduce).ok());
  EXPECT_EQ(pending.First(Stream::kReduce), 7);
  EXPECT_THAT(log, ElementsAre("a", "then a", "b", "then b"));
  EXPECT_TRUE(pending.Wait(5, Stream::kReduce).ok());
  EXPECT_EQ(log.size(), 4u) << "once";
  EXPECT_FALSE(pending.empty());
}

TEST_F(PendingCollectivesTest, StopsAtAFailure) {
  Add(1, Stream::kReduce, "bad", absl::UnavailableError("rank 2 is gone"));
  Add(2, Stream::kReduce, "later");
  EXPECT_EQ(pending.Wait(2, Stream::kReduce), absl::UnavailableError("rank 2 is gone"));
  EXPECT_THAT(log, ElementsAre("bad"));
  EXPECT_EQ(pending.First(Stream::kReduce), 1) << "the failed op stays pending";
  pending.Abandon();
  EXPECT_TRUE(pending.empty());
}

}  // namespace
}  // namespace muster::engine
