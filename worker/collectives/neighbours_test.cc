// Meet: all ranks decide alike, whatever one of them finds.
#include "worker/collectives/neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/collectives/memory_key_value.h"

namespace muster::collectives {
namespace {

using ::testing::HasSubstr;
using Met = absl::StatusOr<std::unique_ptr<Neighbours>>;

// Alters what one rank publishes.
class Changed final : public KeyValue {
 public:
  Changed(KeyValue& values, std::function<std::string(const std::string&)> change)
      : values_(values), change_(std::move(change)) {}
  absl::Status Set(const std::string& name, const std::string& value) override {
    return values_.Set(name, absl::StrContains(name, "/offer") ? change_(value) : value);
  }
  absl::StatusOr<std::string> Wait(const std::string& name, absl::Duration timeout) override {
    return values_.Wait(name, timeout);
  }

 private:
  KeyValue& values_;
  const std::function<std::string(const std::string&)> change_;
};

// Three ranks; the offer of rank 1 is changed.
std::vector<Met> MeetWith(const std::function<std::string(const std::string&)>& change, bool willing = true) {
  MemoryKeyValue values;
  Changed changed(values, change);
  std::vector<Met> met(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      met[static_cast<size_t>(rank)] = Neighbours::Meet({.rank = rank,
                                                         .size = 3,
                                                         .name = "world",
                                                         .willing = willing || rank != 1,
                                                         .deadline = After(absl::Seconds(20))},
                                                        rank == 1 ? static_cast<KeyValue&>(changed) : values);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return met;
}

std::string Same(const std::string& offer) { return offer; }

TEST(Neighbours, ReadEachOther) {
  const std::vector<Met> met = MeetWith(Same);
  for (const Met& one : met) ASSERT_TRUE(one.ok()) << one.status();
  const std::string there = "what rank 2 has";
  std::string here(there.size(), ' ');
  ASSERT_TRUE((*met[0])->Read(2, reinterpret_cast<uint64_t>(there.data()), here.data(), here.size()).ok());
  EXPECT_EQ(here, there);
  EXPECT_EQ((*met[0])->Read(2, 16, here.data(), here.size()).code(), absl::StatusCode::kUnavailable);

  (*met[2])->own().Raise(&ControlPage::posted, 7);
  EXPECT_EQ((*met[0])->page(2).posted, 7u);
  EXPECT_EQ((*met[0])->page(1).posted, 0u);
  EXPECT_TRUE((*met[0])->Believe(2).ok());
  (*met[2])->own().Fail();
  EXPECT_THAT(std::string((*met[0])->Believe(2).message()), HasSubstr("rank 2 has aborted"));
  EXPECT_EQ((*met[1])->own().failed, 0u);
}

TEST(Neighbours, OneThatDeclinesDecidesForAll) {
  for (const Met& one : MeetWith(Same, false)) {
    EXPECT_EQ(one.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(one.status().message()), HasSubstr("rank 1: it is configured to use Gloo only"));
  }
}

TEST(Neighbours, AnotherMachineOrNamespaceIsNotTried) {
  for (const Met& one : MeetWith([](const std::string& offer) { return absl::StrCat("x", offer); })) {
    EXPECT_EQ(one.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(one.status().message()), HasSubstr("rank 1 is on another machine than rank 0"));
  }
}

// A process with a rank's pid in another namespace is not that rank.
TEST(Neighbours, AForeignProcessIsNotTheRank) {
  const auto other_nonce = [](const std::string& offer) {
    return absl::StrCat(offer.substr(0, offer.size() - 1), offer.back() == '1' ? "2" : "1");
  };
  for (const Met& one : MeetWith(other_nonce)) {
    EXPECT_EQ(one.status().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(std::string(one.status().message()), HasSubstr("is not rank 1"));
  }
}

TEST(Neighbours, AnOfferThatIsNotUnderstoodIsRefused) {
  for (const char* garbage : {"", "a b", "no ", "m 1 2 3 x"}) {
    for (const Met& one : MeetWith([&](const std::string&) { return garbage; })) {
      EXPECT_EQ(one.status().code(), absl::StatusCode::kFailedPrecondition) << garbage;
    }
  }
}

TEST(Neighbours, ARankThatDoesNotComeIsNamed) {
  MemoryKeyValue values;
  const Met met =
      Neighbours::Meet({.rank = 0, .size = 2, .name = "world", .deadline = After(absl::Milliseconds(50))}, values);
  EXPECT_EQ(met.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(met.status().message()), HasSubstr("rank 1 has not said"));
}

}  // namespace
}  // namespace muster::collectives
