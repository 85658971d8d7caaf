#include "strategies/compile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/check.h"

namespace muster::strategies {
namespace {

Train Tiny() {
  Train train;
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(8);
  train.mutable_optimizer()->mutable_adamw();
  train.mutable_optimizer()->set_clip_norm(1);
  return train;
}

Memory Needs(const Train& train, const Inventory& inventory, const Layout& layout, uint32_t rank = 0) {
  return MemoryOf(train, inventory, layout, *Compile(train, inventory, layout, rank), rank);
}

TEST(Compile, SingleIsTheSameEverywhere) {
  const Train train = Tiny();
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(1));
  const RankProgram a = *Compile(train, inventory, layout, 0), b = *Compile(train, inventory, layout, 0);
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_EQ(layout.table_sha256.size(), 64u);
  const uint64_t flat = 4 * partition::FlatElements(inventory);
  const Memory memory = Needs(train, inventory, layout);
  EXPECT_EQ(memory.parameters, flat);
  EXPECT_EQ(memory.gradients, flat);
  EXPECT_EQ(memory.optimizer_state, 2 * flat);
  EXPECT_EQ(memory.peak, 4 * flat + memory.activations);
}

TEST(Compile, LionKeepsOneMomentum) {
  Train train = Tiny();
  train.mutable_optimizer()->mutable_lion();
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(1));
  EXPECT_EQ(Needs(train, inventory, layout).optimizer_state, 4 * partition::FlatElements(inventory));
}

TEST(Compile, MuonKeepsOneMomentumOfHiddenMatricesAndTwoOfTheRest) {
  Train train = Tiny();
  train.mutable_optimizer()->mutable_muon()->set_ns_steps(5);
  const Inventory inventory = *models::MakeInventory(train.model());
  const uint64_t flat = partition::FlatElements(inventory), width = 128, hidden = 4 * 12 * width * width;
  EXPECT_EQ(Needs(train, inventory, *MakeLayout(train, inventory, AnyPlaces(1))).optimizer_state,
            4 * (hidden + 2 * (flat - hidden)));
  // All shards together as much.
  train.mutable_strategy()->mutable_zero()->set_stage(1);
  train.mutable_strategy()->mutable_zero()->set_placement(PLACEMENT_WHOLE);
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(3));
  uint64_t all = 0;
  for (uint32_t rank = 0; rank < 3; ++rank) all += Needs(train, inventory, layout, rank).optimizer_state;
  EXPECT_EQ(all, 4 * (hidden + 2 * (flat - hidden)));
}

TEST(Compile, AdafactorKeepsARowAndAColumnOfAMatrix) {
  Train train = Tiny();
  train.mutable_optimizer()->mutable_adafactor();
  const Inventory inventory = *models::MakeInventory(train.model());
  const uint64_t c = 128, vocabulary = 256, context = 128;  // all of them multiples of 16
  const uint64_t matrices = (c + 3 * c) + (c + c) + (c + 4 * c) + (4 * c + c), vectors = (2 + 3 + 1 + 2 + 4 + 1) * c;
  EXPECT_EQ(Needs(train, inventory, *MakeLayout(train, inventory, AnyPlaces(1))).optimizer_state,
            4 * (4 * (matrices + vectors) + (vocabulary + c) + (context + c) + 2 * c));
}

// Blocks so large that each range of gradients is one block of each of two ranks: what is to be sent and a part's sum,
// in fp32, three blocks; and the codes of two, with a scale each, of both exchanges.
TEST(Compile, EachCompressedSumHasPaddingOfItsOwn) {
  constexpr uint64_t kBlock = uint64_t{1} << 20, kOfASum = 4 * 3 * kBlock + 2 * 2 * (kBlock + 4);
  Train train = Tiny();
  const Inventory inventory = *models::MakeInventory(train.model());
  const auto kept = [&](uint32_t ranks, uint64_t* owned) {
    const Layout layout = *MakeLayout(train, inventory, AnyPlaces(ranks));
    train.mutable_communication()->clear_compression();
    const Memory exact = Needs(train, inventory, layout);
    train.mutable_communication()->mutable_compression()->mutable_int8()->set_block(kBlock);
    *owned = exact.gradients;
    return Needs(train, inventory, layout).reduce_buffers - exact.reduce_buffers;
  };
  uint64_t owned = 0;
  train.mutable_strategy()->mutable_ddp()->set_bucket_mib(0.1);
  const uint64_t replicated = kept(2, &owned);
  EXPECT_EQ(owned, 4 * partition::FlatElements(inventory));
  const auto ops = Compile(train, inventory, *MakeLayout(train, inventory, AnyPlaces(2)), 0)->schedule.ops;
  const auto sums = std::count_if(ops.begin(), ops.end(), [](const Op& op) { return op.kind == OpKind::kAllReduce; });
  EXPECT_GT(sums, 2);
  EXPECT_EQ(replicated, owned + static_cast<uint64_t>(sums) * kOfASum);

  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_HYBRID);
  train.mutable_strategy()->mutable_fsdp()->set_shard_ranks(2);
  const uint64_t sharded = kept(4, &owned);
  EXPECT_EQ(sharded, owned + static_cast<uint64_t>(inventory.units_size()) * kOfASum) << "a range of each unit";
}

// Where activations are few, the temporaries of the update are more: bf16 of the largest matrix twice, and of its
// smaller side squared twice, and the panels of a CPU.
TEST(Compile, ThePlanHasMuonsTemporaries) {
  Train train = Tiny();
  train.mutable_model()->mutable_gpt2()->set_width(512), train.mutable_model()->mutable_gpt2()->set_context(2);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_batch()->set_sequences(1);
  const auto activations = [&] {
    const Inventory inventory = *models::MakeInventory(train.model());
    return Needs(train, inventory, *MakeLayout(train, inventory, AnyPlaces(1))).activations;
  };
  const uint64_t before = activations();
  train.mutable_optimizer()->mutable_muon()->set_ns_steps(5);
  EXPECT_EQ(activations(), 2 * (2 * 512 * 2048 + 2 * 512 * 512) + models::kPanelBytes);
  EXPECT_LT(before, activations());
}

// Of a GPU's update on the host they are the host's, with the panels of a CPU; on a CPU it is the same memory.
TEST(Compile, ThePlanHasOffloadedMuonsTemporariesOnTheHost) {
  Train train = Tiny();
  train.mutable_optimizer()->mutable_muon()->set_ns_steps(5);
  train.mutable_model()->mutable_gpt2()->set_width(512), train.mutable_model()->mutable_gpt2()->set_context(2);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_batch()->set_sequences(1);
  train.mutable_offload()->set_optimizer(true);
  const auto needs = [&](Device device) {
    const Inventory inventory = *models::MakeInventory(train.model(), device);
    return Needs(train, inventory, *MakeLayout(train, inventory, AnyPlaces(1)));
  };
  const uint64_t temporaries = 2 * (2 * 512 * 2048 + 2 * 512 * 512) + models::kPanelBytes;
  const Memory gpu = needs(DEVICE_CUDA), cpu = needs(DEVICE_CPU);
  EXPECT_EQ(gpu.host, cpu.host + temporaries);
  EXPECT_LT(gpu.activations, temporaries);
  EXPECT_EQ(cpu.activations, temporaries);
}

TEST(Compile, SgdKeepsOneMomentumOrNone) {
  Train train = Tiny();
  train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(1));
  EXPECT_EQ(Needs(train, inventory, layout, 0).optimizer_state, 4 * partition::FlatElements(inventory));
  train.mutable_optimizer()->mutable_sgd()->set_momentum(0);
  EXPECT_EQ(Needs(train, inventory, layout, 0).optimizer_state, 0u);
}

TEST(Compile, DdpIsTheSameOnEveryRankAndOwnsOnce) {
  Train train = Tiny();
  train.mutable_strategy()->mutable_ddp();
  train.mutable_batch()->set_sequences(10);
  train.mutable_batch()->set_microbatch(2);
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(3));
  EXPECT_EQ(layout.table.shards(), 1u);
  std::vector<Schedule> schedules;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(layout.roles[rank].rank(), rank);
    EXPECT_EQ(layout.roles[rank].shard(), 0u);
    EXPECT_EQ(layout.roles[rank].replica(), rank);
    schedules.push_back(Compile(train, inventory, layout, rank)->schedule);
  }
  EXPECT_EQ(schedules[0].microbatches, 2);
  EXPECT_EQ(Digest(schedules[0]), Digest(schedules[2]));
  train.mutable_precision()->set_reduce(DTYPE_BF16);
  EXPECT_EQ(Needs(train, inventory, layout, 1).reduce_buffers, 2 * partition::FlatElements(inventory));
}

TEST(Compile, DdpOnOneRankIsSingle) {
  Train train = Tiny();
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(1));
  const std::string single = Compile(train, inventory, layout, 0)->digest;
  train.mutable_strategy()->mutable_ddp();
  EXPECT_EQ(Compile(train, inventory, *MakeLayout(train, inventory, AnyPlaces(1)), 0)->digest, single);
}

TEST(Compile, SmallBucketsAreMore) {
  Train train = Tiny();
  const Inventory inventory = *models::MakeInventory(train.model());
  const auto reductions = [&](double mib) {
    if (mib > 0) train.mutable_strategy()->mutable_ddp()->set_bucket_mib(mib);
    if (mib == 0) train.mutable_strategy()->mutable_ddp()->clear_bucket_mib();
    const Layout layout = *MakeLayout(train, inventory, AnyPlaces(2));
    const RankProgram program = *Compile(train, inventory, layout, 0);
    int count = 0;
    for (const Op& op : program.schedule.ops) count += op.kind == OpKind::kAllReduce;
    return count;
  };
  EXPECT_EQ(reductions(1000), 2) << "what there is before the front, and the embedding";
  EXPECT_EQ(reductions(1e-6), inventory.units_size());
  EXPECT_GT(reductions(0), 1) << "some of it overlaps the backward, also for small models";
}

// Four blocks of 2 x 128 x 128 floats of input each: all of them in host memory, of any dtype, and two slots for them.
TEST(Memory, OffloadedActivationsAreOnTheHost) {
  Train train = Tiny();
  train.mutable_batch()->set_sequences(6), train.mutable_batch()->set_microbatch(2);
  train.set_activation_checkpointing(true);
  const uint64_t input = 2 * 128 * 128 * 4;
  for (const Device device : {DEVICE_CPU, DEVICE_CUDA}) {
    for (const Dtype compute : {DTYPE_FP32, DTYPE_BF16}) {
      train.mutable_precision()->set_compute(compute);
      train.mutable_offload()->Clear();
      const Inventory inventory = *models::MakeInventory(train.model(), device);
      const Layout layout = *MakeLayout(train, inventory, AnyPlaces(1));
      const Memory kept = Needs(train, inventory, layout);
      train.mutable_offload()->set_activations(true);
      const Memory offloaded = Needs(train, inventory, layout);
      EXPECT_EQ(offloaded.host, 4 * input);
      // At the peak, in the last block's backward, the inputs of all four are gone.
      EXPECT_EQ(offloaded.activations, kept.activations - 4 * input + 2 * input);
      EXPECT_EQ(offloaded.peak, kept.peak - 2 * input + (device == DEVICE_CPU ? 4 * input : 0));
      train.mutable_offload()->set_to("/nvme");
      EXPECT_EQ(Needs(train, inventory, layout).peak, kept.peak - 2 * input) << "a file is in no memory";
      train.mutable_offload()->set_optimizer(true);
      const uint64_t activations = Needs(train, inventory, layout).host;
      train.mutable_offload()->set_activations(false);
      EXPECT_EQ(activations, Needs(train, inventory, layout).host + 4 * input);
    }
  }
  train.mutable_offload()->set_activations(true), train.set_activation_checkpointing(false);
  const Inventory inventory = *models::MakeInventory(train.model());
  const RankProgram program = *Compile(train, inventory, *MakeLayout(train, inventory, AnyPlaces(1)), 0);
  EXPECT_EQ(program.schedule.host_input_slots, 0) << "without checkpointing there is nothing to offload";
}

// Expected bytes by hand: `own` elements belong to its shard, `all` to every shard.
TEST(Memory, ShardsHoldWhatTheyOwnAndTheirSlots) {
  Train train = Tiny();
  train.mutable_batch()->set_sequences(12);
  train.mutable_batch()->set_microbatch(2);
  const Inventory inventory = *models::MakeInventory(train.model());
  struct Case {
    std::string name;
    std::function<void(Train&)> set;
    bool whole_parameters, whole_gradients;
  };
  const std::vector<Case> cases = {
      {"zero 1", [](Train& t) { t.mutable_strategy()->mutable_zero()->set_stage(1); }, true, true},
      {"zero 2", [](Train& t) { t.mutable_strategy()->mutable_zero()->set_stage(2); }, true, false},
      {"zero 3", [](Train& t) { t.mutable_strategy()->mutable_zero()->set_stage(3); }, false, false},
      {"full_shard", [](Train& t) { t.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD); }, false,
       false},
      {"hold",
       [](Train& t) {
         t.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD);
         t.mutable_strategy()->mutable_fsdp()->set_accumulation(ACCUMULATION_HOLD);
       },
       false, true},
  };
  for (const Case& c : cases) {
    Train t = train;
    c.set(t);
    const Layout layout = *MakeLayout(t, inventory, AnyPlaces(3));
    const RankProgram program = *Compile(t, inventory, layout, 0);
    const std::vector<partition::OwnedUnit> units = partition::OwnedUnits(layout.table, inventory);
    const std::vector<uint64_t> owned = partition::OwnedElements(layout.table, inventory);
    uint64_t all = 0, largest = 0;
    for (const partition::OwnedUnit& unit : units) {
      all += unit.flat.elements;
      largest = std::max(largest, unit.flat.elements);
    }
    const std::vector<Memory> shards = MemoryByShard(t, inventory, layout, {program});
    ASSERT_EQ(shards.size(), 3u);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const Memory m = MemoryOf(t, inventory, layout, program, rank);
      EXPECT_EQ(m.peak, shards[rank].peak);
      EXPECT_EQ(m.parameters, 4 * (c.whole_parameters ? all : owned[rank])) << c.name;
      EXPECT_EQ(m.gradients, 4 * (c.whole_gradients ? all : owned[rank])) << c.name;
      EXPECT_EQ(m.optimizer_state, 8 * owned[rank]) << c.name;
      EXPECT_EQ(m.gather_buffers > 0, !c.whole_parameters) << c.name;
      EXPECT_EQ(m.reduce_buffers > 0, !c.whole_gradients) << c.name;
      // The embedding, which the head borrows, keeps its slot for longer.
      EXPECT_LE(m.gather_buffers, 4 * 3 * largest) << c.name;
      EXPECT_LE(m.reduce_buffers, 4 * all) << c.name;
      EXPECT_EQ(m.peak,
                m.parameters + m.gradients + m.optimizer_state + m.gather_buffers + m.reduce_buffers + m.activations);
    }
    t.mutable_precision()->set_compute(DTYPE_BF16);
    t.mutable_precision()->set_reduce(DTYPE_BF16);
    const Memory fp32 = shards[1], bf16 = MemoryOf(t, inventory, layout, *Compile(t, inventory, layout, 1), 1);
    EXPECT_EQ(bf16.parameters, (c.whole_parameters ? 2 * all : 0) + 4 * owned[1]) << c.name;
    EXPECT_EQ(bf16.gradients, fp32.gradients) << c.name;
    EXPECT_EQ(bf16.gather_buffers, fp32.gather_buffers / 2) << c.name;
    EXPECT_EQ(bf16.reduce_buffers, fp32.reduce_buffers * 3 / 2 + (c.whole_gradients ? 2 * all : 0)) << c.name;
  }
}

// By full_shard with units cut evenly, or by ddp.
void ShardOrReplicate(bool shard, Train& train) {
  if (shard) {
    train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_FULL_SHARD);
    train.mutable_strategy()->mutable_fsdp()->set_placement(PLACEMENT_EVEN);
  } else {
    train.mutable_strategy()->mutable_ddp();
  }
}

// Bytes by hand: of what is frozen 2 in bf16, and nothing beside parameters that are whole; of what is trained a master
// in fp32.
TEST(Memory, FrozenWeightsHaveNoMasterInBf16) {
  Train train = Tiny();
  train.add_freeze("wte.*");
  const Inventory inventory = *models::MakeInventory(train);
  for (const bool sharded : {false, true}) {
    ShardOrReplicate(sharded, train);
    const Layout layout = *MakeLayout(train, inventory, AnyPlaces(2));
    const uint64_t own = partition::OwnedElements(layout.table, inventory)[0],
                   trained = partition::TrainedElements(layout.table, inventory)[0];
    ASSERT_LT(trained, own);
    const auto bytes = [&](Dtype compute) {
      train.mutable_precision()->set_compute(compute);
      return Needs(train, inventory, layout, 0).parameters;
    };
    EXPECT_EQ(bytes(DTYPE_FP32), 4 * own);
    EXPECT_EQ(bytes(DTYPE_FP16), (sharded ? 0 : 2 * own) + 4 * own);
    EXPECT_EQ(bytes(DTYPE_BF16), sharded ? 4 * trained + 2 * (own - trained) : 2 * own + 4 * trained);
    train.mutable_precision()->set_params(DTYPE_BF16);
    EXPECT_EQ(bytes(DTYPE_BF16), 2 * own) << "no master at all";
    train.mutable_precision()->set_params(DTYPE_FP32);
  }
}

// The units of a GPU compute larger pieces, and its process has a context, workspaces and communicators.
TEST(Memory, AGpuTakesMoreThanItsTensors) {
  Train train = Tiny();
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_HYBRID);
  train.mutable_strategy()->mutable_fsdp()->set_shard_ranks(2);
  const Inventory cpu = *models::MakeInventory(train.model()), gpu = *models::MakeInventory(train.model(), DEVICE_CUDA);
  constexpr uint64_t kMiB = 1 << 20;
  for (const auto& [ranks, fixed] : std::map<uint32_t, uint64_t>{
           {2, (576 + 256) * kMiB}, {4, (576 + 3 * 256) * kMiB}}) {  // the world; it and shards and replicas
    const Layout layout = *MakeLayout(train, gpu, AnyPlaces(ranks));
    const Memory on_gpu = Needs(train, gpu, layout), on_cpu = Needs(train, cpu, layout);
    EXPECT_EQ(on_gpu.fixed, fixed);
    EXPECT_EQ(on_cpu.fixed, 0u);
    EXPECT_GT(on_gpu.activations, on_cpu.activations);
    EXPECT_EQ(on_gpu.peak - on_gpu.fixed - on_gpu.activations, on_cpu.peak - on_cpu.activations);
  }
  Inventory exchanging = gpu;
  exchanging.mutable_units(1)->mutable_exchange()->set_collectives(1);
  const Layout two = *MakeLayout(train, gpu, AnyPlaces(2));
  EXPECT_EQ(Needs(train, exchanging, two).fixed, (576 + 2 * 256) * kMiB) << "and one for what units exchange";
  // The world, and those that exchange inside units; with both kinds also replicas and the ranks of one model, which
  // are no longer the world.
  train.mutable_strategy()->mutable_ddp();
  for (const auto& [context, tensor, communicators] :
       std::vector<std::tuple<uint32_t, uint32_t, uint64_t>>{{1, 2, 2}, {2, 1, 2}, {2, 2, 5}}) {
    train.mutable_parallel()->set_context(context), train.mutable_parallel()->set_tensor(tensor);
    const Inventory of = *models::MakeInventory(train, DEVICE_CUDA);
    EXPECT_EQ(Needs(train, of, *MakeLayout(train, of, AnyPlaces(context * tensor))).fixed,
              (576 + communicators * 256) * kMiB)
        << context << " x " << tensor;
  }
  train.mutable_strategy()->mutable_single();
  EXPECT_EQ(Needs(train, gpu, *MakeLayout(train, gpu, AnyPlaces(1))).fixed, 576 * kMiB);
}

// In a V, activations and gradients go both ways between the same two stages, over edges of their own.
TEST(Memory, AStageHasACommunicatorForEachOfItsEdges) {
  Train train = Tiny();
  train.mutable_model()->mutable_gpt2()->set_layers(8);
  train.mutable_parallel()->set_pipeline(4);
  constexpr uint64_t kCommunicator = uint64_t{256} << 20;
  const auto fixed = [&](PipelineSchedule schedule, uint32_t chunks, const Train& of) {
    Train with = of;
    with.mutable_pipeline()->set_schedule(schedule), with.mutable_pipeline()->set_chunks(chunks);
    const Inventory inventory = *models::MakeInventory(with.model(), DEVICE_CUDA);
    const Layout layout = *MakeLayout(with, inventory, AnyPlaces(4));
    std::vector<uint64_t> communicators;
    for (uint32_t stage = 0; stage < 4; ++stage) {
      communicators.push_back((Needs(with, inventory, layout, stage).fixed - (uint64_t{576} << 20)) / kCommunicator);
    }
    return communicators;
  };
  using Counts = std::vector<uint64_t>;
  Train untied = train;
  *untied.mutable_model() = Model();
  Llama& llama = *untied.mutable_model()->mutable_llama();
  llama.set_layers(8), llama.set_heads(2), llama.set_key_value_heads(2), llama.set_width(32), llama.set_inner(64);
  llama.set_vocabulary(64), llama.set_context(16);
  constexpr uint64_t world = 1;  // which is also the group of those that hold one copy of the model
  EXPECT_EQ(fixed(PIPELINE_SCHEDULE_1F1B, 1, untied), (Counts{world + 2, world + 4, world + 4, world + 2}));
  EXPECT_EQ(fixed(PIPELINE_SCHEDULE_ZERO_BUBBLE, 2, untied), (Counts{world + 4, world + 8, world + 8, world + 4}));
  EXPECT_EQ(fixed(PIPELINE_SCHEDULE_INTERLEAVED, 2, untied), (Counts{world + 4, world + 4, world + 4, world + 4}));
  // The embedding, which the head borrows.
  EXPECT_EQ(fixed(PIPELINE_SCHEDULE_INTERLEAVED, 2, train), (Counts{world + 6, world + 4, world + 4, world + 6}));
}

TEST(Memory, KeptParametersTakeASlotForEachUnit) {
  Train train = Tiny();
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_SHARD_GRAD_OP);
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(2));
  EXPECT_EQ(Needs(train, inventory, layout).gather_buffers, 4 * partition::FlatElements(inventory));
}

TEST(Memory, HybridHoldsAShardOfItsGroup) {
  Train train = Tiny();
  Fsdp& fsdp = *train.mutable_strategy()->mutable_fsdp();
  fsdp.set_reshard(RESHARD_HYBRID);
  fsdp.set_shard_ranks(2);
  fsdp.set_prefetch(1);
  train.mutable_precision()->set_reduce(DTYPE_BF16);
  const Inventory inventory = *models::MakeInventory(train.model());
  const Memory four = Needs(train, inventory, *MakeLayout(train, inventory, AnyPlaces(4)));
  const Memory two = Needs(train, inventory, *MakeLayout(train, inventory, AnyPlaces(2)));
  EXPECT_EQ(four.parameters, two.parameters);
  EXPECT_EQ(four.gather_buffers, two.gather_buffers);
  EXPECT_EQ(four.reduce_buffers, two.reduce_buffers) << "what it owns is sent to the replicas in place";
}

TEST(Memory, AThousandRanksAreQuick) {
  Train train = Tiny();
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_XL);
  train.mutable_batch()->set_sequences(1024);
  train.mutable_strategy()->mutable_fsdp()->set_prefetch(1);
  const Inventory inventory = *models::MakeInventory(train.model());
  const Layout layout = *MakeLayout(train, inventory, AnyPlaces(1024));
  const std::vector<Memory> shards = MemoryByShard(train, inventory, layout, {*Compile(train, inventory, layout, 0)});
  ASSERT_EQ(shards.size(), 1024u);
  // 1.56 billion parameters, a thousandth of 16 bytes each.
  EXPECT_NEAR(static_cast<double>(shards[7].parameters + shards[7].gradients + shards[7].optimizer_state),
              16.0 * 1.5576e9 / 1024, 0.01 * 16 * 1.5576e9 / 1024);
}

// 8 stages of 16 shards of 8 tensor ranks, in a fifth of the work that a slow core does in a second (Budget::Limits).
TEST(Memory, AMeshOfAThousandRanksTakesLittleWork) {
  Train train = Tiny();
  train.mutable_model()->mutable_llama()->set_size(LLAMA_SIZE_70B);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_batch()->set_sequences(1024), train.mutable_batch()->set_microbatch(1);
  train.mutable_parallel()->set_pipeline(8), train.mutable_parallel()->set_tensor(8);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
  train.mutable_strategy()->mutable_fsdp()->set_reshard(RESHARD_SHARD_GRAD_OP);
  const Inventory inventory = *models::MakeInventory(train);
  Budget budget({.work = 100'000'000 / 5});
  const auto layout = MakeLayout(train, inventory, AnyPlaces(1024), &budget);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->mesh, (Mesh{.pipeline = 8, .replica = 1, .shard = 16, .tensor = 8}));
  const auto programs = Outline(train, inventory, *layout, &budget);
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_EQ(programs->size(), 8u) << "one for each stage, whatever its ranks";
  const std::vector<Memory> owners = MemoryByShard(train, inventory, *layout, *programs);
  ASSERT_EQ(owners.size(), 1024u);
  double state = 0;
  for (const Memory& memory : owners) state += static_cast<double>(memory.optimizer_state);
  // AdamW's 8 bytes for each of 70.55 billion parameters; norms are counted by one of the ranks that have them.
  EXPECT_NEAR(state, 8 * 70.55e9, 0.01 * 8 * 70.55e9);
}

TEST(ShareOf, CoversTheBatchInOrder) {
  for (const uint64_t sequences : {0u, 1u, 5u, 8u, 13u}) {
    for (const uint32_t world : {1u, 2u, 3u, 7u}) {
      uint64_t next = 0;
      for (uint32_t rank = 0; rank < world; ++rank) {
        const Share share = ShareOf(sequences, world, rank);
        EXPECT_EQ(share.first, next);
        EXPECT_LE(share.sequences, ShareOf(sequences, world, 0).sequences);
        EXPECT_GE(share.sequences + 1, ShareOf(sequences, world, 0).sequences);
        next += share.sequences;
      }
      EXPECT_EQ(next, sequences);
    }
  }
}

// A front without a backward, and a head that goes back for the adapters before it alone.
TEST(Compile, AStageThatTrainsNothingHasAStepWithItsOptimizerOffloaded) {
  Train front = Tiny(), head = Tiny();
  for (const char* frozen : {"wte*", "wpe*", "h.0.*", "h.1.*"}) front.add_freeze(frozen);
  front.mutable_pipeline()->add_cut("h.2");
  head.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_SMALL);
  head.mutable_lora()->set_rank(8), head.mutable_lora()->set_alpha(8), head.mutable_lora()->add_targets("c_attn");
  for (const char* begins : {"h.4", "h.8", "head"}) head.mutable_pipeline()->add_cut(begins);
  for (const auto& [which, frozen_stage] : {std::pair(front, 0u), std::pair(head, 3u)}) {
    Train train = which;
    const auto stages = static_cast<uint32_t>(train.pipeline().cut_size()) + 1;
    train.mutable_parallel()->set_pipeline(stages);
    train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
    train.mutable_batch()->set_microbatch(2);
    train.mutable_offload()->set_optimizer(true);
    const Inventory inventory = *models::MakeInventory(train);
    const Layout layout = *MakeLayout(train, inventory, AnyPlaces(stages));
    const absl::StatusOr<std::vector<RankProgram>> programs = CompileStages(train, inventory, layout);
    ASSERT_TRUE(programs.ok()) << programs.status();
    for (uint32_t stage = 0; stage < stages; ++stage) {
      std::vector<int32_t> steps;  // their first units
      for (const Op& op : (*programs)[stage].schedule.ops) {
        if (op.kind == OpKind::kOptimizerStep) steps.push_back(op.unit);
      }
      EXPECT_FALSE(steps.empty()) << stage;
      EXPECT_EQ(steps == std::vector<int32_t>{-1}, stage == frozen_stage) << stage;
    }
    const uint64_t frozen = partition::FlatElements(StageModel(inventory, layout, frozen_stage).inventory());
    EXPECT_EQ(MemoryByShard(train, inventory, layout, *programs)[frozen_stage].host, 4 * frozen)
        << "its weights are in host memory like those of other stages";
  }
}

// The head borrows from the embedding, and so does the block before it.
TEST(Compile, StagesShareTensorsOfOneUnitAtEachEnd) {
  Train train = Tiny();
  Inventory inventory = *models::MakeInventory(train.model());
  Borrow& borrow = *inventory.mutable_units(4)->add_borrows();
  borrow.set_unit("embedding"), borrow.set_tensor("wpe.weight");
  for (const uint32_t stages : {2u, 3u}) {
    train.mutable_parallel()->set_pipeline(stages);
    train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_1F1B);
    for (const bool sharded : {false, true}) {
      ShardOrReplicate(sharded, train);
      train.mutable_pipeline()->clear_cut();
      for (const char* begins : {"h.2", "h.3"}) {
        if (train.pipeline().cut_size() + 1 < static_cast<int>(stages)) train.mutable_pipeline()->add_cut(begins);
      }
      const absl::Status both = MakeLayout(train, inventory, AnyPlaces(2 * stages)).status();
      EXPECT_TRUE(absl::IsInvalidArgument(both)) << both;
      EXPECT_TRUE(absl::StartsWith(both.message(),
                                   absl::StrCat("parallel.pipeline: units h.3 and head on stage ", stages - 1,
                                                " both borrow wpe.weight and wte.weight of unit embedding on stage 0")))
          << both;
      // On a stage each.
      if (stages == 2) continue;
      train.mutable_pipeline()->set_cut(1, "head");
      const absl::StatusOr<Layout> apart = MakeLayout(train, inventory, AnyPlaces(2 * stages));
      ASSERT_TRUE(apart.ok()) << apart.status();
      EXPECT_EQ(CompileStages(train, inventory, *apart).status(), absl::OkStatus());
    }
  }
}

// Eight chunks of a unit each, two a stage in a V: stage 1 awaits the gradient of h.5 before it goes on with its first
// chunk, and stage 0, which has the head, sends it after all of its own.
TEST(Compile, StagesThatWouldWaitForEachOtherAreRefused) {
  Train train = Tiny();
  train.mutable_model()->mutable_gpt2()->set_layers(6);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_parallel()->set_pipeline(4);
  train.mutable_pipeline()->set_schedule(PIPELINE_SCHEDULE_ZERO_BUBBLE);
  train.mutable_pipeline()->set_chunks(2);
  Inventory inventory = *models::MakeInventory(train.model());
  for (Unit& unit : *inventory.mutable_units()) unit.clear_deferred_bytes();
  const auto compiled = [&] {
    return CompileStages(train, inventory, *MakeLayout(train, inventory, AnyPlaces(4))).status();
  };
  EXPECT_EQ(compiled(), absl::OkStatus());
  Borrow& borrow = *inventory.mutable_units(7)->add_borrows();
  borrow.set_unit("h.5"), borrow.set_tensor("h.5.ln_1.weight");
  const absl::Status status = compiled();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "unit head on stage 0 borrows h.5.ln_1.weight of unit h.5 on stage 1; use "
                                "pipeline.schedule 1f1b or gpipe"))
      << status;
}

TEST(Compile, RefusesWhatItCannotDo) {
  Train train = Tiny();
  const Inventory inventory = *models::MakeInventory(train.model());
  const absl::Status two = MakeLayout(train, inventory, AnyPlaces(2)).status();
  EXPECT_EQ(two.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(two.message(), "one rank"));
  train.mutable_parallel()->set_pipeline(2);
  const absl::Status odd = MakeLayout(train, inventory, AnyPlaces(3)).status();
  EXPECT_TRUE(absl::StrContains(odd.message(), "parallel.pipeline: 2 stages do not divide 3 ranks")) << odd;
  const absl::Status wide = MakeLayout(train, inventory, AnyPlaces(4)).status();
  EXPECT_TRUE(absl::StrContains(wide.message(), "single runs on one rank a stage")) << wide;
  train.clear_parallel();
  Fsdp& fsdp = *train.mutable_strategy()->mutable_fsdp();
  fsdp.set_reshard(RESHARD_HYBRID);
  fsdp.set_shard_ranks(2);
  EXPECT_EQ(MakeLayout(train, inventory, AnyPlaces(3)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Microbatches, RoundUpTheLargestShare) {
  const auto of = [](uint32_t sequences, uint32_t microbatch, uint32_t world) {
    Batch batch;
    batch.set_sequences(sequences);
    if (microbatch > 0) batch.set_microbatch(microbatch);
    return Microbatches(batch, world);
  };
  EXPECT_EQ(of(8, 0, 1), 1u);
  EXPECT_EQ(of(8, 2, 1), 4u);
  EXPECT_EQ(of(8, 3, 1), 3u);
  EXPECT_EQ(of(8, 2, 3), 2u);
  EXPECT_EQ(of(7, 1, 2), 4u);
  EXPECT_EQ(of(1, 1, 4), 1u);
}

}  // namespace
}  // namespace muster::strategies
