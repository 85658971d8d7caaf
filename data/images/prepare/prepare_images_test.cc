#include "data/images/prepare/prepare_images.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/file/read_file.h"
#include "data/images/image_file.h"
#include "data/images/prepare/encode_test.h"
#include "data/images/prepare/inspect_images.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/memory_folder.h"
#include "testing/temporary_folder.h"

namespace muster::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& says) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(says));
}

// A square of one color.
std::string Plain(uint8_t red, uint8_t green, uint8_t blue, uint32_t side = 4) {
  std::string pixels;
  for (uint32_t i = 0; i < side * side; ++i) {
    pixels += {static_cast<char>(red), static_cast<char>(green), static_cast<char>(blue)};
  }
  return EncodePng(side, side, pixels);
}

struct ReadBack {
  std::vector<uint32_t> labels;
  std::vector<std::vector<uint8_t>> pixels;
};

ReadBack ReadImageFile(const std::string& path) {
  const ImageFile file = ImageFile::Open(path).value();
  ReadBack all;
  for (uint64_t i = 0; i < file.images(); ++i) {
    all.labels.emplace_back();
    all.pixels.emplace_back(size_t{file.channels()} * file.height() * file.width());
    EXPECT_TRUE(file.Read(i, absl::MakeSpan(all.pixels.back()), all.labels.back()).ok());
  }
  return all;
}

class PrepareImagesTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::filesystem::create_directories(std::filesystem::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  // 3 classes with 20 images each; the red value of an image is its number, the green one its class.
  std::string MakePets() const {
    const char* const kNames[] = {"dog", "ant", "cat"};
    for (uint8_t i = 0; i < 60; ++i) {
      const uint8_t label = kNames[i % 3] == std::string("ant") ? 0 : kNames[i % 3] == std::string("cat") ? 1 : 2;
      Write(absl::StrCat("pets/", kNames[i % 3], "/", i, i % 2 == 0 ? ".png" : ".PNG"), Plain(i, label, 7));
    }
    return Path("pets");
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }
  PrepareImagesOptions Options(const std::string& folder) const {
    PrepareImagesOptions options;
    options.folder = folder;
    options.out = Path("out.bin");
    options.size = 2;
    return options;
  }

  const MemoryFolder folder_;  // each run calls fsync several times
};

TEST_F(PrepareImagesTest, AFolderBecomesAShuffledFileThatNamesItsClasses) {
  const PreparedImages prepared = PrepareImages(Options(MakePets())).value();
  EXPECT_EQ(prepared.images, 60u);
  EXPECT_EQ(prepared.classes, 3u);
  const ImageFile file = ImageFile::Open(Path("out.bin")).value();
  EXPECT_THAT(file.class_names(), ElementsAre("ant", "cat", "dog"));
  EXPECT_EQ(file.channels(), 3u);
  EXPECT_EQ(file.width(), 2u);
  EXPECT_EQ(file.classes(), 3u);
  const ReadBack all = ReadImageFile(Path("out.bin"));
  std::vector<uint8_t> order;
  for (size_t i = 0; i < 60; ++i) {
    const std::vector<uint8_t>& pixels = all.pixels[i];
    order.push_back(pixels[0]);
    EXPECT_EQ(pixels, (std::vector<uint8_t>{pixels[0], pixels[0], pixels[0], pixels[0], pixels[4], pixels[4], pixels[4],
                                            pixels[4], 7, 7, 7, 7}));
    EXPECT_EQ(all.labels[i], pixels[4]);
  }
  EXPECT_EQ(std::set<uint8_t>(order.begin(), order.end()).size(), 60u);
  EXPECT_GT(std::set<uint32_t>(all.labels.begin(), all.labels.begin() + 10).size(), 1u) << "not by class";
}

TEST_F(PrepareImagesTest, TheSeedDecidesAndThreadsDoNot) {
  PrepareImagesOptions options = Options(MakePets());
  const auto bytes = [&](uint64_t seed, uint32_t threads) {
    options.seed = seed;
    options.threads = threads;
    options.force = true;
    EXPECT_TRUE(PrepareImages(options).ok());
    return ReadWhole(options.out).value();
  };
  const std::string first = bytes(1, 1);
  EXPECT_EQ(first, bytes(1, 7));
  EXPECT_NE(first, bytes(2, 1));
}

TEST_F(PrepareImagesTest, ARandomPartGoesToValidation) {
  PrepareImagesOptions options = Options(MakePets());
  options.validation_out = Path("val.bin");
  options.validation_fraction = 0.25;
  const PreparedImages prepared = PrepareImages(options).value();
  EXPECT_EQ(prepared.images, 45u);
  EXPECT_EQ(prepared.validation_images, 15u);
  std::set<uint8_t> seen;
  std::set<uint32_t> labels;
  for (const char* name : {"out.bin", "val.bin"}) {
    for (const auto& pixels : ReadImageFile(Path(name)).pixels) seen.insert(pixels[0]);
  }
  EXPECT_EQ(seen.size(), 60u);
  for (const uint32_t label : ReadImageFile(Path("val.bin")).labels) labels.insert(label);
  EXPECT_EQ(labels.size(), 3u);
  options.validation_fraction = 0.001;
  options.force = true;
  ExpectRefused(PrepareImages(options).status(), absl::StatusCode::kInvalidArgument, "leaves one side of 60 images");
  EXPECT_EQ(ImageFile::Open(Path("val.bin")).value().images(), 15u) << "a failed run leaves the old files";
}

TEST_F(PrepareImagesTest, SmallFilesHaveCifarsLayout) {
  PrepareImagesOptions options = Options(MakePets());
  options.size = 32;
  ASSERT_TRUE(PrepareImages(options).ok());
  EXPECT_EQ(std::filesystem::file_size(options.out), 60u * 3073);
  std::filesystem::remove(options.out + ".json");
  EXPECT_EQ(ImageFile::Open(options.out).value().shards()[0].format(), ImageFormat::kCifar10);
}

TEST_F(PrepareImagesTest, MoreThan256ClassesTakeTwoBytes) {
  for (int i = 0; i < 300; ++i) Write(absl::StrCat("many/", 1000 + i, "/x.png"), Plain(i % 256, i / 256, 0, 1));
  PrepareImagesOptions options = Options(Path("many"));
  options.size = 1;
  ASSERT_TRUE(PrepareImages(options).ok());
  const ReadBack all = ReadImageFile(options.out);
  for (size_t i = 0; i < 300; ++i) EXPECT_EQ(all.labels[i], all.pixels[i][0] + 256u * all.pixels[i][1]);
}

TEST_F(PrepareImagesTest, ABrokenImageIsNamedOrCounted) {
  PrepareImagesOptions options = Options(MakePets());
  Write("pets/cat/broken.jpg", "no JPEG");
  Write("pets/cat/new.webp", "RIFF....WEBP");
  Write("pets/cat/readme.txt", "ignored");
  Write("pets/.git/x.png", "ignored");
  ExpectRefused(PrepareImages(options).status(), absl::StatusCode::kInvalidArgument,
                "is neither a PNG nor a JPEG image");
  EXPECT_THAT(Names(), UnorderedElementsAre("pets"));
  options.skip_broken = true;
  const PreparedImages prepared = PrepareImages(options).value();
  EXPECT_EQ(prepared.images, 60u);
  EXPECT_EQ(prepared.broken, 2u);
  EXPECT_EQ(prepared.ignored, 1u);
  EXPECT_THAT(prepared.first_broken, HasSubstr("/pets/cat/"));
  EXPECT_THAT(Names(), UnorderedElementsAre("pets", "out.bin", "out.bin.json"));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options.folder)) {
    if (entry.is_regular_file()) std::ofstream(entry.path()) << "no image";
  }
  options.force = true;
  ExpectRefused(PrepareImages(options).status(), absl::StatusCode::kInvalidArgument, "too few images can be decoded");
}

TEST_F(PrepareImagesTest, ClassesCanBeNumberedAsInAnotherFile) {
  ASSERT_TRUE(PrepareImages(Options(MakePets())).ok());
  Write("test/dog/1.png", Plain(1, 2, 3));
  PrepareImagesOptions options = Options(Path("test"));
  options.out = Path("test.bin");
  options.classes_of = Path("out.bin");
  ASSERT_TRUE(PrepareImages(options).ok());
  EXPECT_THAT(ReadImageFile(Path("test.bin")).labels, ElementsAre(2));
  EXPECT_EQ(ImageFile::Open(Path("test.bin")).value().class_names().size(), 3u);
  Write("test/fox/1.png", Plain(1, 2, 3));
  options.force = true;
  ExpectRefused(PrepareImages(options).status(), absl::StatusCode::kInvalidArgument,
                "class \"fox\" is not one of the 3 classes");
}

TEST_F(PrepareImagesTest, RefusesFoldersThatAreNotOfClasses) {
  ExpectRefused(PrepareImages(Options(Path("absent"))).status(), absl::StatusCode::kNotFound, "no such folder");
  Write("flat/1.png", Plain(1, 2, 3));
  ExpectRefused(PrepareImages(Options(Path("flat"))).status(), absl::StatusCode::kInvalidArgument,
                "has images, but no class folders");
  Write("half/cat/1.png", Plain(1, 2, 3));
  Write("half/dog/readme.txt", "");
  ExpectRefused(PrepareImages(Options(Path("half"))).status(), absl::StatusCode::kInvalidArgument,
                "half/dog has no images");
  std::filesystem::create_directory_symlink(Path("half"), Path("half/cat/loop"));
  EXPECT_FALSE(PrepareImages(Options(Path("half"))).ok());
}

TEST_F(PrepareImagesTest, NeverReplacesWithoutForce) {
  PrepareImagesOptions options = Options(MakePets());
  Write("out.bin", "mine");
  ExpectRefused(PrepareImages(options).status(), absl::StatusCode::kAlreadyExists, "out.bin");
  EXPECT_EQ(ReadWhole(Path("out.bin")).value(), "mine");
  std::filesystem::remove(Path("out.bin"));
  Write("out.bin.json", "mine");
  ExpectRefused(PrepareImages(options).status(), absl::StatusCode::kAlreadyExists, "out.bin.json");
  EXPECT_THAT(Names(), UnorderedElementsAre("pets", "out.bin.json"));
  options.force = true;
  EXPECT_TRUE(PrepareImages(options).ok());
}

TEST_F(PrepareImagesTest, AFullDiskLeavesNothing) {
  PrepareImagesOptions options = Options(MakePets());
  options.size = 64;
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{100'000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  const absl::Status status = PrepareImages(options).status();
  signal(SIGXFSZ, ignored);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(Names(), UnorderedElementsAre("pets"));
}

// Killed or failing at every step of a run that replaces files: whoever finds an image file finds a complete pair, the
// old one or the new one, whose classes differ in name only.
TEST_F(PrepareImagesTest, NoFaultMixesAnOldFileWithANewSidecar) {
  Write("old/cat/1.png", Plain(1, 1, 1));
  Write("new/dog/1.png", Plain(2, 2, 2));
  PrepareImagesOptions old_images = Options(Path("old")), new_images = Options(Path("new"));
  old_images.force = new_images.force = true;
  ASSERT_TRUE(failpoint::Arm("none=EIO").ok());
  ASSERT_TRUE(PrepareImages(old_images).ok());
  const std::map<std::string, uint64_t> points = failpoint::Passed();
  ASSERT_TRUE(points.contains("file.out.bin.rename") && points.contains("file.out.bin.json.rename"));
  int replaced = 0, kept = 0, gone = 0;
  for (const auto& [point, hits] : points) {
    for (const char* fault : {"kill", "EIO"}) {
      ASSERT_TRUE(PrepareImages(old_images).ok());
      const auto run = [&] {
        if (!failpoint::Arm(absl::StrCat(point, "=", fault)).ok()) _exit(2);
        _exit(PrepareImages(new_images).ok() ? 0 : 1);
      };
      if (fault == std::string("kill")) {
        EXPECT_EXIT(run(), ::testing::KilledBySignal(SIGKILL), "") << point;
      } else {
        EXPECT_EXIT(run(), ::testing::ExitedWithCode(1), "") << point;
      }
      const absl::StatusOr<ImageFile> file = ImageFile::Open(Path("out.bin"));
      if (absl::IsNotFound(file.status())) {
        ++gone;
        continue;
      }
      ASSERT_TRUE(file.ok()) << point << " " << fault << ": " << file.status();
      const int red = ReadImageFile(Path("out.bin")).pixels[0][0];
      EXPECT_THAT(file->class_names(), ElementsAre(red == 1 ? "cat" : "dog")) << point << " " << fault;
      ++(red == 1 ? kept : replaced);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(gone + replaced, 0);
}

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string IdxImages(uint32_t count, uint32_t rows, uint32_t columns, const std::string& pixels) {
  return std::string("\0\0\x08\x03", 4) + BigEndian(count) + BigEndian(rows) + BigEndian(columns) + pixels;
}

std::string IdxLabels(const std::string& labels) {
  return std::string("\0\0\x08\x01", 4) + BigEndian(static_cast<uint32_t>(labels.size())) + labels;
}

std::string Compressed(const std::string& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  return path;
}

TEST_F(PrepareImagesTest, IdxImagesAreCenteredOnBlackInThreeChannels) {
  const std::string images = IdxImages(2, 2, 3, "abcdefghijkl"), labels = IdxLabels("\x04\x01");
  PrepareImagesOptions options;
  options.out = Path("out.bin");
  options.size = 4;
  for (const bool compressed : {false, true}) {
    options.force = compressed;
    options.idx_images = compressed ? Compressed(Path("i.gz"), images) : Write("i", images);
    options.idx_labels = compressed ? Compressed(Path("l.gz"), labels) : Write("l", labels);
    const PreparedImages prepared = PrepareImages(options).value();
    EXPECT_EQ(prepared.classes, 5u);
    EXPECT_THAT(prepared.class_names, IsEmpty());
    const ReadBack all = ReadImageFile(options.out);
    EXPECT_THAT(all.labels, ElementsAre(4, 1));
    const std::string plane("\0\0\0\0abc\0def\0\0\0\0\0", 16);
    EXPECT_EQ(std::string(all.pixels[0].begin(), all.pixels[0].end()), plane + plane + plane);
    EXPECT_EQ(all.pixels[1][4], 'g');
  }
}

TEST_F(PrepareImagesTest, SaysWhatIsWrongWithIdxFiles) {
  const std::string pixels(12, 'x');
  const auto prepare = [&](const std::string& images, const std::string& labels, uint32_t size = 4) {
    PrepareImagesOptions options;
    options.idx_images = Write("i", images);
    options.idx_labels = Write("l", labels);
    options.out = Path("out.bin");
    options.size = size;
    return PrepareImages(options).status();
  };
  const std::string good = IdxImages(2, 2, 3, pixels), labels = IdxLabels("\x01\x02");
  const struct {
    absl::Status status;
    const char* says;
  } kCases[] = {
      {prepare(labels, good), "is not an idx file of labels: expected the bytes 0 0 8 1"},
      {prepare(labels, labels), "are the two files exchanged?"},
      {prepare(good.substr(0, 3), labels), "is not an idx file of images"},
      {prepare(good.substr(0, 10), labels), "ends within its header"},
      {prepare(good.substr(0, 27), labels), "i ends before the 2 entries"},
      {prepare(good + "x", labels), "i has more than the 2 entries"},
      {prepare(good, labels + "x"), "l has more than the 2 entries"},
      {prepare(good, labels.substr(0, 9)), "l ends before the 2 entries"},
      {prepare(good, IdxLabels("\x01")), "has 2 images, but"},
      {prepare(good, labels, 2), "which are padded but not shrunk: use a size of at least 3"},
      {prepare(IdxImages(2, 0, 3, ""), labels), "has empty images"},
      {prepare(IdxImages(0, 2, 3, ""), IdxLabels("")), "has no labels"},
      {prepare("\x1f\x8b\x08 no gzip ..........", labels), "i"},
  };
  for (const auto& [status, says] : kCases) ExpectRefused(status, absl::StatusCode::kInvalidArgument, says);
  EXPECT_THAT(Names(), UnorderedElementsAre("i", "l"));
}

TEST_F(PrepareImagesTest, RefusesOptionsThatMakeNoSense) {
  const auto refused = [&](const auto& change) {
    PrepareImagesOptions options = Options(Path("pets"));
    change(options);
    const absl::Status status = PrepareImages(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  MakePets();
  EXPECT_THAT(refused([](auto& o) { o.folder = ""; }), HasSubstr("give either a folder"));
  EXPECT_THAT(refused([](auto& o) { o.idx_labels = "x"; }), HasSubstr("give either a folder"));
  EXPECT_THAT(refused([](auto& o) { o.size = 0; }), HasSubstr("size must lie between 1 and 4096"));
  EXPECT_THAT(refused([](auto& o) { o.size = 4097; }), HasSubstr("size must lie between 1 and 4096"));
  EXPECT_THAT(refused([](auto& o) { o.out = ""; }), HasSubstr("no name"));
  EXPECT_THAT(refused([](auto& o) { o.validation_out = o.out; }), HasSubstr("cannot both go to"));
  EXPECT_THAT(refused([](auto& o) {
                o.validation_out = o.out + "2";
                o.validation_fraction = 1;
              }),
              HasSubstr("must lie between 0 and 1"));
}

TEST_F(PrepareImagesTest, InspectionCountsAndMeasures) {
  Write("two/a/1.png", Plain(0, 51, 255));
  Write("two/b/1.png", Plain(255, 51, 255));
  Write("two/b/2.png", Plain(255, 51, 255));
  ASSERT_TRUE(PrepareImages(Options(Path("two"))).ok());
  const ImageInspection found = InspectImages(Path("out.bin")).value();
  EXPECT_EQ(found.images, 3u);
  EXPECT_EQ(found.bytes, 39u);
  EXPECT_EQ(found.shards[0].format, "muster");
  EXPECT_THAT(found.class_names, ElementsAre("a", "b"));
  EXPECT_THAT(found.counts, ElementsAre(1, 2));
  EXPECT_FLOAT_EQ(found.normalization.mean[0], 2.0f / 3);
  EXPECT_FLOAT_EQ(found.normalization.mean[1], 0.2f);
  EXPECT_FLOAT_EQ(found.normalization.standard_deviation[0], std::sqrt(2.0f) / 3);
}

// Debian's package; its first labels are published with the data set.
TEST_F(PrepareImagesTest, ReadsFashionMnist) {
  const std::string datasets = "/usr/share/datasets/fashion-mnist/";
  const TemporaryFolder folder;  // more than a small /dev/shm holds
  ASSERT_TRUE(std::filesystem::exists(datasets)) << "no package dataset-fashion-mnist: run tools/setup.sh test";
  const struct {
    std::string name;
    uint64_t images;
    std::vector<uint32_t> labels;
  } kParts[] = {
      {"train", 60'000, {9, 0, 0, 3, 0, 2, 7, 2, 5, 5}},
      {"t10k", 10'000, {9, 2, 1, 1, 6, 1, 4, 6, 5, 7}},
  };
  for (const auto& [name, images, labels] : kParts) {
    PrepareImagesOptions options;
    options.idx_images = absl::StrCat(datasets, name, "-images-idx3-ubyte.gz");
    options.idx_labels = absl::StrCat(datasets, name, "-labels-idx1-ubyte.gz");
    options.out = folder.path() + "/" + name;
    const absl::StatusOr<PreparedImages> prepared = PrepareImages(options);
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(prepared->images, images);
    const ImageInspection found = InspectImages(options.out).value();
    EXPECT_EQ(found.counts, std::vector<uint64_t>(10, images / 10));
    EXPECT_EQ(found.bytes, images * 3073);
    const ReadBack all = ReadImageFile(options.out);
    EXPECT_EQ(std::vector<uint32_t>(all.labels.begin(), all.labels.begin() + 10), labels);
    EXPECT_EQ(std::vector<uint8_t>(all.pixels[0].begin(), all.pixels[0].begin() + 64), std::vector<uint8_t>(64, 0));
  }
}

}  // namespace
}  // namespace muster::data
