#include "coordinator/spec/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/spec/good_spec_test.h"
#include "models/custom/custom.h"
#include "models/inventory_build.h"
#include "models/task.h"

namespace muster::spec {
namespace {

using ::testing::HasSubstr;

std::string Text(const std::vector<SpecError>& errors) {
  std::string text;
  for (const SpecError& e : errors) absl::StrAppend(&text, e.path(), ": ", e.message(), "\n");
  return text;
}

TEST(Resolve, FillsInDefaults) {
  JobSpec spec = Good();
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_EQ(spec.resources().ranks(), 1u);
  EXPECT_EQ(spec.max_restarts(), 3u);
  EXPECT_EQ(spec.train().batch().microbatch(), 8u);
  EXPECT_TRUE(spec.train().strategy().has_single());
  EXPECT_DOUBLE_EQ(spec.train().optimizer().lr(), 3e-4);
  EXPECT_DOUBLE_EQ(spec.train().optimizer().adamw().beta2(), 0.999);
  EXPECT_EQ(spec.train().data().order(), DATA_ORDER_SHUFFLED);
  EXPECT_EQ(spec.train().model().gpt2().width(), 128u);
  EXPECT_EQ(spec.train().seed(), 1u);
  EXPECT_TRUE(spec.train().deterministic());
  EXPECT_FALSE(spec.train().cuda_graphs());
  EXPECT_EQ(spec.train().communication().hierarchy(), HIERARCHY_NEVER);
  EXPECT_TRUE(spec.train().communication().compression().has_none());
}

JobSpec Compressing(const std::function<void(Train&, Compression&)>& change) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(4);
  change(*spec.mutable_train(), *spec.mutable_train()->mutable_communication()->mutable_compression());
  return spec;
}

TEST(Resolve, CompressionHasDefaults) {
  JobSpec spec = Compressing([](Train&, Compression& c) { c.mutable_top_k(); });
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  const TopK& adamw = spec.train().communication().compression().top_k();
  EXPECT_EQ(adamw.ratio(), 0.01);
  EXPECT_EQ(adamw.selection(), SELECTION_EXACT);
  EXPECT_EQ(adamw.values(), SENT_VALUES_BF16);
  EXPECT_FALSE(adamw.momentum_correction()) << "adamw";
  EXPECT_EQ(spec.train().optimizer().clip_norm(), 0);
  const auto sgd = [](Train& train, Compression& c) {
    train.mutable_optimizer()->mutable_sgd();
    c.mutable_top_k();
  };
  spec = Compressing(sgd);
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_TRUE(spec.train().communication().compression().top_k().momentum_correction());
  spec = Compressing(sgd);
  spec.mutable_train()->mutable_optimizer()->set_weight_decay(0.1);
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_FALSE(spec.train().communication().compression().top_k().momentum_correction());
  spec = Compressing([](Train& train, Compression& c) {
    c.mutable_power_sgd();
    train.mutable_communication()->set_hierarchy(HIERARCHY_AUTO);
  });
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_EQ(spec.train().communication().compression().power_sgd().rank(), 4u);
  EXPECT_EQ(spec.train().communication().hierarchy(), HIERARCHY_AUTO);
  spec = Compressing([](Train& train, Compression& c) {
    c.mutable_power_sgd();
    train.mutable_communication()->set_hierarchy(HIERARCHY_ALWAYS);
    train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_HYBRID);
  });
  EXPECT_EQ(Text(Resolve({}, spec)), "") << "of the rows that a rank sums";
  spec = Compressing([](Train&, Compression& c) { c.mutable_int8(); });
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_EQ(spec.train().communication().compression().int8().block(), 256u);
}

TEST(Resolve, AnAxisWaitsLongerThanAHangIsUndetected) {
  const auto errors = [](double seconds, double detection) {
    JobSpec spec = Good();
    if (detection > 0) spec.set_detection_seconds(detection);
    spec.mutable_train()->mutable_communication()->mutable_timeout_seconds()->set_tensor(seconds);
    return Text(Resolve({}, spec));
  };
  EXPECT_EQ(errors(40, 0), "");
  EXPECT_EQ(errors(86400, 0), "");
  EXPECT_EQ(errors(240, 60), "");
  EXPECT_THAT(errors(39.9, 0), HasSubstr("communication.timeout_seconds.tensor: must be 40 (a hung rank is detected "
                                         "after 30s) to 86400, got 39.9"));
  EXPECT_THAT(errors(239, 60), HasSubstr("must be 240 (a hung rank is detected after 3m) to 86400, got 239"));
  EXPECT_THAT(errors(86401, 0), HasSubstr("got 86401"));
  EXPECT_THAT(errors(std::nan(""), 0), HasSubstr("got nan"));
}

TEST(Resolve, RefusesWhatCompressionCannotDo) {
  const auto errors = [](const std::function<void(Train&, Compression&)>& change) {
    JobSpec spec = Compressing(change);
    return Text(Resolve({}, spec));
  };
  const auto top_k = [&](const std::function<void(Train&, TopK&)>& change) {
    return errors([&](Train& train, Compression& c) { change(train, *c.mutable_top_k()); });
  };
  EXPECT_THAT(top_k([](Train&, TopK& k) { k.set_ratio(0.5); }),
              HasSubstr("communication.compression.ratio: must be at least 0.001 and at most 0.1, got 0.5"));
  EXPECT_THAT(top_k([](Train&, TopK& k) { k.set_momentum_correction(true); }),
              HasSubstr("momentum_correction: needs optimizer: {kind: sgd} with a momentum"));
  EXPECT_THAT(top_k([](Train& train, TopK& k) {
                train.mutable_optimizer()->mutable_sgd();
                train.mutable_optimizer()->set_weight_decay(0.1);
                k.set_momentum_correction(true);
              }),
              HasSubstr("momentum_correction: not supported with optimizer.weight_decay yet"));
  EXPECT_THAT(top_k([](Train& train, TopK&) { train.mutable_strategy()->mutable_zero(); }),
              HasSubstr("communication.compression: compresses sums of gradients over replicas, and zero has none"));
  EXPECT_THAT(top_k([](Train& train, TopK&) { train.mutable_precision()->set_compute(DTYPE_FP16); }),
              HasSubstr("precision.compute: compression keeps gradients over steps"));
  EXPECT_THAT(top_k([](Train& train, TopK&) { train.mutable_precision()->set_reduce(DTYPE_BF16); }),
              HasSubstr("precision.reduce: must be fp32 with compression"));
  EXPECT_THAT(top_k([](Train& train, TopK&) { train.mutable_offload()->set_optimizer(true); }),
              HasSubstr("offload.optimizer: not supported with compression yet"));
  EXPECT_THAT(top_k([](Train& train, TopK&) { train.mutable_parallel()->set_tensor(2); }),
              HasSubstr("communication.compression: not supported with parallel.tensor yet"));
  EXPECT_THAT(top_k([](Train& train, TopK&) { train.set_cuda_graphs(true); }),
              HasSubstr("cuda_graphs: not supported with communication.compression yet"));
  EXPECT_THAT(errors([](Train&, Compression& c) { c.mutable_power_sgd()->set_rank(65); }),
              HasSubstr("communication.compression.rank: must be at least 1 and at most 64, got 65"));
  EXPECT_THAT(errors([](Train&, Compression& c) { c.mutable_int8()->set_block(50); }),
              HasSubstr("communication.compression.block: must be a multiple of 4, got 50"));
}

TEST(Resolve, LionKeepsAdamWsProductOfRateAndDecay) {
  JobSpec spec = Good();
  spec.mutable_train()->mutable_optimizer()->mutable_lion();
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  const Optimizer& optimizer = spec.train().optimizer();
  EXPECT_DOUBLE_EQ(optimizer.lion().beta1(), 0.9);
  EXPECT_DOUBLE_EQ(optimizer.lion().beta2(), 0.99);
  EXPECT_DOUBLE_EQ(optimizer.lr(), 1e-4);
  EXPECT_DOUBLE_EQ(optimizer.lr() * optimizer.weight_decay(), 3e-4 * 0.1);
}

TEST(Resolve, ACosineEndsAtATenthAsUsersWriteIt) {
  for (const auto& [lr, tenth] :
       {std::pair(0.003, 0.0003), std::pair(3e-4, 3e-5), std::pair(0.1, 0.01), std::pair(0.7, 0.07)}) {
    JobSpec spec = Good();
    spec.mutable_train()->mutable_optimizer()->set_lr(lr);
    spec.mutable_train()->mutable_optimizer()->mutable_lr_schedule()->mutable_cosine();
    ASSERT_EQ(Text(Resolve({}, spec)), "");
    EXPECT_EQ(spec.train().optimizer().lr_schedule().cosine().min_lr(), tenth);
  }
}

// torch.optim.Muon's defaults, and those of our AdamW.
TEST(Resolve, MuonHasTorchsDefaults) {
  JobSpec spec = Good();
  spec.mutable_train()->mutable_optimizer()->mutable_muon();
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  const Optimizer& optimizer = spec.train().optimizer();
  EXPECT_DOUBLE_EQ(optimizer.lr(), 1e-3);
  EXPECT_DOUBLE_EQ(optimizer.weight_decay(), 0.1);
  EXPECT_DOUBLE_EQ(optimizer.muon().momentum(), 0.95);
  EXPECT_TRUE(optimizer.muon().nesterov());
  EXPECT_EQ(optimizer.muon().ns_steps(), 5u);
  EXPECT_EQ(optimizer.muon().adjust_lr_fn(), ADJUST_LR_FN_ORIGINAL);
  EXPECT_DOUBLE_EQ(optimizer.muon().adamw_lr(), 3e-4);
  EXPECT_DOUBLE_EQ(optimizer.muon().adamw_beta2(), 0.999);
  EXPECT_DOUBLE_EQ(optimizer.muon().adamw_weight_decay(), 0.1);
}

TEST(Resolve, AdafactorHasTorchsDefaults) {
  JobSpec spec = Good();
  spec.mutable_train()->mutable_optimizer()->mutable_adafactor();
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  const Optimizer& optimizer = spec.train().optimizer();
  EXPECT_DOUBLE_EQ(optimizer.lr(), 1e-2);
  EXPECT_DOUBLE_EQ(optimizer.weight_decay(), 0);
  EXPECT_DOUBLE_EQ(optimizer.adafactor().beta2_decay(), -0.8);
  EXPECT_DOUBLE_EQ(optimizer.adafactor().eps1(), 0x1p-23) << "torch.finfo(torch.float32).eps";
  EXPECT_DOUBLE_EQ(optimizer.adafactor().eps2(), 1e-3);
  EXPECT_DOUBLE_EQ(optimizer.adafactor().d(), 1);
}

// Of fsdp, too, whose placement is even otherwise; one that cuts is refused where it would.
TEST(Resolve, WholeTensorsForOptimizersThatUpdateThem) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(2);
  Train& train = *spec.mutable_train();
  train.mutable_strategy()->mutable_fsdp();
  JobSpec adamw = spec;
  ASSERT_EQ(Text(Resolve({}, adamw)), "");
  EXPECT_EQ(adamw.train().strategy().fsdp().placement(), PLACEMENT_EVEN);
  train.mutable_optimizer()->mutable_adafactor();
  JobSpec adafactor = spec;
  ASSERT_EQ(Text(Resolve({}, adafactor)), "");
  EXPECT_EQ(adafactor.train().strategy().fsdp().placement(), PLACEMENT_WHOLE);
  train.mutable_optimizer()->mutable_muon();
  JobSpec muon = spec;
  ASSERT_EQ(Text(Resolve({}, muon)), "");
  EXPECT_EQ(muon.train().strategy().fsdp().placement(), PLACEMENT_WHOLE);
  for (const Placement placement : {PLACEMENT_EVEN, PLACEMENT_ROWS, PLACEMENT_RAGGED}) {
    for (const bool zero : {false, true}) {
      JobSpec cut = spec;
      Strategy& strategy = *cut.mutable_train()->mutable_strategy();
      if (zero) {
        strategy.mutable_zero()->set_placement(placement);
      } else {
        strategy.mutable_fsdp()->set_placement(placement);
      }
      const std::vector<SpecError> errors = Resolve({}, cut);
      ASSERT_EQ(errors.size(), 1u) << Text(errors);
      EXPECT_EQ(errors[0].path(), "strategy.placement");
      EXPECT_TRUE(absl::StrContains(errors[0].message(), "say placement: whole")) << errors[0].message();
      EXPECT_EQ(errors[0].suggestion(), "whole");
    }
  }
  train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_EVEN);
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_NO_SHARD);
  EXPECT_EQ(Text(Resolve({}, spec)), "") << "nothing is cut";
}

TEST(Resolve, DeterministicStaysAsWritten) {
  JobSpec spec = Good();
  spec.mutable_train()->set_deterministic(false);
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_TRUE(spec.train().has_deterministic());
  EXPECT_FALSE(spec.train().deterministic());
}

TEST(Resolve, CudaGraphsCoverWhatReadsItsNumbersOnTheDevice) {
  const auto text = [](const std::function<void(Train&)>& choose) {
    JobSpec spec = Good();
    spec.mutable_train()->set_cuda_graphs(true);
    choose(*spec.mutable_train());
    return Text(Resolve({}, spec));
  };
  EXPECT_EQ(text([](Train&) {}), "");
  EXPECT_EQ(text([](Train& train) { train.mutable_optimizer()->mutable_sgd(); }), "");
  EXPECT_THAT(text([](Train& train) { train.mutable_optimizer()->mutable_lion(); }),
              testing::HasSubstr("cuda_graphs: not supported with optimizers other than adamw and sgd yet"));
  EXPECT_THAT(text([](Train& train) { train.mutable_offload()->set_optimizer(true); }),
              testing::HasSubstr("cuda_graphs: not supported with offload yet"));
}

// Paths of the optional fields that a message lets open, in all messages that it has.
void CollectOpen(const google::protobuf::Message& message, const std::string& path, std::set<std::string>& open) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const std::string name = path + field.name();
    if (field.cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE && !field.is_repeated()) {
      if (reflection.HasField(message, &field)) CollectOpen(reflection.GetMessage(message, &field), name + ".", open);
    } else if (field.has_presence() && !reflection.HasField(message, &field)) {
      open.insert(name);
    }
  }
}

TEST(Resolve, APipelineHasItsOwnDefaults) {
  JobSpec spec = Good();
  Staged(spec, 8, 2);
  Train& train = *spec.mutable_train();
  train.mutable_strategy()->mutable_fsdp();
  train.mutable_batch()->set_sequences(128);
  JobSpec resolved = spec;
  ASSERT_EQ(Text(Resolve({}, resolved)), "");
  EXPECT_EQ(resolved.train().pipeline().schedule(), PIPELINE_SCHEDULE_1F1B);
  EXPECT_FALSE(resolved.train().pipeline().has_chunks());
  EXPECT_EQ(resolved.train().batch().microbatch(), 4u) << "eight microbatches of 32 sequences: four times the stages";
  EXPECT_EQ(resolved.train().strategy().fsdp().reshard(), RESHARD_SHARD_GRAD_OP) << "as TorchTitan";
  JobSpec again = resolved;
  ASSERT_EQ(Text(Resolve({}, again)), "");
  EXPECT_EQ(again.SerializeAsString(), resolved.SerializeAsString());
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_INTERLEAVED);
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_EQ(train.strategy().fsdp().reshard(), RESHARD_FULL_SHARD) << "what a spec says stays";
  EXPECT_EQ(train.pipeline().chunks(), 2u);
  // On one rank a stage there is nothing to divide.
  JobSpec alone = Good();
  Staged(alone, 2, 2);
  ASSERT_EQ(Text(Resolve({}, alone)), "");
  EXPECT_TRUE(alone.train().strategy().has_single());
  // One stage is no pipeline, and needs no order.
  JobSpec one = Good();
  one.mutable_train()->mutable_parallel();
  ASSERT_EQ(Text(Resolve({}, one)), "");
  EXPECT_EQ(one.train().parallel().pipeline(), 1u);
  EXPECT_FALSE(one.train().has_pipeline());
}

TEST(Resolve, ParallelAutoLeavesTheMixOpen) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(6);
  spec.mutable_resources()->set_min_ranks(5);
  spec.mutable_train()->mutable_checkpoint()->set_path("/c");
  spec.mutable_train()->mutable_parallel()->set_auto_(true);
  spec.mutable_train()->mutable_batch()->set_sequences(128);
  JobSpec given = spec;
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_TRUE(spec.train().strategy().has_auto_());
  EXPECT_FALSE(spec.train().parallel().has_pipeline());
  EXPECT_FALSE(spec.train().batch().has_microbatch());
  JobSpec again = spec;
  ASSERT_EQ(Text(Resolve({}, again)), "");
  EXPECT_EQ(again.SerializeAsString(), spec.SerializeAsString());
  given.mutable_train()->mutable_batch()->set_microbatch(3);
  ASSERT_EQ(Text(Resolve({}, given)), "");
  EXPECT_EQ(given.train().batch().microbatch(), 3u);
}

void Divided(JobSpec& spec, uint32_t ranks) { spec.mutable_train()->mutable_parallel()->set_tensor(ranks); }

TEST(Resolve, TensorRanksDivideRanksAndModel) {
  JobSpec spec = Good();
  Staged(spec, 8, 2), Divided(spec, 2);
  spec.mutable_train()->mutable_parallel()->set_sequence_parallel(true);
  EXPECT_EQ(Text(Resolve({}, spec)), "");
}

// Of the tiny models, whose context is 128.
TEST(Resolve, ContextRanksShareSequences) {
  const auto resolved = [](uint32_t context, uint32_t tensor) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_ranks(8);
    spec.mutable_train()->mutable_batch()->set_sequences(16);
    if (context > 0) spec.mutable_train()->mutable_parallel()->set_context(context);
    if (tensor > 0) Divided(spec, tensor);
    EXPECT_EQ(Text(Resolve({}, spec)), "");
    EXPECT_TRUE(spec.train().strategy().has_ddp()) << "8 ranks have gradients to sum, whatever they share";
    return spec.train();
  };
  EXPECT_FALSE(resolved(0, 0).has_parallel());
  EXPECT_EQ(resolved(0, 1).parallel().context(), 1u);
  EXPECT_EQ(resolved(1, 0).batch().microbatch(), 2u) << "16 sequences over 8 ranks";
  EXPECT_EQ(resolved(4, 0).batch().microbatch(), 8u) << "over 2 groups of 4";
  EXPECT_EQ(resolved(8, 0).batch().microbatch(), 16u);
  EXPECT_EQ(resolved(2, 2).batch().microbatch(), 8u);
}

TEST(Resolve, RefusesWhatContextRanksCannotDivide) {
  const auto errors = [](uint32_t ranks, uint32_t context, const std::function<void(JobSpec&)>& change) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_train()->mutable_parallel()->set_context(context);
    change(spec);
    return Text(Resolve({}, spec));
  };
  const auto nothing = [](JobSpec&) {};
  const auto with_min = [](uint32_t least, uint32_t tensor) {
    return [=](JobSpec& spec) {
      spec.mutable_resources()->set_min_ranks(least);
      spec.mutable_train()->mutable_checkpoint()->set_path("/c");
      if (tensor > 1) Divided(spec, tensor);
    };
  };
  EXPECT_EQ(errors(2, 0, nothing), "parallel.context: must be 1 to 64, got 0\n");
  EXPECT_EQ(errors(65, 65, nothing), "parallel.context: must be 1 to 64, got 65\n");
  EXPECT_EQ(errors(6, 4, nothing),
            "parallel.context: resources.ranks must be a multiple of parallel.context 4, got 6\n");
  EXPECT_EQ(
      errors(12, 4, [](JobSpec& spec) { Divided(spec, 2); }),
      "parallel.context: resources.ranks must be a multiple of parallel.tensor times parallel.context 8, got 12\n");
  EXPECT_EQ(errors(12, 4, [](JobSpec& spec) { Staged(spec, 12, 2), Divided(spec, 2); }),
            "parallel.context: resources.ranks must be a multiple of parallel.pipeline times parallel.tensor times "
            "parallel.context 16, got 12\n")
      << "each of 2 stages has 3 groups of 2 tensor ranks";
  EXPECT_EQ(errors(3, 2, [](JobSpec& spec) { Divided(spec, 2); }),
            "parallel.tensor: 2 ranks for each unit do not divide resources.ranks 3\n")
      << "one error, not two";
  EXPECT_EQ(
      errors(8, 2, with_min(3, 1)),
      "resources.min_ranks: must be a multiple of parallel.context 2: a job with fewer ranks keeps these, and has "
      "fewer shards or replicas; got 3\n");
  EXPECT_EQ(errors(8, 2, with_min(6, 2)),
            "resources.min_ranks: must be a multiple of parallel.tensor times parallel.context 4: a job with fewer "
            "ranks keeps these, and has fewer shards or replicas; got 6\n");
  EXPECT_EQ(errors(8, 2, with_min(4, 2)), "");
  EXPECT_EQ(errors(4, 2, [](JobSpec& spec) { spec.mutable_train()->mutable_dropout()->set_attention(0.1); }), "");
  EXPECT_EQ(errors(4, 2, [](JobSpec& spec) { spec.mutable_train()->mutable_parallel()->set_auto_(true); }),
            "parallel: auto chooses the number of stages: leave the other fields out, or auto\n");
  EXPECT_EQ(errors(8, 4,
                   [](JobSpec& spec) {
                     spec.mutable_train()->mutable_batch()->set_sequences(6);
                     spec.mutable_train()->mutable_batch()->set_microbatch(4);
                   }),
            "batch.microbatch: a rank has 3 sequences of a step (batch.sequences 6 over 2 groups of ranks), got 4\n");
  EXPECT_EQ(errors(2, 2, [](JobSpec& spec) { spec.mutable_train()->mutable_strategy()->mutable_single(); }),
            "strategy.kind: single runs on one rank, resources.ranks gives 2; ddp and fsdp run on several\n");
}

TEST(Resolve, RefusesContextRanksThatTheModelDoesNotHave) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_train()->mutable_parallel()->set_context(4);
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_context(124);
  EXPECT_EQ(Text(Resolve({}, spec)),
            "parallel.context: context: 124 tokens are not a multiple of 8, because each rank has two runs of them\n");
  spec = Good();
  spec.mutable_resources()->set_ranks(4);
  spec.mutable_train()->mutable_parallel()->set_context(2);
  spec.mutable_train()->mutable_data()->clear_tokens();
  spec.mutable_train()->mutable_data()->set_images("/i.bin");
  spec.mutable_train()->mutable_model()->mutable_resnet()->set_depth(20);
  EXPECT_EQ(Text(Resolve({}, spec)),
            "parallel.context: models of family resnet do not divide sequences; use more shards or stages\n");
}

CollectiveBench Measurements() {
  CollectiveBench bench;
  bench.add_collectives(COLLECTIVE_ALL_REDUCE);
  bench.add_collectives(COLLECTIVE_BROADCAST);
  bench.add_modes(COLLECTIVE_MODE_FLAT);
  for (const uint64_t bytes : {8, 1024, 1 << 20}) bench.add_bytes(bytes);
  return bench;
}

TEST(Resolve, AJobThatMeasuresCollectivesHasAStepForEachMeasurement) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_train()->clear_checkpoint();
  spec.mutable_train()->clear_steps();
  *spec.mutable_train()->mutable_bench() = Measurements();
  EXPECT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_EQ(spec.train().steps(), 2u * 1 * 3);
  EXPECT_EQ(spec.train().bench().longest_seconds(), 10);
}

TEST(Resolve, RefusesWrongMeasurements) {
  const auto errors = [](uint32_t ranks, const std::function<void(Train&)>& change) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_train()->clear_checkpoint();
    *spec.mutable_train()->mutable_bench() = Measurements();
    change(*spec.mutable_train());
    return Text(Resolve({}, spec));
  };
  EXPECT_THAT(errors(1, [](Train&) {}),
              HasSubstr("resources.ranks: collectives need at least 2 ranks to measure, got 1"));
  EXPECT_THAT(errors(2, [](Train& train) { train.mutable_bench()->add_bytes(4); }),
              HasSubstr("bench.bytes[3]: must be above the one before, 1048576, got 4"));
  EXPECT_THAT(errors(2, [](Train& train) { train.mutable_bench()->set_bytes(0, 0); }),
              HasSubstr("bench.bytes[0]: must be 1 to 17179869184, got 0"));
  EXPECT_THAT(errors(2, [](Train& train) { train.mutable_bench()->clear_collectives(); }),
              HasSubstr("bench.collectives: missing"));
  EXPECT_THAT(errors(2, [](Train& train) { train.mutable_bench()->set_bucket_bytes(0); }),
              HasSubstr("bench.bucket_bytes: must be at least 1, got 0"));
  EXPECT_THAT(errors(2, [](Train& train) { train.mutable_checkpoint()->set_path("/c"); }),
              HasSubstr("checkpoint.path: a job that measures collectives trains nothing to save"));
}

TEST(Resolve, StrategyAutoLeavesTheMixOpenWhereParallelIsLeftOut) {
  const auto resolved = [](uint32_t ranks, const std::function<void(Train&)>& change) {
    JobSpec spec = Good();
    spec.mutable_resources()->set_ranks(ranks);
    spec.mutable_train()->mutable_strategy()->mutable_auto_();
    spec.mutable_train()->mutable_batch()->set_sequences(32);
    change(*spec.mutable_train());
    EXPECT_EQ(Text(Resolve({}, spec)), "");
    JobSpec again = spec;
    EXPECT_EQ(Text(Resolve({}, again)), "");
    EXPECT_EQ(again.SerializeAsString(), spec.SerializeAsString());
    return spec.train();
  };
  for (const uint32_t ranks : {1u, 4u}) {
    const Train open = resolved(ranks, [](Train&) {});
    EXPECT_TRUE(open.parallel().auto_());
    EXPECT_FALSE(open.parallel().has_pipeline());
    EXPECT_FALSE(open.batch().has_microbatch());
  }
  const Train given = resolved(4, [](Train& train) { train.mutable_parallel()->set_pipeline(1); });
  EXPECT_FALSE(given.parallel().auto_());
  EXPECT_EQ(given.parallel().tensor(), 1u);
  EXPECT_EQ(given.batch().microbatch(), 8u);
  // The statistics of batch normalization are those of a microbatch, so it is the default, whatever is chosen.
  const auto images = [](Train& train) {
    train.mutable_model()->mutable_resnet()->set_depth(20);
    train.mutable_data()->clear_tokens();
    train.mutable_data()->set_images("/images.bin");
  };
  const Train normalized = resolved(4, images);
  EXPECT_TRUE(normalized.parallel().auto_());
  EXPECT_EQ(normalized.batch().microbatch(), 8u);
  const Train of_two = resolved(4, [&](Train& train) {
    images(train);
    train.mutable_parallel()->set_auto_(true);
    train.mutable_batch()->set_microbatch(2);
  });
  EXPECT_EQ(of_two.batch().microbatch(), 2u);
  // What is measured are the sums of strategies, and what says how ranks divide the model needs more than a strategy.
  const Train bench = resolved(4, [](Train& train) { *train.mutable_bench() = Measurements(); });
  EXPECT_FALSE(bench.parallel().auto_());
  JobSpec pipeline = Good();
  pipeline.mutable_resources()->set_ranks(4);
  pipeline.mutable_train()->mutable_strategy()->mutable_auto_();
  pipeline.mutable_train()->mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
  EXPECT_THAT(Text(Resolve({}, pipeline)), HasSubstr("pipeline: needs parallel: {pipeline: N}"));
  JobSpec sync = Good();
  sync.mutable_train()->mutable_strategy()->mutable_auto_();
  sync.mutable_train()->mutable_sync();
  EXPECT_EQ(Text(Resolve({}, sync)),
            "strategy.kind: not supported with sync: replicas could get different ones; name one\n");
}

// A spec of fewer ranks is no other: their number need not be a multiple of anything that is chosen.
TEST(Resolve, StrategyAutoTakesAnyLeastNumberOfRanks) {
  JobSpec spec = Good();
  spec.mutable_resources()->set_ranks(8);
  spec.mutable_resources()->set_min_ranks(3);
  spec.mutable_train()->mutable_checkpoint()->set_path("/c");
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  EXPECT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_TRUE(spec.train().parallel().auto_());
}

// A trainer reads 0 where a default is forgotten, so each field has one, or is here.
TEST(Resolve, LeavesNoFieldWithoutAValue) {
  const std::set<std::string> open_on_purpose = {
      "detection_seconds",                // the coordinator's --detection
      "resources.min_ranks",              // all ranks
      "train.activation_checkpointing",   // false; strategy: auto may choose it
      "train.bench.bucket_bytes",         // the strategy's
      "train.checkpoint.async",           // by the memory of the ranks' nodes
      "train.checkpoint.every_seconds",   // 0: never
      "train.pipeline.chunks",            // with schedule: interleaved only
      "train.strategy.ddp.bucket_mib",    // by the size of the units
      "train.strategy.fsdp.shard_ranks",  // the ranks of a node
      "train.strategy.fsdp.shares",       // with placement: ragged only
      "train.strategy.fsdp.wrap_mib",     // units as they are
      "train.strategy.zero.bucket_mib",   // as ddp
      "train.strategy.zero.contiguous",   // false
      "train.strategy.zero.shares",       // as fsdp
      "train.strategy.zero.wrap_mib",     // as fsdp
  };
  const std::vector<std::function<void(Train&)>> kinds = {
      [](Train& train) { train.mutable_strategy()->mutable_single(); },
      [](Train& train) { train.mutable_strategy()->mutable_ddp(); },
      [](Train& train) { train.mutable_strategy()->mutable_zero(); },
      [](Train& train) { train.mutable_strategy()->mutable_fsdp(); },
      [](Train& train) { train.mutable_strategy()->mutable_auto_(), train.mutable_parallel(); },
      [](Train& train) { train.mutable_optimizer()->mutable_adamw(); },
      [](Train& train) { train.mutable_optimizer()->mutable_lion(); },
      [](Train& train) { train.mutable_optimizer()->mutable_muon(); },
      [](Train& train) { train.mutable_optimizer()->mutable_adafactor(); },
      [](Train& train) { train.mutable_optimizer()->mutable_sgd(); },
      [](Train& train) { train.mutable_optimizer()->mutable_lr_schedule()->mutable_constant(); },
      [](Train& train) { train.mutable_optimizer()->mutable_lr_schedule()->mutable_linear(); },
      [](Train& train) { train.mutable_optimizer()->mutable_lr_schedule()->mutable_cosine(); },
      [](Train& train) { train.mutable_optimizer()->mutable_lr_schedule()->mutable_step()->add_milestones(3); },
      [](Train& train) {
        train.mutable_model()->mutable_resnet()->set_depth(20);
        train.mutable_data()->clear_tokens();
        train.mutable_data()->set_images("/images.bin");
      },
      [](Train& train) { train.mutable_precision(); },
      [](Train& train) { train.mutable_precision()->set_compute(DTYPE_FP16); },
      [](Train& train) { train.mutable_on_nonfinite()->mutable_fail(); },
      [](Train& train) { train.mutable_on_nonfinite()->mutable_skip(); },
      [](Train& train) { train.mutable_lora(); },
      [](Train& train) { train.mutable_dropout(); },
      [](Train& train) { train.mutable_offload(); },
      [](Train& train) { train.mutable_parallel(); },
  };
  std::set<std::string> open;
  for (const auto& kind : kinds) {
    JobSpec spec = Good();
    spec.mutable_train()->mutable_checkpoint()->set_path("/c");
    spec.mutable_train()->mutable_data()->set_validation("/v.bin");
    kind(*spec.mutable_train());
    ASSERT_EQ(Text(Resolve({}, spec)), "");
    CollectOpen(spec, "", open);
  }
  JobSpec staged = Good();
  Staged(staged, 2, 2);
  ASSERT_EQ(Text(Resolve({}, staged)), "");
  JobSpec pipeline;  // these fields alone
  *pipeline.mutable_train()->mutable_parallel() = staged.train().parallel();
  *pipeline.mutable_train()->mutable_pipeline() = staged.train().pipeline();
  std::set<std::string> open_in_pipelines;
  CollectOpen(pipeline, "", open_in_pipelines);
  for (const std::string& field : open_in_pipelines) {
    if (absl::StartsWith(field, "train.pipeline") || absl::StartsWith(field, "train.parallel")) open.insert(field);
  }
  JobSpec bench;  // likewise
  bench.mutable_resources()->set_ranks(2);
  *bench.mutable_train()->mutable_bench() = Measurements();
  (void)Resolve({}, bench);
  JobSpec of_bench;
  *of_bench.mutable_train()->mutable_bench() = bench.train().bench();
  std::set<std::string> open_in_benches;
  CollectOpen(of_bench, "", open_in_benches);
  for (const std::string& field : open_in_benches) {
    if (absl::StartsWith(field, "train.bench")) open.insert(field);
  }
  EXPECT_EQ(open, open_on_purpose);
}

// The widest and longest GPT-2 that a spec may have.
void Large(uint32_t layers, JobSpec& spec) {
  Gpt2& model = *spec.mutable_train()->mutable_model()->mutable_gpt2();
  model.set_layers(layers);
  model.set_width(1 << 20), model.set_heads(1), model.set_context(1 << 20);
}

Data& Classifier(JobSpec& spec) {
  Train& train = *spec.mutable_train();
  if (!train.model().has_resnet()) {
    train.mutable_model()->mutable_resnet()->set_depth(20);
    train.mutable_data()->clear_tokens();
    train.mutable_data()->set_images("/images.bin");
  }
  return *train.mutable_data();
}

// A custom model of named tensors.
Data& Rated(JobSpec& spec) {
  Model& model = *spec.mutable_train()->mutable_model();
  Custom& custom = *model.mutable_custom();
  custom.set_library("/opt/models/librated.so");
  Task& task = *custom.mutable_task();
  task.set_name(models::kTensors);
  task.set_targets_per_sample(1);
  models::AddBatchTensor(task, "user", BatchTensor::FLOAT, {8}).set_input(true);
  Unit& unit = *custom.add_units();
  unit.set_name("all");
  unit.set_kind(models::kCustomKind);
  models::AddTensor(unit, "all.weight", {8}, Initialisation::ZEROS).set_decay(false);
  Data& data = *spec.mutable_train()->mutable_data();
  data.clear_tokens();
  data.set_tensors("/ratings-*.safetensors");
  return data;
}

TEST(Resolve, NamedTensorsAreValidatedWhole) {
  JobSpec spec = Good();
  Rated(spec).set_validation("/test.safetensors");
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_EQ(spec.train().validation().sequences(), 1u << 20);
  EXPECT_EQ(spec.train().data().order(), DATA_ORDER_SHUFFLED);
  EXPECT_FALSE(spec.train().data().has_augmentation());
}

TEST(Resolve, AClassifierHasItsOwnDefaults) {
  JobSpec spec = Good();
  Classifier(spec).set_validation("/test.bin");
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  const Train& train = spec.train();
  EXPECT_EQ(train.model().resnet().width(), 16u);
  EXPECT_EQ(train.data().mean_size(), 3);
  EXPECT_FALSE(train.data().augmentation().flip());
  EXPECT_EQ(train.validation().sequences(), 1u << 20) << "the whole test set";
}

TEST(Resolve, EveryMistakeHasItsPath) {
  struct Case {
    std::string path, says;
    std::function<void(JobSpec&)> spoil;
  };
  const auto train = [](JobSpec& s) -> Train& { return *s.mutable_train(); };
  const auto scaling = [](JobSpec& s) -> LossScaling& {
    s.mutable_train()->mutable_precision()->set_reduce(DTYPE_FP16);
    return *s.mutable_train()->mutable_precision()->mutable_loss_scaling();
  };
  const auto offload = [](JobSpec& s) -> Offload& { return *s.mutable_train()->mutable_offload(); };
  const auto optimizer = [](JobSpec& s) -> Optimizer& { return *s.mutable_train()->mutable_optimizer(); };
  const auto env = [](JobSpec& s, const std::string& name, const std::string& value) {
    EnvVar& variable = *s.add_env();
    variable.set_name(name);
    variable.set_value(value);
  };
  const std::vector<Case> cases = {
      {"env[0].name", "cannot have LD_PRELOAD: allowed are NCCL_*,",
       [&](JobSpec& s) { env(s, "LD_PRELOAD", "/x.so"); }},
      {"env[0].name", "NCCL_COMM_ID: ranks meet through the coordinator",
       [&](JobSpec& s) { env(s, "NCCL_COMM_ID", "10.0.0.1:7"); }},
      {"env[0].name", "a node sets it", [&](JobSpec& s) { env(s, "NCCL_NET_PLUGIN", "/x.so"); }},
      {"env[0].name", "missing", [&](JobSpec& s) { env(s, "", "1"); }},
      {"env[2].name", "NCCL_DEBUG occurs twice",
       [&](JobSpec& s) {
         env(s, "NCCL_DEBUG", "INFO");
         env(s, "NCCL_ALGO", "Ring");
         env(s, "NCCL_DEBUG", "WARN");
       }},
      {"env[1].value", "missing",
       [&](JobSpec& s) {
         env(s, "NCCL_ALGO", "Ring");
         env(s, "NCCL_DEBUG", "");
       }},
      {"env[0].value", "not printable ASCII", [&](JobSpec& s) { env(s, "NCCL_DEBUG", "INFO\nWARN"); }},
      {"env[0].value", "at most 512", [&](JobSpec& s) { env(s, "NCCL_DEBUG", std::string(513, 'a')); }},
      {"env", "has 65 variables, at most 64",
       [&](JobSpec& s) {
         for (int i = 0; i < 65; ++i) env(s, absl::StrCat("NCCL_", i), "1");
       }},
      {"apiVersion", "muster/v9", [](JobSpec& s) { s.set_api_version("muster/v9"); }},
      {"kind", "Pod", [](JobSpec& s) { s.set_kind("Pod"); }},
      {"detection_seconds", "must be 10 (the coordinator's --detection) to 3600, got 9.5",
       [](JobSpec& s) { s.set_detection_seconds(9.5); }},
      {"time_limit", "must be a duration such as 90m or 48h, got \"2\"", [](JobSpec& s) { s.set_time_limit("2"); }},
      {"time_limit", "must be 1m to 8784h, got 30s", [](JobSpec& s) { s.set_time_limit("30s"); }},
      {"detection_seconds", "got nan", [](JobSpec& s) { s.set_detection_seconds(std::nan("")); }},
      {"resources.min_ranks", "must be 1 to resources.ranks (1), got 2",
       [](JobSpec& s) { s.mutable_resources()->set_min_ranks(2); }},
      {"resources.node_selector", "expected KEY=VALUE or KEY!=VALUE, as rack=a or node!=gpu-7, got \"rack\"",
       [](JobSpec& s) { s.mutable_resources()->add_node_selector("rack"); }},
      {"labels", "expected KEY=VALUE, as team=nlp, got \"team\"", [](JobSpec& s) { s.add_labels("team"); }},
      {"labels", "the key team is there twice",
       [](JobSpec& s) {
         s.add_labels("team=a");
         s.add_labels("team=b");
       }},
      {"labels", "at most 64 are possible, got 65",
       [](JobSpec& s) {
         for (int i = 0; i < 65; ++i) s.add_labels(absl::StrCat("k", i, "=v"));
       }},
      {"after", "expected ids of jobs", [](JobSpec& s) { s.add_after(""); }},
      {"template", "expected the name of a template", [](JobSpec& s) { s.set_template_("No Name"); }},
      {"after", "at most 32 jobs are possible, got 33",
       [](JobSpec& s) {
         for (int i = 0; i < 33; ++i) s.add_after("job-1");
       }},
      {"resources.node_selector", "at most 32 are possible, got 33",
       [](JobSpec& s) {
         for (int i = 0; i < 33; ++i) s.mutable_resources()->add_node_selector("rack=a");
       }},
      {"resources.placement", "not a value that this build knows",
       [](JobSpec& s) { s.mutable_resources()->set_placement(static_cast<NodePlacement>(9)); }},
      {"resources.topology.required", "expected the key of a label, as rack, got \"rack=a\"",
       [](JobSpec& s) { s.mutable_resources()->mutable_topology()->set_required("rack=a"); }},
      {"resources.topology.preferred", "the key rack is there twice",
       [](JobSpec& s) {
         s.mutable_resources()->mutable_topology()->set_required("rack");
         s.mutable_resources()->mutable_topology()->add_preferred("rack");
       }},
      {"resources.topology.preferred", "at most 4 are possible, got 5",
       [](JobSpec& s) {
         for (int i = 0; i < 5; ++i) s.mutable_resources()->mutable_topology()->add_preferred(absl::StrCat("k", i));
       }},
      {"resources.min_ranks", "must be 1 to resources.ranks (1), got 0",
       [](JobSpec& s) { s.mutable_resources()->set_min_ranks(0); }},
      {"resources.min_ranks", "needs checkpoint.path",
       [](JobSpec& s) {
         s.mutable_resources()->set_ranks(4);
         s.mutable_resources()->set_min_ranks(2);
       }},
      // 2^20 positions of width 2^20 are 4 TiB, of which a block saves ten and 4096 blocks 160 PiB a sequence.
      {"batch.microbatch", "activations of 8 sequences take more than 256 PiB; lower it, got 8",
       [&](JobSpec& s) { Large(4096, s); }},
      {"batch.microbatch", "activations of 1048576 sequences take more than 256 PiB; lower it",
       [&](JobSpec& s) {
         Large(1, s);
         train(s).mutable_batch()->set_sequences(1 << 20);
       }},
      {"data.tensors", "missing: a safetensors file", [&](JobSpec& s) { Rated(s).clear_tensors(); }},
      {"data.tensors", "absolute", [&](JobSpec& s) { Rated(s).set_tensors("a.safetensors"); }},
      {"data.tensors", "is for models of named tensors, and this one reads images",
       [&](JobSpec& s) { Classifier(s).set_tensors("/a.safetensors"); }},
      {"data.images", "is for models of images, and this one reads named tensors",
       [&](JobSpec& s) { Rated(s).set_images("/i.bin"); }},
      {"data.mean", "is for models of images, and this one reads named tensors",
       [&](JobSpec& s) { Rated(s).add_mean(1); }},
      {"data.images", "missing: a file of images", [&](JobSpec& s) { Classifier(s).clear_images(); }},
      {"data.tokens", "is for language models", [&](JobSpec& s) { Classifier(s).set_tokens("/t.bin"); }},
      {"data.images", "is for models of images", [&](JobSpec& s) { train(s).mutable_data()->set_images("/i.bin"); }},
      {"data.augmentation", "is for models of images",
       [&](JobSpec& s) { train(s).mutable_data()->mutable_augmentation(); }},
      {"data.mean", "is for models of images", [&](JobSpec& s) { train(s).mutable_data()->add_mean(1); }},
      {"label_smoothing", "is for models of images", [&](JobSpec& s) { train(s).set_label_smoothing(0.1); }},
      {"label_smoothing", "must be at least 0 and less than 1, got 1",
       [&](JobSpec& s) {
         Classifier(s);
         train(s).set_label_smoothing(1);
       }},
      {"data.augmentation.crop_padding", "must be less than the images' height of 32, got 32",
       [&](JobSpec& s) { Classifier(s).mutable_augmentation()->set_crop_padding(32); }},
      {"data.mean", "needs one number for each of the 3 channels, got 1",
       [&](JobSpec& s) { Classifier(s).add_mean(0.5f); }},
      {"data.standard_deviation", "must be greater than 0",
       [&](JobSpec& s) {
         for (const float value : {1.f, 0.f, 1.f}) Classifier(s).add_standard_deviation(value);
       }},
      {"data.mean", "got nan",
       [&](JobSpec& s) {
         for (const float value : {1.f, std::nanf(""), 1.f}) Classifier(s).add_mean(value);
       }},
      {"model.depth", "must be 18, 34, 50",
       [&](JobSpec& s) {
         Classifier(s);
         train(s).mutable_model()->mutable_resnet()->set_depth(19);
       }},
      {"optimizer.lr_schedule.milestones", "needs 1 to 64 steps, got 0",
       [&](JobSpec& s) { optimizer(s).mutable_lr_schedule()->mutable_step(); }},
      {"optimizer.lr_schedule.milestones", "must be ascending",
       [&](JobSpec& s) {
         for (const uint64_t step : {5, 3}) optimizer(s).mutable_lr_schedule()->mutable_step()->add_milestones(step);
       }},
      {"optimizer.lr_schedule.gamma", "must be at least 0",
       [&](JobSpec& s) {
         optimizer(s).mutable_lr_schedule()->mutable_step()->add_milestones(1);
         optimizer(s).mutable_lr_schedule()->mutable_step()->set_gamma(-1);
       }},
      {"name", "missing", [](JobSpec& s) { s.clear_name(); }},
      {"name", "use a-z", [](JobSpec& s) { s.set_name("My_Job"); }},
      {"name", "at most 40", [](JobSpec& s) { s.set_name(std::string(41, 'a')); }},
      {"name", "use a-z, 0-9 and -, not at either end", [](JobSpec& s) { s.set_name("-a"); }},
      {"resources.ranks", "at least 1", [](JobSpec& s) { s.mutable_resources()->set_ranks(0); }},
      // One error, not one of each field that is compared with it.
      {"resources.ranks", "must be at least 1, got 0",
       [&](JobSpec& s) {
         s.mutable_resources()->set_ranks(0), s.mutable_resources()->set_min_ranks(0);
         train(s).mutable_parallel()->set_pipeline(2);
       }},
      {"resources.ranks", "at most 4096", [](JobSpec& s) { s.mutable_resources()->set_ranks(5000); }},
      {"strategy.kind", "one rank",
       [&](JobSpec& s) {
         s.mutable_resources()->set_ranks(2);
         train(s).mutable_strategy()->mutable_single();
       }},
      {"strategy.kind", "single runs on one rank of each stage, and there are 2",
       [&](JobSpec& s) { Staged(s, 4, 2), train(s).mutable_strategy()->mutable_single(); }},
      {"parallel.pipeline", "must be 1 to resources.ranks (4), got 0", [&](JobSpec& s) { Staged(s, 4, 0); }},
      {"parallel.pipeline", "must be 1 to resources.ranks (4), got 5", [&](JobSpec& s) { Staged(s, 4, 5); }},
      {"parallel.pipeline", "must be 1 to 256, got 257", [&](JobSpec& s) { Staged(s, 514, 257); }},
      {"parallel.pipeline", "3 stages do not divide resources.ranks 4", [&](JobSpec& s) { Staged(s, 4, 3); }},
      {"parallel.pipeline", "8 chunks of a model of 6 units", [&](JobSpec& s) { Staged(s, 8, 8); }},
      {"parallel.tensor", "must be 1 to 64, got 65",
       [&](JobSpec& s) { train(s).mutable_parallel()->set_tensor(65); }},
      {"strategy.kind", "is chosen by parallel: auto",
       [&](JobSpec& s) { train(s).mutable_parallel()->set_auto_(true), train(s).mutable_strategy()->mutable_ddp(); }},
      {"parallel", "leave the other fields out",
       [&](JobSpec& s) {
         train(s).mutable_parallel()->set_auto_(true), train(s).mutable_parallel()->set_pipeline(1);
         train(s).mutable_strategy()->mutable_auto_();
       }},
      {"pipeline", "is chosen by parallel: auto",
       [&](JobSpec& s) {
         train(s).mutable_parallel()->set_auto_(true), train(s).mutable_pipeline();
         train(s).mutable_strategy()->mutable_auto_();
       }},
      {"parallel.tensor", "2 ranks for each unit of 2 stages do not divide resources.ranks 10",
       [&](JobSpec& s) { Staged(s, 10, 2), Divided(s, 2); }},
      {"parallel.tensor", "heads", [&](JobSpec& s) { Staged(s, 12, 2), Divided(s, 3); }},
      {"parallel.sequence_parallel", "needs parallel: {tensor: N}",
       [&](JobSpec& s) { train(s).mutable_parallel()->set_sequence_parallel(true); }},
      {"resources.min_ranks", "must be a multiple of parallel.pipeline 2",
       [&](JobSpec& s) {
         Staged(s, 4, 2), s.mutable_resources()->set_min_ranks(3);
         train(s).mutable_checkpoint()->set_path("/c");
       }},
      {"pipeline", "needs parallel: {pipeline: N}",
       [&](JobSpec& s) { train(s).mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_GPIPE); }},
      {"pipeline.schedule", "not a value",
       [&](JobSpec& s) { Staged(s, 2, 2).set_schedule(PipelineSchedule(9)); }},
      {"pipeline.chunks", "only schedule: interleaved", [&](JobSpec& s) { Staged(s, 2, 2).set_chunks(2); }},
      {"pipeline.chunks", "must be 2 to 64, got 1; one chunk a stage is schedule: 1f1b",
       [&](JobSpec& s) {
         Pipeline& pipeline = Staged(s, 2, 2);
         pipeline.set_schedule(PIPELINE_SCHEDULE_INTERLEAVED), pipeline.set_chunks(1);
       }},
      {"pipeline.cut", "the model has no unit h.4", [&](JobSpec& s) { Staged(s, 2, 2).add_cut("h.4"); }},
      {"pipeline.cut", "names 2 units; the first of each of 2 chunks but the first is 1",
       [&](JobSpec& s) {
         for (const char* unit : {"layers.1", "layers.2"}) Staged(s, 2, 2).add_cut(unit);
       }},
      {"batch.microbatch", "has 4 sequences of a step (batch.sequences 8 over 2 ranks of each stage), got 5",
       [&](JobSpec& s) { Staged(s, 4, 2), train(s).mutable_batch()->set_microbatch(5); }},
      {"offload.activations", "not supported with parallel.pipeline yet",
       [&](JobSpec& s) {
         Staged(s, 2, 2), train(s).set_activation_checkpointing(true);
         train(s).mutable_offload()->set_activations(true);
       }},
      {"strategy.reshard", "not a value",
       [&](JobSpec& s) { train(s).mutable_strategy()->mutable_fsdp()->set_reshard(Reshard(9)); }},
      {"strategy.placement", "not a value",
       [&](JobSpec& s) { train(s).mutable_strategy()->mutable_fsdp()->set_placement(Placement(9)); }},
      {"strategy.accumulation", "not a value",
       [&](JobSpec& s) { train(s).mutable_strategy()->mutable_zero()->set_accumulation(Accumulation(9)); }},
      {"strategy.prefetch", "0 to 64",
       [&](JobSpec& s) { train(s).mutable_strategy()->mutable_fsdp()->set_prefetch(65); }},
      {"strategy.wrap_mib", "nan",
       [&](JobSpec& s) { train(s).mutable_strategy()->mutable_zero()->set_wrap_mib(std::nan("")); }},
      {"strategy.shard_ranks", "hybrid",
       [&](JobSpec& s) { train(s).mutable_strategy()->mutable_fsdp()->set_shard_ranks(1); }},
      {"strategy.bucket_mib", "greater than 0",
       [&](JobSpec& s) { train(s).mutable_strategy()->mutable_ddp()->set_bucket_mib(0); }},
      {"precision.tf32", "compute: fp32",
       [&](JobSpec& s) {
         train(s).mutable_precision()->set_compute(DTYPE_BF16);
         train(s).mutable_precision()->set_tf32(true);
       }},
      {"precision.params", "needs compute: bf16",
       [&](JobSpec& s) { train(s).mutable_precision()->set_params(DTYPE_BF16); }},
      {"precision.params", "range of fp16 is too small",
       [&](JobSpec& s) {
         train(s).mutable_precision()->set_compute(DTYPE_FP16);
         train(s).mutable_precision()->set_params(DTYPE_FP16);
       }},
      {"precision.params", "must be fp32 or bf16",
       [&](JobSpec& s) { train(s).mutable_precision()->set_params(Dtype(9)); }},
      {"precision.loss_scaling", "neither compute nor reduce is fp16",
       [&](JobSpec& s) { train(s).mutable_precision()->mutable_loss_scaling(); }},
      {"precision.loss_scaling.initial", "greater than 0", [&](JobSpec& s) { scaling(s).set_initial(0); }},
      {"precision.loss_scaling.growth", "at least 1", [&](JobSpec& s) { scaling(s).set_growth(0.5); }},
      {"precision.loss_scaling.growth", "nan", [&](JobSpec& s) { scaling(s).set_growth(std::nan("")); }},
      {"precision.loss_scaling.backoff", "greater than 0", [&](JobSpec& s) { scaling(s).set_backoff(0); }},
      {"precision.loss_scaling.growth_interval", "at least 1", [&](JobSpec& s) { scaling(s).set_growth_interval(0); }},
      {"precision.loss_scaling.minimum", "at most 1024",
       [&](JobSpec& s) { scaling(s).set_initial(1024), scaling(s).set_minimum(2048); }},
      {"freeze", "fits no tensor", [&](JobSpec& s) { train(s).add_freeze("layers.*"); }},
      {"freeze", "nothing is left to train", [&](JobSpec& s) { train(s).add_freeze("*"); }},
      {"freeze", "at most 256",
       [&](JobSpec& s) {
         for (int i = 0; i < 257; ++i) train(s).add_freeze("!*");
       }},
      {"dropout.attention", "less than 1", [&](JobSpec& s) { train(s).mutable_dropout()->set_attention(1); }},
      {"dropout.residual", "nan", [&](JobSpec& s) { train(s).mutable_dropout()->set_residual(std::nan("")); }},
      {"dropout", "no places",
       [&](JobSpec& s) {
         Classifier(s);
         train(s).mutable_dropout()->set_residual(0.1);
       }},
      {"lora.rank", "1 to 4096", [&](JobSpec& s) { train(s).mutable_lora()->set_rank(0); }},
      {"lora.alpha", "greater than 0", [&](JobSpec& s) { train(s).mutable_lora()->set_alpha(0); }},
      {"lora.targets", "called q_proj", [&](JobSpec& s) { train(s).mutable_lora()->add_targets("q_proj"); }},
      {"offload.to", "relative",
       [&](JobSpec& s) { train(s).mutable_offload()->set_optimizer(true), train(s).mutable_offload()->set_to("x"); }},
      {"offload.to", "nothing is offloaded", [&](JobSpec& s) { train(s).mutable_offload()->set_to("/nvme"); }},
      {"offload.activations", "needs activation_checkpointing: true", [&](JobSpec& s) { offload(s).set_activations(true); }},
      {"offload.activations", "needs activation_checkpointing: true",
       [&](JobSpec& s) { offload(s).set_activations(true), train(s).set_activation_checkpointing(false); }},
      {"offload.optimizer", "must be true",
       [&](JobSpec& s) { offload(s).set_parameters(true), offload(s).set_optimizer(false); }},
      {"offload.parameters", "every rank of ddp keeps all",
       [&](JobSpec& s) { offload(s).set_parameters(true), train(s).mutable_strategy()->mutable_ddp(); }},
      {"offload.parameters", "every rank of zero keeps all",
       [&](JobSpec& s) {
         offload(s).set_parameters(true), train(s).mutable_strategy()->mutable_zero()->set_stage(2);
       }},
      {"on_nonfinite.steps", "at least 1",
       [&](JobSpec& s) { train(s).mutable_on_nonfinite()->mutable_skip()->set_steps(0); }},
      {"strategy.shares", "only placement: ragged gives ranks shares of different size",
       [&](JobSpec& s) { train(s).mutable_strategy()->mutable_fsdp()->set_shares(SHARES_SPEED); }},
      {"strategy.contiguous", "whole and placement: ragged",
       [&](JobSpec& s) {
         train(s).mutable_strategy()->mutable_zero()->set_contiguous(true);
         train(s).mutable_strategy()->mutable_zero()->set_placement(PLACEMENT_EVEN);
       }},
      {"strategy.stage", "1, 2 or 3", [&](JobSpec& s) { train(s).mutable_strategy()->mutable_zero()->set_stage(4); }},
      {"model.family", "missing", [&](JobSpec& s) { train(s).clear_model(); }},
      {"model.heads", "divide", [&](JobSpec& s) { train(s).mutable_model()->mutable_gpt2()->set_heads(3); }},
      {"model.vocabulary", "16777216",
       [&](JobSpec& s) { train(s).mutable_model()->mutable_gpt2()->set_vocabulary(1 << 25); }},
      {"model.from", "absolute", [&](JobSpec& s) { train(s).mutable_model()->set_from("gpt2"); }},
      {"checkpoint.resume_from", "absolute",
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_resume_from("runs/a"); }},
      {"checkpoint.resume_from", "model.from",
       [&](JobSpec& s) {
         train(s).mutable_checkpoint()->set_resume_from("/runs/a");
         train(s).mutable_model()->set_from("/gpt2");
       }},
      {"checkpoint.path", "of this job's own",
       [&](JobSpec& s) {
         train(s).mutable_checkpoint()->set_resume_from("/runs/a/step-0000000100-g1");
         train(s).mutable_checkpoint()->set_path("/runs/a");
       }},
      {"checkpoint.path", "of this job's own",  // once both are expanded and written alike
       [&](JobSpec& s) {
         train(s).mutable_checkpoint()->set_resume_from("/runs/x/../{name}/step-0000000100-g1");
         train(s).mutable_checkpoint()->set_path(absl::StrCat("/runs//", s.name(), "/"));
       }},
      {"checkpoint.path", "of this job's own",
       [&](JobSpec& s) {
         train(s).mutable_checkpoint()->set_resume_from("/runs/{job}");
         train(s).mutable_checkpoint()->set_path("/runs/{job}");
       }},
      {"checkpoint.path",
       "/runs/a/step-0000000020-g1/{job} is in step-0000000020-g1, and only a checkpoint has such a name: name a "
       "folder outside of checkpoints",
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/runs/a/step-0000000020-g1/{job}"); }},
      {"checkpoint.path", "/runs/.staging-step-0000000020-g1/x is in .staging-step-0000000020-g1, and only",
       [&](JobSpec& s) {
         s.set_name("step-0000000020-g1");
         train(s).mutable_checkpoint()->set_path("/runs/.staging-{name}/x");
       }},
      {"checkpoint.path",
       "/runs/a/owner.json/{job} is in owner.json, and only the file that says which job owns a folder of checkpoints "
       "has such a name: name another folder",
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/runs/a/owner.json/{job}"); }},
      {"checkpoint.path", "unknown placeholder {id}: {name} (the job's name) and {job} (its id)",
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/runs/{id}"); }},
      {"checkpoint.resume_from", "unknown placeholder {jobname}",
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_resume_from("/runs/{jobname}"); }},
      {"checkpoint.path", "brace", [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/runs/{job"); }},
      {"checkpoint.path", "brace", [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/runs/job}"); }},
      {"checkpoint.path", "/ is the root of the file system: name a folder for this job's checkpoints",
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/"); }},
      {"checkpoint.path", "/runs/.. is the root of the file system",
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/runs/.."); }},
      {"checkpoint.path", "4095",  // with the id
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/" + std::string(4088, 'c') + "{job}"); }},
      {"data.tokens", "missing", [&](JobSpec& s) { train(s).clear_data(); }},
      {"data.tokens", "absolute", [&](JobSpec& s) { train(s).mutable_data()->set_tokens("a.bin"); }},
      {"data.validation", "absolute", [&](JobSpec& s) { train(s).mutable_data()->set_validation("a.bin"); }},
      {"data.validation", "missing", [&](JobSpec& s) { train(s).mutable_validation()->set_every_steps(5); }},
      {"batch.sequences", "1 to", [&](JobSpec& s) { train(s).mutable_batch()->set_sequences(0); }},
      {"batch.microbatch", "at least 1", [&](JobSpec& s) { train(s).mutable_batch()->set_microbatch(0); }},
      {"batch.microbatch", "8 sequences", [&](JobSpec& s) { train(s).mutable_batch()->set_microbatch(9); }},
      {"precision.compute", "unit all has buffers (all.mean)",
       [&](JobSpec& s) {
         Rated(s);
         Tensor& mean = *train(s).mutable_model()->mutable_custom()->mutable_units(0)->add_buffers();
         mean.set_name("all.mean");
         mean.add_shape(8);
         mean.mutable_init()->set_kind(Initialisation::ZEROS);
         train(s).mutable_precision()->set_compute(DTYPE_BF16);
       }},
      {"precision.compute", "fp32, bf16 or fp16",
       [&](JobSpec& s) { train(s).mutable_precision()->set_compute(Dtype(9)); }},
      {"precision.reduce", "fp32", [&](JobSpec& s) { train(s).mutable_precision()->set_reduce(Dtype(-1)); }},
      {"optimizer.lr", "greater than 0", [&](JobSpec& s) { optimizer(s).set_lr(0); }},
      {"optimizer.lr", "got nan", [&](JobSpec& s) { optimizer(s).set_lr(std::nan("")); }},
      {"optimizer.lr", "got inf", [&](JobSpec& s) { optimizer(s).set_lr(INFINITY); }},
      {"optimizer.weight_decay", "at least 0", [&](JobSpec& s) { optimizer(s).set_weight_decay(-1); }},
      {"optimizer.clip_norm", "at least 0", [&](JobSpec& s) { optimizer(s).set_clip_norm(-1); }},
      {"optimizer.beta1", "less than 1", [&](JobSpec& s) { optimizer(s).mutable_adamw()->set_beta1(1); }},
      {"optimizer.beta2", "less than 1", [&](JobSpec& s) { optimizer(s).mutable_adamw()->set_beta2(-0.1); }},
      {"optimizer.eps", "greater than 0", [&](JobSpec& s) { optimizer(s).mutable_adamw()->set_eps(0); }},
      {"optimizer.momentum", "less than 1", [&](JobSpec& s) { optimizer(s).mutable_sgd()->set_momentum(1); }},
      {"optimizer.beta1", "less than 1", [&](JobSpec& s) { optimizer(s).mutable_lion()->set_beta1(1); }},
      {"optimizer.beta2", "at least 0", [&](JobSpec& s) { optimizer(s).mutable_lion()->set_beta2(-0.1); }},
      {"optimizer.momentum", "less than 1", [&](JobSpec& s) { optimizer(s).mutable_muon()->set_momentum(1); }},
      {"optimizer.ns_steps", "must be 1 to 99, got 100",
       [&](JobSpec& s) { optimizer(s).mutable_muon()->set_ns_steps(100); }},
      {"optimizer.ns_steps", "got 0", [&](JobSpec& s) { optimizer(s).mutable_muon()->set_ns_steps(0); }},
      {"optimizer.adjust_lr_fn", "not a value",
       [&](JobSpec& s) { optimizer(s).mutable_muon()->set_adjust_lr_fn(AdjustLrFn(7)); }},
      {"optimizer.adamw_lr", "greater than 0", [&](JobSpec& s) { optimizer(s).mutable_muon()->set_adamw_lr(0); }},
      {"optimizer.adamw_beta1", "less than 1", [&](JobSpec& s) { optimizer(s).mutable_muon()->set_adamw_beta1(1); }},
      {"optimizer.adamw_beta2", "at least 0", [&](JobSpec& s) { optimizer(s).mutable_muon()->set_adamw_beta2(-1); }},
      {"optimizer.adamw_eps", "greater than 0", [&](JobSpec& s) { optimizer(s).mutable_muon()->set_adamw_eps(0); }},
      {"optimizer.adamw_weight_decay", "at least 0",
       [&](JobSpec& s) { optimizer(s).mutable_muon()->set_adamw_weight_decay(-1); }},
      {"optimizer.weight_decay", "at least 0",  // and not that of AdamW, which follows from it
       [&](JobSpec& s) {
         optimizer(s).mutable_muon();
         optimizer(s).set_weight_decay(-1);
       }},
      {"optimizer.beta2_decay", "at most 0, got 0.5",
       [&](JobSpec& s) { optimizer(s).mutable_adafactor()->set_beta2_decay(0.5); }},
      {"optimizer.eps1", "greater than 0", [&](JobSpec& s) { optimizer(s).mutable_adafactor()->set_eps1(0); }},
      {"optimizer.eps2", "at least 0", [&](JobSpec& s) { optimizer(s).mutable_adafactor()->set_eps2(-1); }},
      {"optimizer.d", "at least 1, got 0.5", [&](JobSpec& s) { optimizer(s).mutable_adafactor()->set_d(0.5); }},
      {"optimizer.kind", "this model trains none; use adamw",
       [&](JobSpec& s) {
         optimizer(s).mutable_muon();
         train(s).add_freeze("h.*.weight");
       }},
      {"optimizer.nesterov", "momentum",
       [&](JobSpec& s) {
         optimizer(s).mutable_sgd()->set_momentum(0);
         optimizer(s).mutable_sgd()->set_nesterov(true);
       }},
      {"optimizer.lr_schedule.min_lr", "above optimizer.lr",
       [&](JobSpec& s) { optimizer(s).mutable_lr_schedule()->mutable_cosine()->set_min_lr(1); }},
      {"optimizer.lr_schedule.warmup_steps", "above steps",
       [&](JobSpec& s) { optimizer(s).mutable_lr_schedule()->set_warmup_steps(101); }},
      {"steps", "missing", [&](JobSpec& s) { train(s).clear_steps(); }},
      {"steps", "must be 1 to 1000000000000, got 0", [&](JobSpec& s) { train(s).set_steps(0); }},
      {"steps", "must be 1 to 1000000000000, got 18446744073709551615",
       [&](JobSpec& s) { train(s).set_steps(18446744073709551615u); }},
      {"checkpoint.path", "absolute", [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("c"); }},
      {"checkpoint.path", "4095",
       [&](JobSpec& s) { train(s).mutable_checkpoint()->set_path("/" + std::string(4095, 'c')); }},
      {"checkpoint.keep", "at most 1000",
       [&](JobSpec& s) {
         train(s).mutable_checkpoint()->set_path("/c");
         train(s).mutable_checkpoint()->set_keep(4'294'967'295u);
       }},
      {"batch.microbatch", "1048576 microbatches",
       [&](JobSpec& s) {
         train(s).mutable_batch()->set_sequences(1u << 20);
         train(s).mutable_batch()->set_microbatch(1);
       }},
      {"optimizer.lr", "got nan",
       [&](JobSpec& s) {  // and not that of min_lr, which follows from it
         optimizer(s).set_lr(std::nan(""));
         optimizer(s).mutable_lr_schedule()->mutable_cosine();
       }},
      {"optimizer.lr_schedule.min_lr", "got nan",
       [&](JobSpec& s) { optimizer(s).mutable_lr_schedule()->mutable_linear()->set_min_lr(std::nan("")); }},
      {"resources.device", "not a value", [&](JobSpec& s) { s.mutable_resources()->set_device(Device(99)); }},
      {"data.order", "not a value", [&](JobSpec& s) { train(s).mutable_data()->set_order(DataOrder(99)); }},
      {"checkpoint.path", "missing", [&](JobSpec& s) { train(s).mutable_checkpoint()->set_every_steps(5); }},
      {"checkpoint.path", "missing", [&](JobSpec& s) { train(s).mutable_checkpoint()->set_every_seconds(5); }},
      {"checkpoint.every_seconds", "must be 0 (never) or 1 to",
       [&](JobSpec& s) {
         train(s).mutable_checkpoint()->set_path("/c");
         train(s).mutable_checkpoint()->set_every_seconds(0.5);
       }},
      {"checkpoint.every_seconds", "got nan",
       [&](JobSpec& s) {
         train(s).mutable_checkpoint()->set_path("/c");
         train(s).mutable_checkpoint()->set_every_seconds(std::nan(""));
       }},
  };
  for (const Case& c : cases) {
    JobSpec spec = Good();
    c.spoil(spec);
    const std::vector<SpecError> errors = Resolve({}, spec);
    ASSERT_EQ(errors.size(), 1u) << c.path << " " << c.says << "\n" << Text(errors);
    EXPECT_EQ(errors[0].path(), c.path);
    EXPECT_TRUE(absl::StrContains(errors[0].message(), c.says)) << errors[0].message();
  }
}

TEST(Resolve, AsManyVariablesAsAllowed) {
  JobSpec spec = Good();
  for (int i = 0; i < 64; ++i) {
    EnvVar& variable = *spec.add_env();
    variable.set_name(absl::StrCat("NCCL_", i));
    variable.set_value(std::string(512, 'a'));
  }
  EXPECT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_EQ(spec.env_size(), 64);
}

TEST(Resolve, AllErrorsAtOnce) {
  JobSpec spec = Good();
  spec.set_name("X");
  spec.mutable_train()->clear_steps();
  spec.mutable_train()->mutable_optimizer()->set_lr(-1);
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_heads(3);
  std::set<std::string> paths;
  for (const SpecError& e : Resolve({}, spec)) paths.insert(e.path());
  EXPECT_EQ(paths, (std::set<std::string>{"name", "steps", "optimizer.lr", "model.heads"}));
}

TEST(Resolve, AnErrorOfTheModelOrItsTuningHidesNoOther) {
  const auto paths = [](JobSpec spec) {
    std::set<std::string> found;
    for (const SpecError& e : Resolve({}, spec)) found.insert(e.path());
    return found;
  };
  JobSpec spec = Good();
  Train& train = *spec.mutable_train();
  train.mutable_lora()->set_rank(0);
  train.mutable_dropout()->set_residual(2);
  train.add_freeze("layers.*");
  EXPECT_EQ(paths(spec), (std::set<std::string>{"lora.rank", "dropout.residual", "freeze"}));
  spec.mutable_resources()->set_ranks(2);
  Divided(spec, 2);
  EXPECT_EQ(paths(spec), (std::set<std::string>{"lora.rank", "dropout.residual", "parallel.tensor"}));
  // Without the model, the names of its tensors are unknown.
  train.mutable_model()->mutable_gpt2()->set_heads(3);
  for (int i = 0; i < 257; ++i) train.add_freeze("!*");
  EXPECT_EQ(paths(spec), (std::set<std::string>{"lora.rank", "dropout.residual", "freeze", "model.heads"}));
  // The adapters are trained, whatever their rank will be.
  spec = Good();
  spec.mutable_train()->mutable_lora()->set_rank(0);
  spec.mutable_train()->add_freeze("*");
  EXPECT_EQ(paths(spec), (std::set<std::string>{"lora.rank"}));
}

TEST(Resolve, SuggestsANameNearby) {
  JobSpec spec = Good();
  spec.set_name("My Job_1");
  EXPECT_EQ(Resolve({}, spec)[0].suggestion(), "my-job-1");
}

TEST(Resolve, PlaceholdersStayUntilTheJobHasItsId) {
  JobSpec spec = Good();
  spec.mutable_train()->mutable_checkpoint()->set_path("/runs/{name}/{job}");
  spec.mutable_train()->mutable_checkpoint()->set_resume_from("/runs/{name}-before");
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_EQ(spec.train().checkpoint().path(), "/runs/{name}/{job}");
  EXPECT_EQ(spec.train().checkpoint().resume_from(), "/runs/{name}-before");
  // Elsewhere braces are letters as any others.
  spec.mutable_train()->mutable_data()->set_tokens("/data/{x}.bin");
  EXPECT_EQ(Text(Resolve({}, spec)), "");
}

TEST(Resolve, APlaceholderIsSuggested) {
  for (const auto& [written, meant] : {std::pair{"{id}", "{job}"},
                                       {"{job_id}", "{job}"},
                                       {"{job_name}", "{name}"},
                                       {"{nam}", "{name}"},
                                       {"{NAME}", "{name}"}}) {
    JobSpec spec = Good();
    spec.mutable_train()->mutable_checkpoint()->set_path(absl::StrCat("/runs/", written));
    EXPECT_EQ(Resolve({}, spec)[0].suggestion(), meant);
  }
}

// Said, so that a spec that is submitted again means the same wherever it is read.
TEST(Resolve, WithoutAPathThereAreNoCheckpoints) {
  JobSpec spec = Good();
  spec.mutable_train()->clear_checkpoint();
  ASSERT_EQ(Text(Resolve({}, spec)), "");
  EXPECT_TRUE(spec.train().checkpoint().has_path());
  EXPECT_EQ(spec.train().checkpoint().path(), "");
}

// A resolved spec, submitted again, is itself.
TEST(Resolve, IsIdempotent) {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    JobSpec spec = Good();
    Train& train = *spec.mutable_train();
    if (random() % 2) train.mutable_batch()->set_sequences(1 + random() % 30);
    if (random() % 2) train.mutable_optimizer()->mutable_sgd();
    if (random() % 2) train.mutable_optimizer()->mutable_lr_schedule()->mutable_cosine();
    if (random() % 2) train.mutable_optimizer()->mutable_lr_schedule()->mutable_linear();
    if (random() % 2) train.mutable_data()->set_validation("/v.bin");
    if (random() % 2) train.mutable_checkpoint()->set_path(random() % 2 ? "/c" : "/c/{job}");
    if (random() % 2) train.mutable_model()->mutable_gpt2()->set_layers(1 + random() % 9);
    if (random() % 2) spec.set_priority(static_cast<int>(random() % 9) - 4);
    ASSERT_EQ(Text(Resolve({}, spec)), "");
    JobSpec again = spec;
    ASSERT_EQ(Text(Resolve({}, again)), "");
    EXPECT_EQ(again.SerializeAsString(), spec.SerializeAsString());
  }
}

TEST(Resolve, TheSuggestedMicrobatchIsEnough) {
  JobSpec spec = Good();
  spec.mutable_train()->mutable_batch()->set_sequences(1u << 20);
  spec.mutable_train()->mutable_batch()->set_microbatch(1);
  const std::string suggestion = Resolve({}, spec)[0].suggestion();
  spec.mutable_train()->mutable_batch()->set_microbatch(static_cast<uint32_t>(std::stoul(suggestion)));
  EXPECT_EQ(Text(Resolve({}, spec)), "");
}

}  // namespace
}  // namespace muster::spec
