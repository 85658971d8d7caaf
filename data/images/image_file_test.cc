#include "data/images/image_file.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "data/tokenizer_origin.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ImageFileTest : public ::testing::Test {
 protected:
  ImageFileTest() {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/images.XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~ImageFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }

  std::string folder_;
};

void ExpectImageError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
}

// Labels, then 1,024 bytes each of red, green and blue. The first and last pixel of each plane differ from the others.
std::string Record(const std::string& labels, uint8_t red, uint8_t green, uint8_t blue) {
  std::string record = labels;
  for (const uint8_t value : {red, green, blue}) {
    std::string plane(1024, static_cast<char>(value));
    plane.front() = static_cast<char>(value + 1);
    plane.back() = static_cast<char>(value + 2);
    record += plane;
  }
  return record;
}

TEST_F(ImageFileTest, ReadsCifar10) {
  const auto file = ImageFile::Open(Write("c10.bin", Record("\x07", 10, 20, 30) + Record("\x02", 40, 50, 60))).value();
  EXPECT_EQ(file.shards()[0].format(), ImageFormat::kCifar10);
  EXPECT_EQ(file.images(), 2u);
  EXPECT_EQ(file.channels(), 3u);
  EXPECT_EQ(file.height(), 32u);
  EXPECT_EQ(file.width(), 32u);
  EXPECT_EQ(file.classes(), 10u);
  EXPECT_THAT(file.class_names(), IsEmpty());
  std::vector<uint8_t> pixels(3072);
  uint32_t label = 99;
  ASSERT_TRUE(file.Read(1, absl::MakeSpan(pixels), label).ok());
  EXPECT_EQ(label, 2u);
  EXPECT_THAT((std::vector<int>{pixels[0], pixels[1], pixels[1023], pixels[1024], pixels[1025], pixels[2047],
                                pixels[2048], pixels[2049], pixels[3071]}),
              ElementsAre(41, 40, 42, 51, 50, 52, 61, 60, 62));
  ASSERT_TRUE(file.Read(0, absl::MakeSpan(pixels), label).ok());
  EXPECT_EQ(label, 7u);
  EXPECT_EQ(pixels[1], 10);
}

TEST_F(ImageFileTest, ReadsTheFineLabelOfCifar100) {
  const auto file = ImageFile::Open(Write("c100.bin", Record("\x13\x63", 1, 2, 3) + Record("\x01\x04", 4, 5, 6) +
                                                          Record("\x02\x05", 7, 8, 9)))
                        .value();
  EXPECT_EQ(file.shards()[0].format(), ImageFormat::kCifar100);
  EXPECT_EQ(file.images(), 3u);
  EXPECT_EQ(file.classes(), 100u);
  std::vector<uint8_t> pixels(3072);
  uint32_t label = 0;
  ASSERT_TRUE(file.Read(0, absl::MakeSpan(pixels), label).ok());
  EXPECT_EQ(label, 99u);
  EXPECT_EQ(pixels[0], 2);
  ASSERT_TRUE(file.Read(2, absl::MakeSpan(pixels), label).ok());
  EXPECT_EQ(label, 5u);
  EXPECT_EQ(pixels[3070], 9);
}

// 3,074 records of CIFAR-10 are as long as 3,073 of CIFAR-100: only the labels tell them apart.
TEST_F(ImageFileTest, LabelsDecideWhereTheSizeDoesNot) {
  std::string ten, hundred;
  for (int i = 0; i < 3074; ++i) ten += Record(std::string(1, static_cast<char>(i % 10)), 200, 200, 200);
  for (int i = 0; i < 3073; ++i)
    hundred += Record({static_cast<char>(i % 20), static_cast<char>(i % 100)}, 200, 9, 200);
  ASSERT_EQ(ten.size(), hundred.size());
  EXPECT_EQ(ImageFile::Open(Write("ten.bin", ten)).value().classes(), 10u);
  EXPECT_EQ(ImageFile::Open(Write("hundred.bin", hundred)).value().images(), 3073u);
  ExpectImageError(ImageFile::Open(Write("both.bin", std::string(ten.size(), '\0'))).status(),
                   absl::StatusCode::kInvalidArgument, "labels fit both: describe it in");
  ExpectImageError(ImageFile::Open(Write("none.bin", std::string(ten.size(), '\xff'))).status(),
                   absl::StatusCode::kInvalidArgument, "labels fit neither");
}

constexpr char kSidecar[] = R"({"format": "muster-images", "version": 1, "images": 2, "channels": 1, "height": 2,
  "width": 3, "label_bytes": 2, "classes": 300, "class_names": []})";

TEST_F(ImageFileTest, ReadsWhatASidecarDescribes) {
  Write("own.bin.json", kSidecar);
  const std::string path = Write("own.bin", std::string("\x02\x01"
                                                        "abcdef"
                                                        "\x05\x00"
                                                        "ghijkl",
                                                        16));
  const auto file = ImageFile::Open(path).value();
  EXPECT_EQ(file.shards()[0].format(), ImageFormat::kMuster);
  EXPECT_EQ(file.channels(), 1u);
  EXPECT_EQ(file.height(), 2u);
  EXPECT_EQ(file.width(), 3u);
  EXPECT_EQ(file.classes(), 300u);
  std::vector<uint8_t> pixels(6);
  uint32_t label = 0;
  ASSERT_TRUE(file.Read(0, absl::MakeSpan(pixels), label).ok());
  EXPECT_EQ(label, 258u);  // little endian
  EXPECT_EQ(std::string(pixels.begin(), pixels.end()), "abcdef");
  ASSERT_TRUE(file.Read(1, absl::MakeSpan(pixels), label).ok());
  EXPECT_EQ(label, 5u);
  EXPECT_EQ(std::string(pixels.begin(), pixels.end()), "ghijkl");
  ExpectImageError(file.CheckLabels(258), absl::StatusCode::kOutOfRange, "own.bin: label 258 of record 0");
}

TEST_F(ImageFileTest, ASidecarGivesCifarsLayoutOtherClasses) {
  ImageSidecar sidecar{.images = 1, .channels = 3, .height = 32, .width = 32, .classes = 2};
  sidecar.class_names = {"cat", "dog"};
  Write("pets.bin.json", ToJson(sidecar));
  const auto file = ImageFile::Open(Write("pets.bin", Record("\x01", 1, 2, 3))).value();
  EXPECT_EQ(file.classes(), 2u);
  EXPECT_THAT(file.class_names(), ElementsAre("cat", "dog"));
  EXPECT_EQ(file.height(), 32u);
}

TEST_F(ImageFileTest, SaysWhatIsWrongWithASidecar) {
  Write("own.bin", std::string(16, '\1'));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string json = kSidecar;
    json.replace(json.find(from), from.size(), to);
    Write("own.bin.json", json);
    return ImageFile::Open(Path("own.bin")).status();
  };
  const struct {
    const char *from, *to, *says;
  } kChanges[] = {
      {"{\"format\"", "[{\"format\"", "own.bin.json: is not a JSON object"},
      {"muster-images", "coco", "\"format\" must be"},
      {"\"version\": 1", "\"version\": 2", "\"version\" must be 1"},
      {"\"images\": 2,", "", "\"images\" is missing"},
      {"\"images\": 2", "\"images\": -2", "\"images\" must be an integer from 1"},
      {"\"images\": 2", "\"images\": 3", "says 3 images of 8 bytes, which makes 24: it was cut"},
      {"\"images\": 2", "\"images\": 1", "it was added to"},
      {"\"channels\": 1", "\"channels\": 1.5", "\"channels\" must be an integer"},
      {"\"height\": 2", "\"height\": 70000", "\"height\" must be an integer from 1 to 65536"},
      {"\"label_bytes\": 2", "\"label_bytes\": 3", "\"label_bytes\" must be an integer from 1 to 2"},
      {"\"label_bytes\": 2", "\"label_bytes\": 1", "300 classes need \"label_bytes\": 2"},
      {"\"class_names\": []", "\"class_names\": [\"a\"]", "has 1 names, but \"classes\" is 300"},
      {"\"class_names\": []", "\"class_names\": [1]", "array of strings"},
  };
  for (const auto& [from, to, says] : kChanges) {
    ExpectImageError(with(from, to), absl::StatusCode::kInvalidArgument, says);
  }
  Write("own.bin.json",
        R"({"format": "muster-images", "version": 1, "images": 1, "channels": 1024, "height": 65536,
                            "width": 65536, "label_bytes": 1, "classes": 2})");
  ExpectImageError(ImageFile::Open(Path("own.bin")).status(), absl::StatusCode::kInvalidArgument, "is larger than");
}

TEST_F(ImageFileTest, SaysWhatIsWrongWithAFile) {
  const auto open = [&](const std::string& bytes) { return ImageFile::Open(Write("f.bin", bytes)).status(); };
  ExpectImageError(ImageFile::Open(Path("absent.bin")).status(), absl::StatusCode::kNotFound, "absent.bin: no such");
  ExpectImageError(ImageFile::Open(folder_).status(), absl::StatusCode::kInvalidArgument, "regular file");
  ExpectImageError(ImageFile::Open(Path("*.none")).status(), absl::StatusCode::kNotFound, "no file on this machine");
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  ExpectImageError(ImageFile::Open(Path("pipe")).status(), absl::StatusCode::kInvalidArgument, "regular file");
  const std::pair<std::string, const char*> kFiles[] = {
      {"", "is empty"},
      {std::string(2 * 3073 - 1, 'x'),
       "has 6145 bytes, which is neither CIFAR-10 (3073 bytes a record: 1 records and 3072 bytes) nor CIFAR-100 (3074: "
       "1 records and 3071 bytes): it was cut"},
      {"\x1f\x8b" + std::string(9, 'x'), "compressed by gzip"},
      {"\x89PNG" + std::string(9, 'x'), "one PNG image"},
      {"\xff\xd8\xff\xe0", "one JPEG image"},
      {std::string("\x80\x02}q\x01", 5), "download CIFAR's binary version"},
      {std::string("\0\0\x08\x03", 4), "--idx-images"},
  };
  for (const auto& [bytes, says] : kFiles) ExpectImageError(open(bytes), absl::StatusCode::kInvalidArgument, says);
}

TEST_F(ImageFileTest, ShardsAreOneStreamInByteOrder) {
  Write("s_10.bin", Record("\x03", 3, 3, 3));
  Write("s_01.bin", Record("\x01", 1, 1, 1) + Record("\x02", 2, 2, 2));
  const auto file = ImageFile::Open(Path("s_*.bin")).value();
  ASSERT_EQ(file.images(), 3u);
  std::vector<uint8_t> pixels(3072);
  for (uint32_t i = 0; i < 3; ++i) {
    uint32_t label = 0;
    ASSERT_TRUE(file.Read(i, absl::MakeSpan(pixels), label).ok());
    EXPECT_EQ(label, i + 1);
    EXPECT_EQ(pixels[5], i + 1);
  }
  EXPECT_TRUE(file.CheckLabels(4).ok());
  ExpectImageError(file.CheckLabels(3), absl::StatusCode::kOutOfRange, "s_10.bin: label 3 of record 0 is not below");
  ExpectImageError(file.CheckLabels(2), absl::StatusCode::kOutOfRange, "s_01.bin: label 2 of record 1 is not below");
  ExpectImageError(file.CheckLabels(2, /*most=*/1), absl::StatusCode::kOutOfRange, "s_10.bin: label 3 of record 0");
  Write("s_11.bin", Record("\x03\x04", 3, 3, 3));
  ExpectImageError(ImageFile::Open(Path("s_*.bin")).status(), absl::StatusCode::kInvalidArgument,
                   "s_11.bin holds 3 x 32 x 32 images in 100 classes, but");
}

TEST_F(ImageFileTest, APatternMayMatchTheSidecars) {
  for (const char* name : {"a", "b"}) {
    ImageSidecar sidecar{.images = 1, .channels = 1, .height = 1, .width = 1, .classes = 2};
    sidecar.class_names = {"x", name};
    Write(absl::StrCat("m_", name), std::string(2, '\1'));
    Write(absl::StrCat("m_", name, ".json"), ToJson(sidecar));
  }
  ExpectImageError(ImageFile::Open(Path("m_*")).status(), absl::StatusCode::kInvalidArgument,
                   "name their classes differently");
  std::filesystem::copy_file(Path("m_a.json"), Path("m_b.json"), std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(ImageFile::Open(Path("m_*")).value().images(), 2u);
}

TEST_F(ImageFileTest, AFileCutWhileItIsReadIsAnError) {
  const std::string path = Write("cut.bin", Record("\x01", 1, 1, 1) + Record("\x02", 2, 2, 2));
  const auto file = ImageFile::Open(path).value();
  std::vector<uint8_t> pixels(3072);
  uint32_t label = 0;
  for (const int size : {3073, 3074, 6145}) {
    std::filesystem::resize_file(path, 2 * 3073);
    ASSERT_EQ(truncate(path.c_str(), size), 0);
    EXPECT_TRUE(file.Read(0, absl::MakeSpan(pixels), label).ok());
    ExpectImageError(file.Read(1, absl::MakeSpan(pixels), label), absl::StatusCode::kDataLoss,
                     "became shorter than 2 images");
  }
  ASSERT_EQ(truncate(path.c_str(), 3073), 0);
  ExpectImageError(file.CheckLabels(10), absl::StatusCode::kDataLoss, "became shorter");
}

TEST_F(ImageFileTest, TokensOfTheSameSizeAreNoImages) {
  EXPECT_TRUE(HoldsImages(Write("images.bin", Record("\x01", 1, 1, 1) + Record("\x09", 2, 2, 2))));
  std::string tokens;
  while (tokens.size() < 2 * 3073) tokens += std::string("t\0", 2);
  EXPECT_FALSE(HoldsImages(Write("tokens.bin", tokens)));
  EXPECT_FALSE(HoldsImages(Path("absent.bin")));
  // As CIFAR-100's: a high byte is a fine label in range, and a low byte is no coarse one, of which there are 20.
  EXPECT_TRUE(HoldsImages(Write("hundred.bin", Record("\x13\x63", 1, 1, 1) + Record({'\0', '\0'}, 2, 2, 2))));
  tokens.resize(2 * 3074);
  for (size_t i = 0; i < tokens.size(); i += 2) tokens[i] = 20, tokens[i + 1] = 0;
  EXPECT_FALSE(HoldsImages(Write("even.bin", tokens)));
  // Labels in range, and the record of what made the tokens; one of an earlier file with another size does not count.
  for (size_t i = 0; i < tokens.size(); i += 2) tokens[i] = 19;
  const std::string recorded = Write("recorded.bin", tokens);
  EXPECT_TRUE(HoldsImages(recorded));
  ASSERT_TRUE(WriteTokenizerOrigin(recorded, TokenizerOrigin()).ok());
  EXPECT_FALSE(HoldsImages(recorded));
  Write("recorded.bin", Record("\x13\x63", 1, 1, 1));
  EXPECT_TRUE(HoldsImages(recorded));
  Write("tokens.bin.json", "broken");
  EXPECT_TRUE(HoldsImages(Path("tokens.bin"))) << "so that Open says what is wrong with the sidecar";
}

}  // namespace
}  // namespace muster::data
