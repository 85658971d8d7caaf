// Ranks that resume together, of which one cannot: only that one's node is at fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "testing/temporary_folder.h"
#include "testing/without_file_override.h"
#include "worker/trainer/checkpointer.h"
#include "worker/trainer/resume.h"
#include "worker/trainer/thread_ranks_test.h"

namespace muster::trainer {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ResumeOfRanks : public ::testing::Test {
 protected:
  static constexpr uint32_t kWorld = 3;

  ResumeOfRanks() { fs::create_directory(unmounted_); }
  std::string FolderOf(uint64_t step) const {
    return absl::StrCat(shared_, "/", checkpoint::StepName{step, 1}.Directory());
  }
  void Write(uint64_t step) {
    const auto written = ranks_.OnEach([&](uint32_t rank) {
      ranks_.Set(rank, static_cast<float>(step));
      return Checkpointer(ranks_.assignment(rank), ranks_.rank(rank)).Write(step, 8 * step);
    });
    for (const absl::Status& status : written) ASSERT_TRUE(status.ok()) << status;
  }
  // The coordinator knows these, oldest first.
  void Publish(const std::vector<uint64_t>& steps) {
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      for (const uint64_t step : steps) {
        PublishedCheckpoint& published = *ranks_.assignment(rank).add_published();
        published.set_step(step);
        published.set_generation(1);
        published.set_directory(checkpoint::StepName{step, 1}.Directory());
        *ranks_.assignment(rank).mutable_resume_from() = published;
      }
    }
  }
  // The rank's node has another folder at this path.
  void Mount(uint32_t rank, const std::string& folder) { ranks_.train(rank).mutable_checkpoint()->set_path(folder); }
  static void Cut(const std::string& file) { fs::resize_file(file, fs::file_size(file) / 2); }
  absl::StatusOr<Resumed> ResumeOn(uint32_t rank) {
    Rank& own = ranks_.rank(rank);
    return Resume(ranks_.assignment(rank), ranks_.group(rank), ranks_.rendezvous(), own.program.layout, *own.engine);
  }
  std::vector<absl::Status> ResumeAll() {
    return ranks_.OnEach([&](uint32_t rank) { return ResumeOn(rank).status(); });
  }
  // Unavailable is no refusal: the coordinator looks for the rank that it is due to.
  static void ExpectOfAnother(const absl::Status& status) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("another rank"));
  }

  const TemporaryFolder folder_;
  const std::string shared_ = folder_.path() + "/shared", unmounted_ = folder_.path() + "/unmounted";
  ThreadRanks ranks_{kWorld, shared_};
};

TEST_F(ResumeOfRanks, ANodeThatLacksTheFolderIsAloneAtFault) {
  Write(1), Write(2);
  Publish({1, 2});
  Mount(2, unmounted_);
  const std::vector<absl::Status> resumed = ResumeAll();
  ExpectOfAnother(resumed[0]);
  ExpectOfAnother(resumed[1]);
  EXPECT_TRUE(absl::IsDataLoss(resumed[2])) << resumed[2];
  EXPECT_THAT(
      resumed[2].message(),
      AllOf(HasSubstr(absl::StrCat("this node does not see ", unmounted_, "/step-0000000002-g1")), HasSubstr("share")));
}

TEST_F(ResumeOfRanks, ANodeThatMayNotReadIsAloneAtFault) {
  Write(1);
  Publish({1});
  const std::string closed = folder_.path() + "/closed";
  fs::copy(shared_, closed, fs::copy_options::recursive);
  fs::permissions(closed + "/step-0000000001-g1/shard-00001.safetensors", fs::perms::none);
  Mount(1, closed);
  const std::vector<absl::Status> resumed = ranks_.OnEach([&](uint32_t rank) {
    absl::Status status;
    WithoutFileOverride([&] { status = ResumeOn(rank).status(); });
    return status;
  });
  ExpectOfAnother(resumed[0]);
  EXPECT_TRUE(absl::IsPermissionDenied(resumed[1])) << resumed[1];
  ExpectOfAnother(resumed[2]);
}

// The newest checkpoint that all of them see.
TEST_F(ResumeOfRanks, WhatOneNodeLacksAllSkip) {
  Write(1), Write(2);
  Publish({1, 2});
  const std::string older = folder_.path() + "/older";
  fs::copy(shared_, older, fs::copy_options::recursive);
  fs::remove_all(older + "/step-0000000002-g1");
  Mount(0, older);
  const std::vector<absl::Status> resumed = ranks_.OnEach([&](uint32_t rank) -> absl::Status {
    const absl::StatusOr<Resumed> from = ResumeOn(rank);
    if (!from.ok()) return from.status();
    EXPECT_EQ(from->step, 1u);
    for (const engine::StateView& view : ranks_.rank(rank).engine->State()) {
      EXPECT_EQ(view.values, absl::MakeConstSpan(std::vector<float>(view.values.size(), 1))) << view.tensor;
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : resumed) EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ResumeOfRanks, WhatEachFindsDamagedIsOfEach) {
  Write(1);
  Publish({1});
  Cut(FolderOf(1) + "/manifest.json");
  for (const absl::Status& status : ResumeAll()) EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

// It is looked at last, and says nothing about the node that lacks what the others could resume from.
TEST_F(ResumeOfRanks, ADamagedUnpublishedCheckpointIsNoFaultOfTheNodes) {
  Write(1), Write(2);
  Publish({1});
  Cut(FolderOf(2) + "/manifest.json");
  Mount(2, unmounted_);
  const std::vector<absl::Status> resumed = ResumeAll();
  ExpectOfAnother(resumed[0]);
  ExpectOfAnother(resumed[1]);
  EXPECT_TRUE(absl::IsDataLoss(resumed[2])) << resumed[2];
}

TEST_F(ResumeOfRanks, OfAnotherJobsFolderThatOnlyRank0LacksItIsAtFault) {
  Write(1);
  for (const bool all : {false, true}) {
    ThreadRanks ranks(kWorld, folder_.path() + "/own");
    const auto resumed = ranks.OnEach([&](uint32_t rank) {
      ranks.train(rank).mutable_checkpoint()->set_resume_from(rank == 0 || all ? unmounted_ : shared_);
      Rank& own = ranks.rank(rank);
      return ResumeOther(ranks.assignment(rank), ranks.group(rank), ranks.rendezvous(), own.program.layout, *own.engine)
          .status();
    });
    EXPECT_TRUE(absl::IsNotFound(resumed[0])) << resumed[0];
    for (const uint32_t rank : {1u, 2u}) {
      EXPECT_EQ(resumed[rank].code(), all ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable);
    }
  }
}

}  // namespace
}  // namespace muster::trainer
