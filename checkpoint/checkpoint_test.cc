#include "checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/bf16.h"
#include "checkpoint/checkpoint_fixture_test.h"
#include "common/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "strategies/partition/planners.h"
#include "testing/without_file_override.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

TEST_F(CheckpointTest, WhatIsWrittenIsRead) {
  const Written written = WriteStep(100, 3).value();
  EXPECT_EQ(written.name.Directory(), "step-0000000100-g3");
  EXPECT_THAT(Names(), ElementsAre("step-0000000100-g3"));
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(Directory(100, 3))) bytes += entry.file_size();
  EXPECT_EQ(written.bytes, bytes);
  ExpectWhole(100, 3);
  const auto checkpoint = Checkpoint::Open(Directory(100, 3)).value();
  EXPECT_EQ(checkpoint.manifest().samples_consumed(), 800u);
  EXPECT_EQ(checkpoint.manifest().format(), 1u);
  EXPECT_EQ(checkpoint.manifest().inventory().SerializeAsString(), MakeManifest(1).inventory().SerializeAsString());
  EXPECT_EQ(checkpoint.manifest().spec().name(), "job");
}

// What torch.Tensor.to(torch.bfloat16) of PyTorch 2.13 gives: ties, a carry, subnormal numbers, overflow.
TEST(Bf16, RoundsAsPyTorchDoes) {
  const std::pair<float, uint16_t> table[] = {{1.0f, 0x3f80},          {1.00390625f, 0x3f80}, {1.01171875f, 0x3f82},
                                              {1.0039063f, 0x3f80},    {-2.5e-40f, 0x8003},   {1e-45f, 0x0000},
                                              {3.3895314e38f, 0x7f7f}, {3.4e38f, 0x7f80},     {-0.0f, 0x8000},
                                              {INFINITY, 0x7f80},      {0.1f, 0x3dcd},        {-123.456f, 0xc2f7}};
  for (const auto& [value, bits] : table) EXPECT_EQ(ToBf16(value), bits) << value;
  EXPECT_TRUE(std::isnan(FromBf16(ToBf16(NAN))));
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float wide = FromBf16(static_cast<uint16_t>(bits));
    if (std::isnan(wide)) continue;
    EXPECT_EQ(ToBf16(wide), bits);
  }
}

// A file holds fp32, whatever it was in memory; longer than what is converted at once, and of two shards.
TEST_F(CheckpointTest, Bf16IsWrittenAsFp32AndReadBackBitByBit) {
  constexpr uint64_t kElements = 300'001, kCut = 70'000;
  std::vector<uint16_t> values(kElements);
  std::mt19937 random(7);
  for (uint16_t& value : values) value = ToBf16(std::uniform_real_distribution<float>(-9, 9)(random));
  const std::vector<uint64_t> shape = {kElements};
  const StepName name{.step = 1, .generation = 1};
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  ASSERT_TRUE(WriteShard(path_, name, 0, {{"w", shape, 0, {}, absl::MakeSpan(values).first(kCut)}}).ok());
  ASSERT_TRUE(WriteShard(path_, name, 1, {{"w", shape, kCut, {}, absl::MakeSpan(values).subspan(kCut)}}).ok());
  Manifest manifest = MakeManifest(1);
  manifest.mutable_table()->set_shards(2);
  ASSERT_TRUE(Finish(path_, manifest).ok());
  const auto checkpoint = Checkpoint::Open(Directory(1)).value();
  std::vector<uint16_t> narrow(kElements - 5);
  ASSERT_TRUE(checkpoint.Read({"w", shape, 5, {}, absl::MakeSpan(narrow)}).ok());
  EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), values.begin() + 5));
  std::vector<float> wide(kElements);
  ASSERT_TRUE(checkpoint.Read({"w", shape, 0, absl::MakeSpan(wide)}).ok());
  EXPECT_TRUE(
      std::equal(wide.begin(), wide.end(), values.begin(), [](float a, uint16_t b) { return a == FromBf16(b); }));
  std::vector<uint16_t> more(kElements + 1);
  EXPECT_THAT(std::string(checkpoint.Read({"w", shape, 0, {}, absl::MakeSpan(more)}).message()),
              HasSubstr("the checkpoint holds"));
}

TEST_F(CheckpointTest, ReadNamesWhatDoesNotFit) {
  ASSERT_TRUE(WriteStep(1).ok());
  const auto checkpoint = Checkpoint::Open(Directory(1)).value();
  std::vector<float> out(200);
  const absl::Status missing = checkpoint.Read({"optimizer.momentum.w", {20, 10}, 0, absl::MakeSpan(out)});
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("optimizer.momentum.w"));
  const absl::Status shape = checkpoint.Read({"w", {10, 20}, 0, absl::MakeSpan(out)});
  EXPECT_EQ(shape.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(shape.message()), HasSubstr("[20, 10] in the checkpoint, [10, 20] in the model"));
  EXPECT_EQ(Checkpoint::Open(path_ + "/none").status().code(), absl::StatusCode::kNotFound);
}

// A tensor cut over shards is read in any other cut.
TEST_F(CheckpointTest, ExtentsOfSeveralShardsAreJoined) {
  const StepName name{5, 1};
  Manifest manifest = MakeManifest(5);
  manifest.mutable_table()->set_shards(2);
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  const auto whole = absl::MakeSpan(values_).subspan(0, 200);
  for (uint32_t shard = 0; shard < 2; ++shard) {
    const auto run = shard == 0 ? whole.subspan(0, 77) : whole.subspan(77);
    const std::vector<TensorRun> runs = {{"w", {20, 10}, shard * 77, run}};
    *manifest.add_shards() = WriteShard(path_, name, shard, runs).value();
  }
  ASSERT_TRUE(Finish(path_, manifest).ok());
  const auto checkpoint = Checkpoint::Open(Directory(5)).value();
  for (const auto& [begin, length] : {std::pair{0, 200}, std::pair{0, 77}, std::pair{50, 60}, std::pair{190, 10}}) {
    std::vector<float> out(length, -1);
    ASSERT_TRUE(checkpoint.Read({"w", {20, 10}, static_cast<uint64_t>(begin), absl::MakeSpan(out)}).ok());
    EXPECT_EQ(out, std::vector<float>(values_.begin() + begin, values_.begin() + begin + length));
  }
}

// [4, 6] with the elements' numbers as values, written by two shards that have columns 0 to 2 and 3 to 5, the second
// one's as two runs. Read as a whole, by rows, by other columns and by the same ones.
TEST_F(CheckpointTest, PartsOfATensorAreReadAsAnyOtherParts) {
  const std::vector<uint64_t> shape = {4, 6};
  const models::FlatBox left{.row = 6, .begin = 0, .run = 3}, right{.row = 6, .begin = 3, .run = 3};
  std::vector<float> of_left = {0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20};
  std::vector<float> of_right = {3, 4, 5, 9, 10, 11, 15, 16, 17, 21, 22, 23};
  const StepName name{.step = 1, .generation = 1};
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  ASSERT_TRUE(WriteShard(path_, name, 0, {{"w", shape, 0, absl::MakeSpan(of_left), {}, left}}).ok());
  const absl::Span<float> both = absl::MakeSpan(of_right);
  ASSERT_TRUE(WriteShard(path_, name, 1,
                         {{"w", shape, 0, both.first(5), {}, right}, {"w", shape, 5, both.subspan(5), {}, right}})
                  .ok());
  Manifest manifest = MakeManifest(1);
  manifest.mutable_table()->set_shards(2);
  ASSERT_TRUE(Finish(path_, manifest).ok());
  const auto checkpoint = Checkpoint::Open(Directory(1)).value();
  const auto read = [&](uint64_t begin, size_t elements, const models::FlatBox& box) {
    std::vector<float> values(elements, -1);
    const absl::Status status = checkpoint.Read({"w", shape, begin, absl::MakeSpan(values), {}, box});
    EXPECT_TRUE(status.ok()) << status;
    return values;
  };
  std::vector<float> all(24);
  for (size_t i = 0; i < 24; ++i) all[i] = static_cast<float>(i);
  EXPECT_EQ(read(0, 24, {}), all);
  EXPECT_THAT(read(7, 4, {}), ElementsAre(7, 8, 9, 10));
  EXPECT_THAT(read(1, 4, {.row = 24, .begin = 12, .run = 12}), ElementsAre(13, 14, 15, 16)) << "rows 2 and 3";
  EXPECT_THAT(read(0, 8, {.row = 6, .begin = 2, .run = 2}), ElementsAre(2, 3, 8, 9, 14, 15, 20, 21));
  EXPECT_THAT(read(2, 3, {.row = 6, .begin = 2, .run = 2}), ElementsAre(8, 9, 14));
  EXPECT_EQ(read(0, 12, right), of_right);
  std::vector<float> more(13);
  EXPECT_THAT(std::string(checkpoint.Read({"w", shape, 0, absl::MakeSpan(more), {}, right}).message()),
              HasSubstr("the checkpoint holds"));
}

TEST_F(CheckpointTest, AHoleBetweenShardsIsFound) {
  const StepName name{5, 1};
  Manifest manifest = MakeManifest(5);
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  const std::vector<TensorRun> runs = {{"w", {20, 10}, 50, absl::MakeSpan(values_).subspan(0, 100)}};
  *manifest.add_shards() = WriteShard(path_, name, 0, runs).value();
  ASSERT_TRUE(Finish(path_, manifest).ok());
  std::vector<float> out(200);
  const absl::Status status = Checkpoint::Open(Directory(5)).value().Read({"w", {20, 10}, 0, absl::MakeSpan(out)});
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds 100 of 200 elements"));
}

TEST_F(CheckpointTest, EveryFlippedByteOfAManifestIsFound) {
  ASSERT_TRUE(WriteStep(1).ok());
  for (const char* file : {kManifestFile, kManifestSumFile}) {
    const std::string path = absl::StrCat(Directory(1), "/", file);
    const std::string good = Slurp(path);
    ASSERT_GT(good.size(), 70u);
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    for (size_t i = 0; i < good.size(); ++i) {
      // The byte before goes back to what it was.
      out.seekp(i > 0 ? static_cast<std::streamoff>(i - 1) : 0);
      if (i > 0) out.put(good[i - 1]);
      out.put(static_cast<char>(good[i] ^ (1 << (i % 8))));
      out.flush();
      const auto opened = Checkpoint::Open(Directory(1));
      ASSERT_EQ(opened.status().code(), absl::StatusCode::kDataLoss) << file << " byte " << i << " " << opened.status();
      ASSERT_THAT(std::string(opened.status().message()), HasSubstr("manifest"));
    }
    Dump(path, good);
  }
  EXPECT_TRUE(Checkpoint::Open(Directory(1)).ok());
}

TEST_F(CheckpointTest, FlippedBytesOfAShardAreFound) {
  ASSERT_TRUE(WriteStep(1).ok());
  const std::string path = Directory(1) + "/shard-00000.safetensors";
  const std::string good = Slurp(path);
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] ^= 1 << (random() % 8);
    Dump(path, bad);
    const auto opened = Checkpoint::Open(Directory(1));
    ASSERT_EQ(opened.status().code(), absl::StatusCode::kDataLoss);
    ASSERT_THAT(std::string(opened.status().message()), HasSubstr("shard-00000.safetensors: "));
  }
}

// A partial read verifies and reads only the blocks that it needs.
TEST_F(CheckpointTest, FlippedBytesAreFoundByWhoReadsThem) {
  ASSERT_TRUE(WriteStep(1).ok());
  const std::string path = Directory(1) + "/shard-00000.safetensors";
  const std::string good = Slurp(path);
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  std::mt19937_64 random(4);
  std::vector<float> values(300);
  const std::vector<TensorRun> runs = {{"w", {20, 10}, 0, absl::MakeSpan(values).subspan(0, 200)},
                                       {"optimizer.exp_avg.w", {10, 10}, 0, absl::MakeSpan(values).subspan(200, 100)}};
  for (int i = 0; i < 10'000; ++i) {
    const size_t at = random() % good.size();
    out.seekp(static_cast<std::streamoff>(at));
    out.put(static_cast<char>(good[at] ^ (1 << (random() % 8))));
    out.flush();
    absl::Status status;
    const auto opened = Checkpoint::Open(Directory(1), Verification::kAsRead);
    status.Update(opened.status());
    for (const TensorRun& run : runs) {
      if (opened.ok()) status.Update(opened->Read(run));
    }
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << "byte " << at << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr("shard-00000.safetensors"));
    out.seekp(static_cast<std::streamoff>(at));
    out.put(good[at]);
    out.flush();
  }
  EXPECT_TRUE(Checkpoint::Open(Directory(1)).ok());
}

TEST_F(CheckpointTest, OfALargeShardOnlyTheNeededBlocksAreRead) {
  values_.resize(5 * kBlockBytes / sizeof(float) + 7);
  Fill(1);
  const std::vector<TensorRun> runs = {{"w", {values_.size()}, 0, absl::MakeSpan(values_)}};
  ASSERT_TRUE(Write(path_, MakeManifest(1), runs).ok());
  const std::string path = Directory(1) + "/shard-00000.safetensors";
  const uint64_t header = fs::file_size(path) - values_.size() * sizeof(float);
  ASSERT_EQ(Checkpoint::Open(Directory(1)).value().manifest().shards(0).block_crc32c_size(), 1 + 6);
  // In the third block.
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(header + 2 * kBlockBytes + 77));
  out.put(1);
  out.close();
  const auto checkpoint = Checkpoint::Open(Directory(1), Verification::kAsRead).value();
  const uint64_t block = kBlockBytes / sizeof(float);
  BlockScratch scratch;
  std::vector<float> got;
  const auto read = [&](uint64_t begin, uint64_t length) {
    got.assign(length, -1);
    return checkpoint.Read({"w", {values_.size()}, begin, absl::MakeSpan(got)}, scratch);
  };
  for (const auto& [begin, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 2 * block}, {5, 100}, {block - 3, block}, {3 * block, 2 * block + 7}, {5 * block + 6, 1}}) {
    ASSERT_TRUE(read(begin, length).ok()) << begin;
    EXPECT_TRUE(std::equal(got.begin(), got.end(), values_.begin() + static_cast<std::ptrdiff_t>(begin))) << begin;
  }
  for (const auto& [begin, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, values_.size()}, {2 * block, 1}, {3 * block - 1, 1}, {2 * block - 1, 2}}) {
    const absl::Status status = read(begin, length);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << begin;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("bytes ", header + 2 * kBlockBytes, " to ")));
  }
  ASSERT_EQ(checkpoint.Verify().size(), 1u);
  EXPECT_THAT(std::string(checkpoint.Verify()[0].message()),
              AllOf(HasSubstr("SHA-256 is"), HasSubstr(absl::StrCat("damaged are bytes ", header + 2 * kBlockBytes)),
                    HasSubstr(": these bytes changed after they were written: by another program, or by a faulty disk "
                              "(see dmesg)")));
}

// Ten elements in each of eight files: two stages of two tensor ranks, and two replicas that keep something.
TEST_F(CheckpointTest, DamageOfAFileNamesWhereItsRankIs) {
  const StepName name{1, 1};
  Manifest manifest = MakeManifest(1);
  manifest.mutable_table()->set_shards(4), manifest.mutable_table()->set_stages(2);
  manifest.mutable_table()->set_tensor(2);
  manifest.set_replicas(2);
  ASSERT_TRUE(Begin(path_, {"job-1"}, name).ok());
  for (uint32_t file = 0; file < 8; ++file) {
    const std::vector<TensorRun> runs = {{"w", {80}, 10 * file, absl::MakeSpan(values_).subspan(10 * file, 10)}};
    ASSERT_TRUE(WriteShard(path_, name, file, runs).ok());
  }
  ASSERT_TRUE(Finish(path_, manifest).ok());
  std::vector<float> out(80);
  const auto read = [&](const Checkpoint& from) { return from.Read({"w", {80}, 0, absl::MakeSpan(out)}); };
  EXPECT_EQ(read(Checkpoint::Open(Directory(1)).value()), absl::OkStatus());
  const std::pair<const char*, const char*> cases[] = {{"shard-00001", "stage 0, replica 0, tensor 1: "},
                                                       {"shard-00002", "stage 1, replica 0, tensor 0: "},
                                                       {"shard-00007", "stage 1, replica 1, tensor 1: "}};
  for (const auto& [file, place] : cases) {
    const std::string path = absl::StrCat(Directory(1), "/", file, ".safetensors"), good = Slurp(path);
    std::string bytes = good;
    bytes.back() ^= 1;
    Dump(path, bytes);
    const auto names = [&, place = place](const char* what) {
      return AllOf(StartsWith(absl::StrCat(place, path)), HasSubstr(what));
    };
    const auto opened = Checkpoint::Open(Directory(1), Verification::kAsRead);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_THAT(std::string(read(*opened).message()),
                names("differ from their checksum in the manifest: these bytes changed "));
    ASSERT_EQ(opened->Verify().size(), 1u);
    EXPECT_THAT(std::string(opened->Verify()[0].message()), names("SHA-256 is"));
    EXPECT_THAT(std::string(Checkpoint::Open(Directory(1)).status().message()), names("SHA-256 is"));
    Dump(path, good.substr(0, good.size() - 1));
    EXPECT_THAT(std::string(Checkpoint::Open(Directory(1)).status().message()), names("bytes, the manifest says"));
    fs::remove(path);
    const absl::Status missing = Checkpoint::Open(Directory(1)).status();
    EXPECT_EQ(missing.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(missing.message()), StartsWith(place));
    Dump(path, good);
  }
  manifest.set_replicas(0);
  EXPECT_EQ(PlaceOfFile(manifest, 2), "stage 1, tensor 0");
  manifest.mutable_table()->set_tensor(1);
  EXPECT_EQ(PlaceOfFile(manifest, 3), "stage 1, shard 1");
  manifest.mutable_table()->set_stages(1);
  EXPECT_EQ(PlaceOfFile(manifest, 3), "") << "the file's number says it all";
  for (const uint32_t many : {3u, 8u}) {
    manifest.mutable_table()->set_tensor(many);
    EXPECT_EQ(PlaceOfFile(manifest, 3), "") << "no such mesh has four shards";
  }
}

// Older checkpoints without block checksums: the whole file is verified before any read.
TEST_F(CheckpointTest, ShardsWithoutChecksumsOfBlocksAreStillRead) {
  ASSERT_TRUE(WriteStep(1).ok());
  const std::string path = absl::StrCat(Directory(1), "/", kManifestFile);
  std::string json = Slurp(path);
  const size_t from = json.find(",\n   \"block_bytes\""), to = json.find("]", json.find("block_crc32c")) + 1;
  ASSERT_NE(from, std::string::npos) << json;
  json.erase(from, to - from);
  Dump(path, json);
  Dump(absl::StrCat(Directory(1), "/", kManifestSumFile), absl::StrCat(Sha256Hex(json), "  ", kManifestFile, "\n"));
  ASSERT_EQ(Checkpoint::Open(Directory(1)).value().manifest().shards(0).block_crc32c_size(), 0);
  ExpectWhole(1);
  std::string shard = Slurp(Directory(1) + "/shard-00000.safetensors");
  shard[shard.size() - 1] ^= 1;
  Dump(Directory(1) + "/shard-00000.safetensors", shard);
  EXPECT_EQ(Checkpoint::Open(Directory(1), Verification::kAsRead).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointTest, CutAndMissingFilesAreFound) {
  ASSERT_TRUE(WriteStep(1).ok());
  const std::string copy = path_ + "/copy";
  for (const char* file : {"shard-00000.safetensors", kManifestFile, kManifestSumFile}) {
    for (const double share : {0.0, 0.5, 0.99, -1.0}) {
      fs::remove_all(copy);
      fs::copy(Directory(1), copy);
      const std::string path = absl::StrCat(copy, "/", file);
      if (share < 0) {
        fs::remove(path);
      } else {
        fs::resize_file(path, static_cast<uint64_t>(static_cast<double>(fs::file_size(path)) * share));
      }
      const absl::Status status = Checkpoint::Open(copy).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << file << " " << share << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("copy/"));
    }
  }
}

TEST_F(CheckpointTest, AFormatOfTheFutureIsNoDamage) {
  ASSERT_TRUE(WriteStep(1).ok());
  std::string json = Slurp(absl::StrCat(Directory(1), "/", kManifestFile));
  json.replace(json.find("\"format\": 1"), 11, "\"format\": 2");
  Dump(absl::StrCat(Directory(1), "/", kManifestFile), json);
  Dump(absl::StrCat(Directory(1), "/", kManifestSumFile), absl::StrCat(Sha256Hex(json), "  ", kManifestFile, "\n"));
  const absl::Status status = Checkpoint::Open(Directory(1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 2"));
}

TEST_F(CheckpointTest, TheNewestIntactOneIsUsedAndDamageIsReported) {
  for (const uint64_t step : {1, 2, 3}) ASSERT_TRUE(WriteStep(step).ok());
  fs::resize_file(Directory(3) + "/shard-00000.safetensors", 100);
  fs::remove(absl::StrCat(Directory(2), "/", kManifestFile));
  const std::vector<std::string> folders = StepFolders(path_);
  EXPECT_THAT(folders, ElementsAre(Directory(3), Directory(2), Directory(1)));
  EXPECT_THAT(StepFolders(Directory(1)), ElementsAre(Directory(1)));
  const auto opened = OpenFirstWhole(folders).value();
  EXPECT_EQ(opened.checkpoint.manifest().step(), 1u);
  ASSERT_EQ(opened.damaged.size(), 2u);
  EXPECT_THAT(std::string(opened.damaged[0].message()), HasSubstr("step-0000000003-g1/shard-00000"));
  const auto none = OpenFirstWhole({folders[0], folders[1]});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("step-0000000002-g1/manifest.json"));
}

// It may be whole, so it is neither called damaged nor passed over.
TEST_F(CheckpointTest, WhatMayNotBeReadIsNotDamaged) {
  for (const uint64_t step : {1, 2}) ASSERT_TRUE(WriteStep(step).ok());
  const std::string newest = Directory(2), shard = newest + "/shard-00000.safetensors";
  const auto refused = [&](const absl::Status& status, const std::string& path) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat(path, ": Permission denied, this process runs as user ", geteuid())));
  };
  for (const std::string& path : {shard, absl::StrCat(newest, "/", kManifestFile), newest, path_}) {
    const fs::perms before = fs::status(path).permissions();
    fs::permissions(path, fs::perms::none);
    WithoutFileOverride([&] {
      const absl::Status status = Checkpoint::Open(newest).status();
      refused(status, path == path_ ? newest : path == newest ? absl::StrCat(newest, "/", kManifestFile) : path);
      EXPECT_EQ(OpenFirstWhole({newest, Directory(1)}).status(), status) << "not the older one";
      if (path == path_) refused(CheckListable(path_), path_);
    });
    fs::permissions(path, before);
  }
  EXPECT_TRUE(CheckListable(path_).ok());
  EXPECT_TRUE(CheckListable(path_ + "/none").ok());
  EXPECT_TRUE(Checkpoint::Open(newest).ok());
}

TEST_F(CheckpointTest, RetentionKeepsThePublishedAndTheNewestTwoUnreported) {
  for (const uint64_t step : {1, 2, 3, 4, 5, 6}) ASSERT_TRUE(WriteStep(step).ok());
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {StepName{1, 1}.Directory(), StepName{3, 1}.Directory()}).value(),
              ElementsAre("step-0000000004-g1", "step-0000000002-g1"));
  EXPECT_THAT(List(path_), ElementsAre(StepName{6, 1}, StepName{5, 1}, StepName{3, 1}, StepName{1, 1}));
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {StepName{1, 1}.Directory(), StepName{3, 1}.Directory()}).value(), IsEmpty());
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {}).value(), ElementsAre("step-0000000003-g1", "step-0000000001-g1"));
  EXPECT_THAT(List(path_), ElementsAre(StepName{6, 1}, StepName{5, 1}));
  EXPECT_THAT(Retain(path_ + "/none", {"job-1"}, 1, {}).value(), IsEmpty());
}

TEST_F(CheckpointTest, RetentionKeepsWhatMayBePublishedAtAnyMoment) {
  for (const uint64_t step : {1, 2, 3, 4, 5, 6, 7}) ASSERT_TRUE(WriteStep(step).ok());
  const std::string one = StepName{1, 1}.Directory(), two = StepName{2, 1}.Directory(),
                    three = StepName{3, 1}.Directory();
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {one}, {two, three}).value(),
              ElementsAre("step-0000000005-g1", "step-0000000004-g1"));
  EXPECT_THAT(List(path_), ElementsAre(StepName{7, 1}, StepName{6, 1}, StepName{3, 1}, StepName{2, 1}, StepName{1, 1}));
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {three}, {two, three}).value(), ElementsAre(two, one))
      << "others took their place";
}

// A restored store knows 10 and 20, which are long gone, and nothing of 30 to 50.
TEST_F(CheckpointTest, RetentionKeepsAsManyAsAreListedWhereThoseAreGone) {
  for (const uint64_t step : {30, 40, 50, 60}) ASSERT_TRUE(WriteStep(step).ok());
  const std::string gone = StepName{20, 1}.Directory(), own = StepName{60, 1}.Directory();
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {gone, own}).value(),
              ElementsAre("step-0000000040-g1", "step-0000000030-g1"));
  EXPECT_THAT(List(path_), ElementsAre(StepName{60, 1}, StepName{50, 1}));
  ASSERT_TRUE(WriteStep(70).ok());
  EXPECT_THAT(Retain(path_, {"job-1"}, 1, {own, StepName{70, 1}.Directory()}).value(),
              ElementsAre("step-0000000050-g1"));
}

TEST_F(CheckpointTest, RetentionGoesByTheOrderOfWritingAndLeavesLaterGenerationsAlone) {
  // Generation 2 went back to step 10, since 20 was damaged, and generation 3 is already there.
  for (const auto& [step, generation] :
       std::vector<std::pair<uint64_t, uint64_t>>{{10, 1}, {20, 1}, {15, 2}, {16, 3}, {17, 3}, {18, 3}}) {
    ASSERT_TRUE(WriteStep(step, generation).ok());
  }
  ASSERT_TRUE(Begin(path_, {"job-1"}, {30, 1}).ok());
  ASSERT_TRUE(Begin(path_, {"job-1"}, {30, 2}).ok());
  fs::create_directory(path_ + "/" + StepName{5, 1}.Removing());
  EXPECT_THAT(Retain(path_, {"job-1"}, 2, {StepName{10, 1}.Directory(), StepName{15, 2}.Directory()}).value(),
              ElementsAre("step-0000000020-g1", ::testing::_, ::testing::_));
  EXPECT_THAT(Names(), ElementsAre(StepName{30, 2}.Staging(), "step-0000000010-g1", "step-0000000015-g2",
                                   "step-0000000016-g3", "step-0000000017-g3", "step-0000000018-g3"));
}

}  // namespace
}  // namespace muster::checkpoint
