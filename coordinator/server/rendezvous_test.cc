#include "coordinator/server/rendezvous.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::server {
namespace {

const Rendezvous::Key kGeneration{JobId("a-1"), 3};
constexpr SteadyTime kStart = SteadyTime::FromNanoseconds(1'000'000'000);

struct Answers {
  std::vector<absl::StatusOr<std::string>> all;
  Rendezvous::Done Done() {
    return [this](absl::StatusOr<std::string> value) { all.push_back(std::move(value)); };
  }
};

TEST(Rendezvous, SetThenGetAndSetAgain) {
  Rendezvous rendezvous;
  Answers answers;
  EXPECT_TRUE(rendezvous.Set(kGeneration, "id", "x").ok());
  EXPECT_TRUE(rendezvous.Set(kGeneration, "id", "x").ok());
  EXPECT_EQ(rendezvous.Set(kGeneration, "id", "y").code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(rendezvous.Get(kGeneration, "id", kStart, kStart, answers.Done()), 0u);
  EXPECT_EQ(rendezvous.Get({JobId("a-1"), 4}, "id", kStart, kStart, answers.Done()), 0u);
  ASSERT_EQ(answers.all.size(), 2u);
  EXPECT_EQ(answers.all[0].value(), "x");
  EXPECT_EQ(answers.all[1].status().code(), absl::StatusCode::kNotFound);
}

TEST(Rendezvous, WaitsEndWithTheValueTheDeadlineTheGenerationOrTheCaller) {
  Rendezvous rendezvous;
  Answers set, late, ended, gone, other;
  rendezvous.Get(kGeneration, "set", kStart + absl::Seconds(1), kStart, set.Done());
  rendezvous.Get(kGeneration, "late", kStart + absl::Seconds(2), kStart, late.Done());
  rendezvous.Get(kGeneration, "never", kStart + absl::Seconds(9), kStart, ended.Done());
  const uint64_t wait = rendezvous.Get(kGeneration, "gone", kStart + absl::Seconds(9), kStart, gone.Done());
  rendezvous.Get({JobId("b-1"), 3}, "never", kStart + absl::Seconds(9), kStart, other.Done());
  EXPECT_EQ(rendezvous.NextDeadline(), kStart + absl::Seconds(1));
  EXPECT_TRUE(rendezvous.Set(kGeneration, "set", "value").ok());
  EXPECT_EQ(set.all.at(0).value(), "value");
  rendezvous.Expire(kStart + absl::Seconds(2));
  EXPECT_EQ(late.all.at(0).status().code(), absl::StatusCode::kDeadlineExceeded);
  rendezvous.Cancel(wait);
  rendezvous.Cancel(wait);
  EXPECT_EQ(gone.all.at(0).status().code(), absl::StatusCode::kCancelled);
  rendezvous.End(kGeneration);
  EXPECT_EQ(ended.all.at(0).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(other.all.empty());
  rendezvous.EndAll(absl::UnavailableError("bye"));
  EXPECT_EQ(other.all.at(0).status().code(), absl::StatusCode::kUnavailable);
  for (const Answers* answers : {&set, &late, &ended, &gone, &other}) EXPECT_EQ(answers->all.size(), 1u);
  EXPECT_EQ(rendezvous.NextDeadline(), std::nullopt);
}

TEST(Rendezvous, EndedGenerationLosesItsValues) {
  Rendezvous rendezvous;
  Answers answers;
  EXPECT_TRUE(rendezvous.Set(kGeneration, "id", "x").ok());
  rendezvous.End(kGeneration);
  rendezvous.Get(kGeneration, "id", kStart, kStart, answers.Done());
  EXPECT_EQ(answers.all.at(0).status().code(), absl::StatusCode::kNotFound);
}

TEST(Rendezvous, Limits) {
  Rendezvous rendezvous;
  Answers answers;
  EXPECT_EQ(rendezvous.Set(kGeneration, "", "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rendezvous.Set(kGeneration, std::string(257, 'n'), "x").code(), absl::StatusCode::kInvalidArgument);
  const std::string largest(Rendezvous::kMaxValueBytes, 'v');
  EXPECT_EQ(rendezvous.Set(kGeneration, "n", largest + "v").code(), absl::StatusCode::kResourceExhausted);
  int taken = 0;
  while (rendezvous.Set(kGeneration, absl::StrCat("name-", taken), largest).ok()) ++taken;
  EXPECT_EQ(taken, 255);  // 16 MiB, with names
  EXPECT_TRUE(rendezvous.Set({JobId("b-1"), 1}, "n", largest).ok());
  for (size_t i = 0; i < Rendezvous::kMaxWaits + 1; ++i) {
    rendezvous.Get(kGeneration, "never", kStart + absl::Seconds(1), kStart, answers.Done());
  }
  ASSERT_EQ(answers.all.size(), 1u);
  EXPECT_EQ(answers.all[0].status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Rendezvous, AnswerMayCallBack) {
  Rendezvous rendezvous;
  int calls = 0;
  for (int i = 0; i < 3; ++i) {
    rendezvous.Get(kGeneration, "a", kStart + absl::Seconds(1), kStart, [&](absl::StatusOr<std::string>) {
      ++calls;
      rendezvous.End(kGeneration);
    });
  }
  EXPECT_TRUE(rendezvous.Set(kGeneration, "a", "1").ok());
  EXPECT_EQ(calls, 3);
}

// A wait that a callback starts while its generation ends is finished by the next end of that generation, or at its
// deadline.
TEST(Rendezvous, AWaitFromAnAnswerOfAnEndedGenerationIsNotLost) {
  Rendezvous rendezvous;
  Answers late;
  rendezvous.Get(kGeneration, "a", kStart + absl::Seconds(1), kStart, [&](const absl::StatusOr<std::string>&) {
    rendezvous.Get(kGeneration, "b", kStart + absl::Seconds(2), kStart, late.Done());
  });
  rendezvous.End(kGeneration);
  rendezvous.Expire(kStart + absl::Seconds(2));
  ASSERT_EQ(late.all.size(), 1u);
  EXPECT_EQ(late.all[0].status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(rendezvous.NextDeadline(), std::nullopt);
}

}  // namespace
}  // namespace muster::server
