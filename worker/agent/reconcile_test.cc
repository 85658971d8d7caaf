#include "worker/agent/reconcile.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

namespace muster::agent {
namespace {

constexpr Circumstances kFresh{true, false};
constexpr Circumstances kFromDisk{false, false};
constexpr Circumstances kDraining{true, true};

RankId Id(uint32_t rank) { return {JobId("a"), 1, rank}; }

enum class Want { kAbsent, kRun, kStop };
enum class Here { kAbsent, kAlive, kStopping, kBeingKilled, kEnded, kStuck };

Desired Wanted(std::vector<Want> wants) {
  Desired desired;
  for (size_t i = 0; i < wants.size(); ++i) {
    if (wants[i] == Want::kAbsent) continue;
    DesiredRank& rank = *desired.add_ranks();
    *rank.mutable_key() = KeyOf(Id(static_cast<uint32_t>(i)));
    if (wants[i] == Want::kRun) rank.mutable_run();
    if (wants[i] == Want::kStop) rank.mutable_stop();
  }
  return desired;
}

std::vector<LocalRank> Local(std::vector<Here> here) {
  std::vector<LocalRank> local;
  for (size_t i = 0; i < here.size(); ++i) {
    const RankId id = Id(static_cast<uint32_t>(i));
    if (here[i] == Here::kAlive) local.push_back({id, false, Termination::kNone});
    if (here[i] == Here::kStopping) local.push_back({id, false, Termination::kStop});
    if (here[i] == Here::kBeingKilled) local.push_back({id, false, Termination::kKill});
    if (here[i] == Here::kEnded) local.push_back({id, true, Termination::kNone});
    if (here[i] == Here::kStuck) local.push_back({id, true, Termination::kKill, std::vector<uint32_t>(), true});
  }
  return local;
}

struct Case {
  Want want;
  Here here;
  std::vector<Operation::Kind> fresh, from_disk, draining;
};

TEST(Reconcile, Table) {
  using enum Operation::Kind;
  const Case cases[] = {
      {Want::kRun, Here::kAbsent, {kStart}, {}, {}},
      {Want::kRun, Here::kAlive, {}, {}, {kStop}},
      {Want::kRun, Here::kStopping, {}, {}, {}},
      {Want::kRun, Here::kBeingKilled, {}, {}, {}},
      {Want::kRun, Here::kEnded, {}, {}, {}},  // reported, never started again
      {Want::kRun, Here::kStuck, {}, {}, {}},
      {Want::kAbsent, Here::kStuck, {}, {}, {}},  // finished once its processes are gone
      {Want::kStop, Here::kStuck, {}, {}, {}},
      {Want::kStop, Here::kAbsent, {}, {}, {}},
      {Want::kStop, Here::kAlive, {kStop}, {kStop}, {kStop}},
      {Want::kStop, Here::kStopping, {}, {}, {}},
      {Want::kStop, Here::kBeingKilled, {}, {}, {}},
      {Want::kStop, Here::kEnded, {}, {}, {}},
      {Want::kAbsent, Here::kAbsent, {}, {}, {}},
      {Want::kAbsent, Here::kAlive, {kKill}, {}, {kKill}},
      {Want::kAbsent, Here::kStopping, {kKill}, {}, {kKill}},
      {Want::kAbsent, Here::kBeingKilled, {}, {}, {}},
      {Want::kAbsent, Here::kEnded, {kFinish}, {}, {kFinish}},
  };
  for (const Case& c : cases) {
    const auto check = [&c](const Circumstances& circumstances, const std::vector<Operation::Kind>& expected) {
      std::vector<Operation> operations;
      for (const Operation::Kind kind : expected) operations.push_back({kind, Id(0)});
      EXPECT_EQ(Reconcile(Wanted({c.want}), Local({c.here}), circumstances), operations)
          << "want " << static_cast<int>(c.want) << ", here " << static_cast<int>(c.here) << ", fresh "
          << circumstances.fresh << ", draining " << circumstances.draining;
    };
    check(kFresh, c.fresh);
    check(kFromDisk, c.from_disk);
    check(kDraining, c.draining);
  }
}

TEST(Reconcile, FreesSlotsBeforeItTakesThem) {
  using enum Operation::Kind;
  EXPECT_EQ(Reconcile(Wanted({Want::kRun, Want::kAbsent, Want::kRun}), Local({Here::kAbsent, Here::kAlive}), kFresh),
            (std::vector<Operation>{{kKill, Id(1)}, {kStart, Id(0)}, {kStart, Id(2)}}));
}

// Found by the simulation (coordinator/simulate, seed 29): a node returned, and its slot was given to another job while
// the rank of the lost generation was still being killed.
TEST(Reconcile, ARankWaitsForItsSlot) {
  using enum Operation::Kind;
  Desired desired = Wanted({Want::kRun});
  desired.mutable_ranks(0)->mutable_run()->add_slots(3);
  LocalRank old{Id(1), false, Termination::kNone, {{2, 3}}};
  EXPECT_EQ(Reconcile(desired, {old}, kFresh), (std::vector<Operation>{{kKill, Id(1)}}));
  old.termination = Termination::kKill;
  EXPECT_TRUE(Reconcile(desired, {old}, kFresh).empty());
  old.slots = {2};  // another's slot does not matter
  EXPECT_EQ(Reconcile(desired, {old}, kFresh), (std::vector<Operation>{{kStart, Id(0)}}));
  old.slots.reset();  // an earlier daemon started it on unknown slots
  EXPECT_TRUE(Reconcile(desired, {old}, kFresh).empty());
  old.ended = true;
  EXPECT_EQ(Reconcile(desired, {old}, kFresh), (std::vector<Operation>{{kFinish, Id(1)}, {kStart, Id(0)}}));
}

// The daemon as Reconcile sees it.
void Apply(const std::vector<Operation>& operations, std::vector<LocalRank>& local) {
  for (const Operation& operation : operations) {
    const auto found = std::find_if(local.begin(), local.end(),
                                    [&operation](const LocalRank& here) { return here.rank == operation.rank; });
    if (operation.kind == Operation::kStart) {
      RC_ASSERT(found == local.end());
      local.push_back({operation.rank, false, Termination::kNone});
      continue;
    }
    RC_ASSERT(found != local.end());
    if (operation.kind == Operation::kStop) found->termination = Termination::kStop;
    if (operation.kind == Operation::kKill) found->termination = Termination::kKill;
    if (operation.kind == Operation::kFinish) {
      RC_ASSERT(found->ended);
      local.erase(found);
    }
  }
}

TEST(Reconcile, CarriedOutLeavesNothingToDo) {
  EXPECT_TRUE(rc::check([] {
    const auto wants =
        *rc::gen::container<std::vector<Want>>(8, rc::gen::element(Want::kAbsent, Want::kRun, Want::kStop));
    const auto here = *rc::gen::container<std::vector<Here>>(
        8, rc::gen::element(Here::kAbsent, Here::kAlive, Here::kStopping, Here::kBeingKilled, Here::kEnded));
    const Circumstances circumstances{*rc::gen::arbitrary<bool>(), *rc::gen::arbitrary<bool>()};
    std::vector<LocalRank> local = Local(here);
    Apply(Reconcile(Wanted(wants), local, circumstances), local);
    RC_ASSERT(Reconcile(Wanted(wants), local, circumstances).empty());
  }));
}

}  // namespace
}  // namespace muster::agent
