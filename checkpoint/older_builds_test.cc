// A checkpoint as the first builds wrote it (2026-11-21), as literals: none of it is made by today's writer.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "checkpoint/checkpoint_fixture_test.h"
#include "strategies/partition/table.h"

namespace muster::checkpoint {
namespace {

using ::testing::ElementsAre;

// No pipeline, no tensor ranks, no replicas: neither the table nor the shards' headers know boxes, stages or shares.
// Shards have no checksums of blocks, kinds of units have numbers, and the update's state and the task are not stored.
constexpr char kManifest[] = R"({
 "format": 1,
 "job": "gpt2-k3x9",
 "generation": "2",
 "step": "20",
 "samples_consumed": "160",
 "table": {
  "shards": 2,
  "units": [
   {
    "unit": "embedding",
    "pieces": [
     {"tensor": "wte.weight", "extents": [{"length": "8"}, {"shard": 1, "begin": "8", "length": "4"}]},
     {"tensor": "wpe.weight", "extents": [{"shard": 1, "length": "8"}]}
    ]
   },
   {"unit": "head", "boundaries": ["0", "16", "32"]}
  ]
 },
 "shards": [
  {
   "file": "shard-00000.safetensors",
   "bytes": "384",
   "sha256": "964d5d22658451cc6f2ede0c94e127ef03abce2c4e941e4c19668f3fc15b6d14"
  },
  {
   "shard": 1,
   "file": "shard-00001.safetensors",
   "bytes": "384",
   "sha256": "8762f236a971dd7abacacb960630302d5e0dd66b598132279fdd9b73165839e0"
  }
 ],
 "spec": {
  "api_version": "muster/v1",
  "kind": "Job",
  "name": "gpt2",
  "resources": {"ranks": 2, "device": "DEVICE_CPU"},
  "max_restarts": 3,
  "priority": 0,
  "train": {
   "model": {"gpt2": {"layers": 1, "heads": 1, "width": 4, "vocabulary": 3, "context": 2}},
   "data": {"tokens": "/data/train.bin", "order": "DATA_ORDER_SHUFFLED"},
   "strategy": {"zero": {"stage": 1}},
   "batch": {"sequences": 8, "microbatch": 4},
   "precision": {"compute": "DTYPE_FP32", "reduce": "DTYPE_FP32"},
   "optimizer": {
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-08},
    "lr": 0.0003,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
    "lr_schedule": {"cosine": {"min_lr": 3e-05}, "warmup_steps": "5"}
   },
   "checkpoint": {"path": "/checkpoints", "every_steps": "10", "keep": 2},
   "steps": "40",
   "seed": "1",
   "validation": {"every_steps": "100", "sequences": 64}
  }
 },
 "inventory": {
  "family": "gpt2",
  "units": [
   {
    "name": "embedding",
    "kind": "UNIT_KIND_GPT2_EMBEDDING",
    "tensors": [
     {
      "name": "wte.weight",
      "shape": ["3", "4"],
      "init": {"kind": "NORMAL", "standard_deviation": 0.02},
      "decay": true
     },
     {
      "name": "wpe.weight",
      "shape": ["2", "4"],
      "init": {"kind": "NORMAL", "standard_deviation": 0.02},
      "decay": true
     }
    ],
    "forward_flops": 8,
    "saved_bytes": "8",
    "output_bytes": "32"
   },
   {
    "name": "head",
    "kind": "UNIT_KIND_GPT2_HEAD",
    "tensors": [
     {"name": "ln_f.weight", "shape": ["4"], "init": {"kind": "ONES"}},
     {"name": "ln_f.bias", "shape": ["4"], "init": {"kind": "ZEROS"}}
    ],
    "borrows": [{"unit": "embedding", "tensor": "wte.weight"}],
    "forward_flops": 48,
    "saved_bytes": "32",
    "output_bytes": "4"
   }
  ],
  "vocabulary": "3",
  "context": "2"
 },
 "written_by": "muster 0.1.0"
})";
constexpr char kManifestSum[] = "1e1142e0ab93c617c840d7ed20c461b1931096bfda8544db302de897af3c9837  manifest.json\n";

constexpr char kHeader0[] = R"({"__metadata__":{"format":"pt","wte.weight@0":"0 3x4"},)"
                            R"("wte.weight@0":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},)"
                            R"("ln_f.weight":{"dtype":"F32","shape":[4],"data_offsets":[32,48]},)"
                            R"("optimizer.exp_avg.ln_f.weight":{"dtype":"F32","shape":[4],"data_offsets":[48,64]}})";
constexpr char kHeader1[] = R"({"__metadata__":{"format":"pt","wte.weight@8":"8 3x4"},)"
                            R"("wte.weight@8":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
                            R"("wpe.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[16,48]},)"
                            R"("ln_f.bias":{"dtype":"F32","shape":[4],"data_offsets":[48,64]}})";

constexpr float kShard0[] = {0.5f,         -1.0f,        1.5f,       2.0f,
                             -2.5f,        3.0f,         3.5f,       -4.0f,                  // wte.weight, rows 0 and 1
                             1.0f,         1.25f,        0.75f,      1.0f,                   // ln_f.weight
                             0.001953125f, -0.00390625f, 0.0078125f, 0.5f};                  // its exp_avg
constexpr float kShard1[] = {4.5f,   5.0f,   5.5f,   -6.0f,                                  // wte.weight, row 2
                             0.125f, -0.25f, 0.375f, 0.5f,   -0.625f, 0.75f, 0.875f, -1.0f,  // wpe.weight
                             -0.25f, 0.0f,   0.5f,   0.0625f};                               // ln_f.bias

// A safetensors file: the header's length and its text, with spaces up to a multiple of 64 bytes, and the values.
std::string File(std::string header, const float (&values)[16]) {
  while ((sizeof(uint64_t) + header.size()) % 64 != 0) header += ' ';
  const uint64_t length = header.size();
  std::string bytes(sizeof length + header.size() + sizeof values, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, header.data(), header.size());
  std::memcpy(bytes.data() + sizeof length + header.size(), values, sizeof values);
  return bytes;
}

std::vector<float> ReadAll(const Checkpoint& checkpoint, const std::string& name, const std::vector<uint64_t>& shape,
                           uint64_t begin, size_t elements, const models::FlatBox& box = {}) {
  std::vector<float> values(elements, 99);
  const absl::Status status = checkpoint.Read({name, shape, begin, absl::MakeSpan(values), {}, box});
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

// Returns the checkpoint's folder.
std::string WriteFirstFormat(const std::string& folder, const std::string& shard0, const std::string& shard1) {
  const std::string path = folder + "/step-0000000020-g2";
  std::filesystem::create_directory(path);
  Dump(path + "/manifest.json", kManifest);
  Dump(path + "/manifest.sha256", kManifestSum);
  Dump(path + "/shard-00000.safetensors", shard0);
  Dump(path + "/shard-00001.safetensors", shard1);
  return path;
}

TEST(OlderBuilds, TheFirstFormatIsRead) {
  const TemporaryFolder folder;
  const std::string path = WriteFirstFormat(folder.path(), File(kHeader0, kShard0), File(kHeader1, kShard1));
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(ReadAll(*checkpoint, "wte.weight", {3, 4}, 0, 12),
              ElementsAre(0.5, -1, 1.5, 2, -2.5, 3, 3.5, -4, 4.5, 5, 5.5, -6));
  EXPECT_THAT(ReadAll(*checkpoint, "wte.weight", {3, 4}, 6, 4), ElementsAre(3.5, -4, 4.5, 5)) << "of both shards";
  EXPECT_THAT(ReadAll(*checkpoint, "wpe.weight", {2, 4}, 0, 8),
              ElementsAre(0.125, -0.25, 0.375, 0.5, -0.625, 0.75, 0.875, -1));
  EXPECT_THAT(ReadAll(*checkpoint, "ln_f.weight", {4}, 0, 4), ElementsAre(1, 1.25, 0.75, 1));
  EXPECT_THAT(ReadAll(*checkpoint, "ln_f.bias", {4}, 0, 4), ElementsAre(-0.25, 0, 0.5, 0.0625));
  EXPECT_THAT(ReadAll(*checkpoint, "optimizer.exp_avg.ln_f.weight", {4}, 0, 4),
              ElementsAre(0.001953125, -0.00390625, 0.0078125, 0.5));
  // Columns 2 and 3, as the second of two ranks that compute the unit together.
  EXPECT_THAT(ReadAll(*checkpoint, "wte.weight", {3, 4}, 0, 6, {.row = 4, .begin = 2, .run = 2}),
              ElementsAre(1.5, 2, 3.5, -4, 5.5, -6));

  const Manifest& manifest = checkpoint->manifest();
  EXPECT_EQ(manifest.step(), 20u);
  EXPECT_EQ(manifest.generation(), 2u);
  EXPECT_EQ(manifest.samples_consumed(), 160u);
  EXPECT_FALSE(manifest.has_update());
  EXPECT_EQ(manifest.spec().train().strategy().zero().stage(), 1u);
  EXPECT_EQ(manifest.spec().train().optimizer().lr(), 0.0003);
  EXPECT_EQ(partition::Check(manifest.table(), manifest.inventory()), absl::OkStatus());
  EXPECT_EQ(partition::MeshOf(manifest.table()), (Mesh{.shard = 2})) << "one stage, whose units no ranks share";
  EXPECT_THAT(partition::OwnedElements(manifest.table(), manifest.inventory()), ElementsAre(24, 40));
}

TEST(OlderBuilds, TheFirstFormatIsChecked) {
  const TemporaryFolder folder;
  const std::string of_another = File(kHeader1, kShard0);
  const std::string path = WriteFirstFormat(folder.path(), File(kHeader0, kShard0), of_another);
  EXPECT_EQ(Checkpoint::Open(path, Verification::kAsRead).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace muster::checkpoint
