#include "data/tensors/tensor_file.h"

#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing/temporary_folder.h"

namespace muster::data {
namespace {

BatchTensor& Declare(Task& task, const std::string& name, BatchTensor::Type type, const std::vector<uint64_t>& shape) {
  BatchTensor& tensor = *task.add_tensors();
  tensor.set_name(name);
  tensor.set_type(type);
  for (const uint64_t n : shape) tensor.add_shape(n);
  return tensor;
}

Task RatingsTask() {
  Task task;
  Declare(task, "user", BatchTensor::FLOAT, {2});
  Declare(task, "item", BatchTensor::INT64, {}).set_bound(10);
  return task;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Written out by hand, so that the test does not share the library's writer.
std::string Safetensors(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

// Samples first, first + 1, ...: user [k, -k], item k mod 10.
std::string Ratings(uint64_t first, uint64_t samples) {
  std::vector<float> user;
  std::vector<int64_t> item;
  for (uint64_t k = first; k < first + samples; ++k) {
    user.push_back(static_cast<float>(k)), user.push_back(-static_cast<float>(k));
    item.push_back(static_cast<int64_t>(k % 10));
  }
  const uint64_t users = 8 * samples;
  return Safetensors(absl::StrCat(R"({"user":{"dtype":"F32","shape":[)", samples, R"(,2],"data_offsets":[0,)", users,
                                  R"(]},"item":{"dtype":"I64","shape":[)", samples, R"(],"data_offsets":[)", users, ",",
                                  users + 8 * samples, "]}}"),
                     Bytes(user) + Bytes(item));
}

TEST(TensorFile, ReadsSamplesOfSeveralShardsByTheirNumbers) {
  const TemporaryFolder folder;
  folder.Write("b.safetensors", Ratings(3, 4));
  folder.Write("a.safetensors", Ratings(0, 3));
  const auto file = TensorFile::Open(folder.path() + "/*.safetensors", RatingsTask());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->samples(), 7u);
  EXPECT_TRUE(file->CheckBounds().ok());
  const std::vector<uint64_t> records = {6, 0, 1, 2, 3, 4, 2, 5};
  std::vector<float> user(2 * records.size());
  std::vector<int64_t> item(records.size());
  ASSERT_TRUE(file->Read(0, records, reinterpret_cast<char*>(user.data())).ok());
  ASSERT_TRUE(file->Read(1, records, reinterpret_cast<char*>(item.data())).ok());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(user[2 * i], static_cast<float>(records[i]));
    EXPECT_EQ(user[2 * i + 1], -static_cast<float>(records[i]));
    EXPECT_EQ(item[i], static_cast<int64_t>(records[i]));
  }
}

TEST(TensorFile, SaysWhatIsWrongWithWhichTensor) {
  const TemporaryFolder folder;
  const std::string user = R"("user":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  std::string many = "{";
  for (int i = 0; i < 100; ++i) {
    absl::StrAppend(&many, "\"", absl::Dec(i, absl::kZeroPad8),
                    R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)");
  }
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Safetensors("{" + user + "}", std::string(16, '\0')),
       "has no tensor \"item\", which the model reads; it has \"user\""},
      {Safetensors("{}", ""), "has no tensor \"user\", which the model reads; it has none"},
      {Safetensors("{" + user + R"(,"item":{"dtype":"I32","shape":[2],"data_offsets":[16,24]}})",
                   std::string(24, '\0')),
       "the tensor \"item\" is of I32, the model reads I64"},
      {Safetensors("{" + user + R"(,"item":{"dtype":"I64","shape":[2,1],"data_offsets":[16,32]}})",
                   std::string(32, '\0')),
       "the tensor \"item\" has the shape [2, 1], the model reads [samples]"},
      {Safetensors("{" + user + R"(,"item":{"dtype":"I64","shape":[],"data_offsets":[16,24]}})", std::string(24, '\0')),
       "the tensor \"item\" has the shape [], the model reads [samples]"},
      {Safetensors(R"({"user":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})", std::string(24, '\0')),
       "the tensor \"user\" has the shape [2, 3], the model reads [samples, 2]"},
      {Safetensors("{" + user + R"(,"item":{"dtype":"I64","shape":[3],"data_offsets":[16,40]}})",
                   std::string(40, '\0')),
       "the tensor \"item\" has 3 samples, but \"user\" has 2"},
      {Safetensors(R"({"\u001b[2J":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", std::string(16, '\0')),
       "it has \"\\x1b[2J\""},
      {Safetensors(many.substr(0, many.size() - 1) + "}", ""), "\"00000007\" and 92 more"},
      {Ratings(0, 0), "holds no samples"},
      {Ratings(0, 3).substr(0, 60), "its safetensors header is longer than the file"},
      {"", "too short for a safetensors file"},
  };
  for (const auto& [bytes, message] : cases) {
    const std::string path = folder.Write("wrong.safetensors", bytes);
    const absl::Status status = TensorFile::Open(path, RatingsTask()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message << "\n" << status;
    EXPECT_TRUE(absl::StartsWith(status.message(), path + ": ")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), message)) << message << "\n" << status;
  }
  EXPECT_EQ(TensorFile::Open(folder.path() + "/none", RatingsTask()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(TensorFile::Open(folder.path() + "/x*", RatingsTask()).status().code(), absl::StatusCode::kNotFound);
}

TEST(TensorFile, NamesTheIntegerThatIsOutOfBounds) {
  const TemporaryFolder folder;
  folder.Write("a.safetensors", Ratings(0, 3));
  for (const int64_t value : {int64_t{10}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    std::string bytes = Ratings(0, 4);
    std::memcpy(bytes.data() + bytes.size() - 16, &value, sizeof value);
    const std::string path = folder.Write("b.safetensors", bytes);
    const absl::Status status = TensorFile::Open(folder.path() + "/*", RatingsTask())->CheckBounds();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    EXPECT_TRUE(absl::StartsWith(
        status.message(), absl::StrCat(path, ": the tensor \"item\" has ", value, " in sample 2, which is not 0 to 9")))
        << status;
  }
}

TEST(TensorFile, AFileThatBecameShorterIsAnError) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("a.safetensors", Ratings(0, 9));
  const auto file = TensorFile::Open(path, RatingsTask());
  ASSERT_TRUE(file.ok());
  folder.Write("a.safetensors", Ratings(0, 9).substr(0, 150));
  std::vector<char> out(file->sample_bytes(1));
  EXPECT_EQ(file->Read(1, {8}, out.data()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(file->CheckBounds().code(), absl::StatusCode::kDataLoss);
}

// Any change of a header: refused, or a file all of whose samples can be read.
TEST(TensorFile, AnyHeaderIsRefusedOrReadWhole) {
  const TemporaryFolder folder;
  const std::string whole = Ratings(0, 5);
  std::mt19937 random(4);
  int read = 0, refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string bytes = whole;
    const char kinds[] = "0123456789[],:{}\"FI";
    bytes[8 + random() % 100] = kinds[random() % (sizeof kinds - 1)];
    const auto file = TensorFile::Open(folder.Write("a.safetensors", bytes), RatingsTask());
    if (!file.ok()) {
      ++refused;
      EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
      continue;
    }
    ++read;
    std::vector<uint64_t> records(file->samples());
    for (uint64_t k = 0; k < records.size(); ++k) records[k] = k;
    for (size_t t = 0; t < 2; ++t) {
      std::vector<char> out(records.size() * file->sample_bytes(t));
      EXPECT_TRUE(file->Read(t, records, out.data()).ok());
    }
  }
  EXPECT_GT(read, 10) << "some changes are harmless";
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace muster::data
