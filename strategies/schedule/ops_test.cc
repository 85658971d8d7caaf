#include "strategies/schedule/ops.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace muster {
namespace {

// What each op is, written down a second time: a row that changes must change here too.
TEST(Ops, TableIsTheExpectedOne) {
  constexpr GroupUse no_group = GroupUse::kNone, may = GroupUse::kOptional, must = GroupUse::kRequired;
  constexpr SlotPool no_slot = SlotPool::kNone;
  constexpr Pass no_pass = Pass::kNone;
  constexpr ParameterUse no_parameters = ParameterUse::kNone;
  constexpr GradientUse no_gradients = GradientUse::kNone;
  constexpr Payload nothing = Payload::kNone;
  constexpr MemoryTraffic none = MemoryTraffic::kNone;
  // clang-format off
  const std::vector<OpTraits> expected = {
      {OpKind::kGather, "Gather", Stream::kGather, OpScope::kUnits, may, SlotPool::kParameters, no_pass,
       ParameterUse::kGather, no_gradients, true, 0, Payload::kParameters, 0, none},
      {OpKind::kForward, "Forward", Stream::kCompute, OpScope::kMicrobatch, may, no_slot, Pass::kForward,
       ParameterUse::kRead, no_gradients, false, 1, nothing, 0, none},
      {OpKind::kBackward, "Backward", Stream::kCompute, OpScope::kMicrobatch, may, no_slot, Pass::kBackward,
       ParameterUse::kReadIfBackwardDoes, GradientUse::kAdd, false, 2, nothing, 0, none},
      {OpKind::kRecompute, "Recompute", Stream::kCompute, OpScope::kMicrobatch, may, no_slot, Pass::kRecompute,
       ParameterUse::kRead, no_gradients, false, 1, nothing, 0, none},
      {OpKind::kRelease, "Release", Stream::kCompute, OpScope::kUnits, no_group, no_slot, no_pass,
       ParameterUse::kRelease, no_gradients, true, 0, nothing, 0, none},
      {OpKind::kOpenGradients, "OpenGradients", Stream::kCompute, OpScope::kUnits, no_group, SlotPool::kGradients,
       no_pass, no_parameters, GradientUse::kOpen, false, 0, nothing, 0, MemoryTraffic::kUnitGradients},
      {OpKind::kReduce, "Reduce", Stream::kReduce, OpScope::kUnits, must, no_slot, no_pass,
       no_parameters, GradientUse::kReduce, false, 0, Payload::kGradients, 0, none},
      {OpKind::kAllReduce, "AllReduce", Stream::kReduce, OpScope::kUnits, must, no_slot, no_pass,
       no_parameters, GradientUse::kAllReduce, false, 0, Payload::kOwnedGradients, 0, none},
      {OpKind::kSendActivation, "SendActivation", Stream::kSendActivations, OpScope::kMicrobatch, must, no_slot,
       no_pass, no_parameters, no_gradients, false, 0, Payload::kActivations, 0, none, ScalarUse::kNone,
       InputUse::kNone, EdgeUse::kSendActivation},
      {OpKind::kReceiveActivation, "ReceiveActivation", Stream::kReceiveActivations, OpScope::kMicrobatch, must,
       SlotPool::kActivations, no_pass, no_parameters, no_gradients, false, 0, Payload::kActivations, 0, none,
       ScalarUse::kNone, InputUse::kNone, EdgeUse::kReceiveActivation},
      {OpKind::kOffload, "Offload", Stream::kTransfer, OpScope::kUnits, no_group, no_slot, no_pass,
       no_parameters, GradientUse::kOffload, false, 0, nothing, 0, MemoryTraffic::kHostGradients},
      {OpKind::kFetch, "Fetch", Stream::kFetch, OpScope::kUnits, no_group, SlotPool::kParameters, no_pass,
       ParameterUse::kFetch, no_gradients, true, 0, nothing, 0, MemoryTraffic::kHostParameters},
      {OpKind::kReduceScalars, "ReduceScalars", Stream::kReduce, OpScope::kStep, must, no_slot, no_pass,
       no_parameters, no_gradients, false, 0, nothing, 32, none, ScalarUse::kSum},
      {OpKind::kGradientNorm, "GradientNorm", Stream::kCompute, OpScope::kStep, may, no_slot, no_pass,
       no_parameters, GradientUse::kMeasure, false, 0, nothing, 8, MemoryTraffic::kOwnedGradients},
      {OpKind::kOptimizerStep, "OptimizerStep", Stream::kCompute, OpScope::kStep, no_group, no_slot, no_pass,
       no_parameters, GradientUse::kApply, false, 0, nothing, 0, MemoryTraffic::kOptimizerState, ScalarUse::kRead},
      {OpKind::kSnapshot, "Snapshot", Stream::kTransfer, OpScope::kStep, no_group, no_slot, no_pass,
       no_parameters, no_gradients, true, 0, nothing, 0, none},
      {OpKind::kOffloadInput, "OffloadInput", Stream::kTransfer, OpScope::kMicrobatch, no_group, SlotPool::kHostInputs,
       no_pass, no_parameters, no_gradients, false, 0, nothing, 0, MemoryTraffic::kHostInput, ScalarUse::kNone,
       InputUse::kOffload},
      {OpKind::kReleaseInput, "ReleaseInput", Stream::kCompute, OpScope::kMicrobatch, no_group, no_slot, no_pass,
       no_parameters, no_gradients, false, 0, nothing, 0, none, ScalarUse::kNone, InputUse::kRelease},
      {OpKind::kFetchInput, "FetchInput", Stream::kFetch, OpScope::kMicrobatch, no_group, SlotPool::kInputs,
       no_pass, no_parameters, no_gradients, false, 0, nothing, 0, MemoryTraffic::kHostInput, ScalarUse::kNone,
       InputUse::kFetch},
      {OpKind::kSendGradient, "SendGradient", Stream::kSendGradients, OpScope::kMicrobatch, must, no_slot, no_pass,
       no_parameters, no_gradients, false, 0, Payload::kActivations, 0, none, ScalarUse::kNone, InputUse::kNone,
       EdgeUse::kSendGradient},
      {OpKind::kReceiveGradient, "ReceiveGradient", Stream::kReceiveGradients, OpScope::kMicrobatch, must,
       SlotPool::kActivations, no_pass, no_parameters, no_gradients, false, 0, Payload::kActivations, 0, none,
       ScalarUse::kNone, InputUse::kNone, EdgeUse::kReceiveGradient},
      {OpKind::kSendTied, "SendTied", Stream::kSendActivations, OpScope::kUnits, must, no_slot, no_pass,
       ParameterUse::kSend, no_gradients, false, 0, Payload::kTied, 0, none, ScalarUse::kNone, InputUse::kNone,
       EdgeUse::kSendTied},
      {OpKind::kReceiveTied, "ReceiveTied", Stream::kReceiveActivations, OpScope::kUnits, must, no_slot, no_pass,
       no_parameters, no_gradients, false, 0, Payload::kTied, 0, none, ScalarUse::kNone, InputUse::kNone,
       EdgeUse::kReceiveTied},
      {OpKind::kSendTiedGradient, "SendTiedGradient", Stream::kSendGradients, OpScope::kUnits, must, no_slot, no_pass,
       no_parameters, no_gradients, false, 0, Payload::kTiedGradients, 0, none, ScalarUse::kNone, InputUse::kNone,
       EdgeUse::kSendTiedGradient},
      {OpKind::kReceiveTiedGradient, "ReceiveTiedGradient", Stream::kReceiveGradients, OpScope::kUnits, must, no_slot,
       no_pass, no_parameters, GradientUse::kAddTied, false, 0, Payload::kTiedGradients, 0, none, ScalarUse::kNone,
       InputUse::kNone, EdgeUse::kReceiveTiedGradient},
      {OpKind::kBackwardInputs, "BackwardInputs", Stream::kCompute, OpScope::kMicrobatch, may, no_slot,
       Pass::kBackwardInputs, ParameterUse::kReadIfBackwardDoes, no_gradients, false, 1, nothing, 0, none},
      {OpKind::kBackwardWeights, "BackwardWeights", Stream::kCompute, OpScope::kMicrobatch, no_group, no_slot,
       Pass::kBackwardWeights, no_parameters, GradientUse::kAdd, false, 1, nothing, 0, none},
      {OpKind::kGatherBetween, "GatherBetween", Stream::kGatherBetween, OpScope::kUnits, must, SlotPool::kParameters,
       no_pass, ParameterUse::kGatherBetween, no_gradients, true, 0, Payload::kParameters, 0, none},
      {OpKind::kReduceInside, "ReduceInside", Stream::kReduce, OpScope::kUnits, must, no_slot, no_pass,
       no_parameters, GradientUse::kReduceInside, false, 0, Payload::kGradients, 0, none},
      {OpKind::kScatterGradients, "ScatterGradients", Stream::kReduce, OpScope::kUnits, must, no_slot, no_pass,
       no_parameters, GradientUse::kScatter, false, 0, Payload::kGradientParts, 0, none},
      {OpKind::kGatherGradients, "GatherGradients", Stream::kGather, OpScope::kUnits, must, no_slot, no_pass,
       no_parameters, GradientUse::kGather, false, 0, Payload::kGradientParts, 0, none},
      {OpKind::kFinishSum, "FinishSum", Stream::kReduce, OpScope::kUnits, must, no_slot, no_pass,
       no_parameters, GradientUse::kFinishSum, false, 0, Payload::kOwnedGradients, 0, none},
  };
  // clang-format on
  ASSERT_EQ(kOpTable.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(kOpTable[i], expected[i]) << kOpTable[i].name;
}

// The numbers are in digests and on progress pages of running trainers: a kind keeps its own.
TEST(Ops, KindsKeepTheirNumbers) {
  EXPECT_EQ(static_cast<int>(OpKind::kGather), 0);
  EXPECT_EQ(static_cast<int>(OpKind::kBackward), 2);
  EXPECT_EQ(static_cast<int>(OpKind::kAllReduce), 7);
  EXPECT_EQ(static_cast<int>(OpKind::kSnapshot), 15);
  EXPECT_EQ(static_cast<int>(OpKind::kFetchInput), 18);
  EXPECT_EQ(static_cast<int>(OpKind::kGatherBetween), 27);
  EXPECT_EQ(static_cast<int>(OpKind::kFinishSum), 31);
}

TEST(Ops, NamesDiffer) {
  std::set<std::string> names;
  for (const OpTraits& op : kOpTable) EXPECT_TRUE(names.emplace(op.name).second) << op.name;
}

TEST(Ops, OnlyReductionsReduceGradients) {
  std::vector<OpKind> reductions;
  for (const OpTraits& op : kOpTable) {
    if (ReducesGradients(op.kind)) reductions.push_back(op.kind);
  }
  EXPECT_EQ(reductions, (std::vector<OpKind>{OpKind::kReduce, OpKind::kAllReduce}));
}

}  // namespace
}  // namespace muster
