// Ranks of which one lacks the host memory to copy its shard.
#include "worker/trainer/checkpointer.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "testing/temporary_folder.h"
#include "worker/trainer/thread_ranks_test.h"

namespace muster::trainer {
namespace {

using ::testing::HasSubstr;

// Of each rank, in order; `lacking` may not allocate a copy.
std::vector<std::unique_ptr<Checkpointer>> MakeCheckpointers(ThreadRanks& ranks, uint32_t world, uint32_t lacking) {
  EXPECT_TRUE(failpoint::Arm(absl::StrCat("trainer.host_copy.allocate=ENOSPC@", lacking + 1)).ok());
  std::vector<std::unique_ptr<Checkpointer>> made;
  for (uint32_t rank = 0; rank < world; ++rank) {
    made.push_back(std::make_unique<Checkpointer>(ranks.assignment(rank), ranks.rank(rank)));
  }
  EXPECT_EQ(failpoint::Passed()["trainer.host_copy.allocate"], world);
  EXPECT_TRUE(failpoint::Arm("").ok());
  return made;
}

// Every parameter in the checkpoint of `step` has that value.
void ExpectParameters(const std::string& path, uint64_t step, float value) {
  const auto checkpoint = checkpoint::Checkpoint::Open(path + "/" + checkpoint::StepName{step, 1}.Directory());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const Unit& unit : checkpoint->manifest().inventory().units()) {
    for (const Tensor& tensor : unit.tensors()) {
      uint64_t elements = 1;
      for (const uint64_t size : tensor.shape()) elements *= size;
      std::vector<float> values(elements);
      checkpoint::TensorRun run;
      run.name = tensor.name();
      run.shape.assign(tensor.shape().begin(), tensor.shape().end());
      run.values = absl::MakeSpan(values);
      const absl::Status read = checkpoint->Read(run);
      ASSERT_TRUE(read.ok()) << read;
      EXPECT_EQ(values, std::vector<float>(elements, value)) << tensor.name() << " of step " << step;
    }
  }
}

// The others go on to their next step meanwhile, whose sums are in the group in which ranks agree on a checkpoint.
TEST(Checkpointer, ARankThatLacksMemoryForItsCopyMeetsNoOtherRank) {
  constexpr uint32_t kWorld = 3, kSteps = 3;
  for (const uint32_t lacking : {0u, 1u}) {
    const TemporaryFolder folder;
    ThreadRanks ranks(kWorld, folder.path());
    const auto checkpointers = MakeCheckpointers(ranks, kWorld, lacking);
    const auto train = [&](uint32_t rank) -> absl::Status {
      for (uint64_t step = 1; step <= kSteps; ++step) {
        ranks.Set(rank, static_cast<float>(step));
        if (absl::Status begun = checkpointers[rank]->Begin(step, 8 * step); !begun.ok()) return begun;
        ranks.Set(rank, -1);
        at::Tensor sum = at::full({2}, static_cast<double>(step));
        if (absl::Status summed = ranks.group(rank)->AllReduce(sum)->Wait(); !summed.ok()) return summed;
        EXPECT_EQ(sum[1].item<float>(), static_cast<float>(kWorld * step));
      }
      return checkpointers[rank]->Wait();
    };
    for (const absl::Status& trained : ranks.OnEach(train)) ASSERT_TRUE(trained.ok()) << trained;
    for (uint64_t step = 1; step <= kSteps; ++step) {
      const auto done = checkpointers[0]->Take();
      ASSERT_TRUE(done.ok() && done->has_value()) << step;
      EXPECT_EQ((*done)->written.name.step, step) << "each once, in order";
      ExpectParameters(folder.path(), step, static_cast<float>(step));
    }
    EXPECT_FALSE(checkpointers[0]->Take()->has_value());
  }
}

// As where the write of a copy fails: the rank has the error, and the others that of another rank.
TEST(Checkpointer, ARankWithoutACopyWhoseWriteFailsSaysSo) {
  const TemporaryFolder folder;
  ThreadRanks ranks(2, folder.path());
  ranks.train(1).mutable_checkpoint()->set_path(folder.path() + "/unmounted");
  const auto checkpointers = MakeCheckpointers(ranks, 2, /*lacking=*/1);
  const std::vector<absl::Status> begun = ranks.OnEach([&](uint32_t rank) { return checkpointers[rank]->Begin(1, 8); });
  EXPECT_TRUE(begun[0].ok()) << begun[0];
  EXPECT_THAT(begun[1].message(), HasSubstr("the checkpoint of step 1 failed"));
  const std::vector<absl::Status> waited = ranks.OnEach([&](uint32_t rank) { return checkpointers[rank]->Wait(); });
  EXPECT_TRUE(absl::IsUnavailable(waited[0])) << waited[0];
  EXPECT_THAT(waited[0].message(), HasSubstr("another rank could not write its shard"));
  EXPECT_EQ(waited[1], begun[1]);
}

}  // namespace
}  // namespace muster::trainer
