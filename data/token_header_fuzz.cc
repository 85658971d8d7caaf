// Opens arbitrary bytes as a token file or (by the first byte) as a Megatron index: it is refused with a message that
// names the file, or all of its tokens can be read.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "data/token_shard.h"
#include "testing/fuzz.h"
#include "testing/memory_folder.h"

namespace muster::fuzz {
namespace {

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

template <typename T>
std::string Little(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return bytes;
}

std::string LlmC(int32_t magic, int32_t version, int32_t count, size_t width) {
  std::string bytes = Little<int32_t>({magic, version, count});
  bytes.resize(data::kLlmCHeaderBytes);
  return bytes + std::string(static_cast<size_t>(count) * width, '\1');
}

// Of sequences of 3 and 5 tokens of two bytes, which are two documents.
std::string Megatron(char dtype) {
  std::string bytes("MMIDIDX\0\0", 9);
  bytes += Little<uint64_t>({1}) + dtype + Little<uint64_t>({2, 3}) + Little<int32_t>({3, 5});
  return bytes + Little<int64_t>({0, 6}) + Little<int64_t>({0, 1, 2});
}

const std::string& Folder() {
  static const auto& folder = *new MemoryFolder;
  return folder.path();
}

void ReadAll(const data::TokenShard& shard) {
  std::vector<uint32_t> tokens(4096);
  for (uint64_t begin = 0; begin < shard.tokens(); begin += tokens.size()) {
    tokens.resize(std::min<uint64_t>(tokens.size(), shard.tokens() - begin));
    if (const absl::Status status = shard.Read(begin, absl::MakeSpan(tokens)); !status.ok()) Fail(status.ToString());
  }
  if (const auto outside = shard.FindOutside(256); !outside.ok()) Fail(outside.status().ToString());
}

}  // namespace

// The first byte says what the rest is: 't' tokens, 'i' an index.
std::vector<std::string> Seeds() {
  return {"t" + Little<uint16_t>({1, 2, 3, 500, 65535}),
          "t" + LlmC(data::kLlmCMagic16, data::kLlmCVersion16, 9, 2),
          "t" + LlmC(data::kLlmCMagic32, data::kLlmCVersion32, 9, 4),
          "i" + Megatron(8),
          "i" + Megatron(4),
          "i" + Megatron(1)};
}

std::vector<std::string> Words() {
  return {Little<int32_t>({20240520, 1}),
          Little<int32_t>({20240801, 7}),
          std::string("MMIDIDX\0\0", 9),
          Little<uint64_t>({1}),
          Little<uint64_t>({uint64_t{1} << 63}),
          Little<int32_t>({-1}),
          Little<int64_t>({-1}),
          std::string(1, '\0'),
          "t",
          "i"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;        // NOLINT: a function of its own
  using namespace muster::fuzz;  // NOLINT
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool index = data[0] == 'i';
  const std::string path = Folder() + (index ? "/indexed" : "/plain.bin");
  if (index) {
    std::ofstream(path + ".bin", std::ios::binary | std::ios::trunc) << std::string(16, '\2');
    std::ofstream(path + ".idx", std::ios::binary | std::ios::trunc) << bytes;
  } else {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  const auto shard = data::TokenShard::Open(index ? path + ".idx" : path);
  if (shard.ok()) {
    ReadAll(*shard);
  } else if (shard.status().message().find(Folder()) == absl::string_view::npos) {
    Fail("an error that does not name the file: " + shard.status().ToString());
  }
  return 0;
}
