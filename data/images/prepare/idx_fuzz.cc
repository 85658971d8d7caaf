// Opens arbitrary bytes as an idx file of images or labels (the first byte says which): it is refused with a message
// that names the file, or everything that its header promises can be read.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "data/images/prepare/idx_file.h"
#include "testing/fuzz.h"
#include "testing/memory_folder.h"

namespace muster::fuzz {
namespace {

const std::string& IdxFolder() {
  static const auto& folder = *new MemoryFolder;
  return folder.path();
}

// Ends with the file, whatever the header says.
absl::Status ReadIdx(const std::string& path, uint32_t dimensions) {
  absl::StatusOr<data::IdxFile> file = data::IdxFile::Open(path, dimensions);
  if (!file.ok()) return file.status();
  if (file->sizes().size() != dimensions) std::abort();
  std::vector<uint8_t> bytes(1 << 16);
  uint64_t left = file->sizes()[0];
  for (uint32_t i = 1; i < dimensions; ++i) {
    // Beyond what a file of a fuzzer holds there is nothing to learn.
    if (__builtin_mul_overflow(left, file->sizes()[i], &left)) left = uint64_t{1} << 40;
  }
  for (; left > 0; left -= bytes.size()) {
    bytes.resize(std::min<uint64_t>(left, bytes.size()));
    if (absl::Status status = file->Read(absl::MakeSpan(bytes)); !status.ok()) return status;
  }
  return file->CheckEnd();
}

}  // namespace

std::vector<std::string> Seeds() {
  return {std::string("i\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02", 17) + "abcdefgh",
          std::string("l\0\0\x08\x01\0\0\0\x03\x01\x02\x03", 12),
          // By gzip: the labels 1, 2, 3.
          std::string("l\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff\x63\x60\xe0\x60\x64\x60\x60\x60\x66\x64\x62\x06\x00"
                      "\x8b\xe5\xbd\xa4\x0b\x00\x00\x00",
                      32)};
}

std::vector<std::string> Words() {
  return {std::string("\0\0\x08\x03", 4), std::string("\0\0\x08\x01", 4), "\xff\xff\xff\xff", "\x1f\x8b\x08", "i", "l"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;        // NOLINT: a function of its own
  using namespace muster::fuzz;  // NOLINT
  if (size == 0) return 0;
  const std::string path = IdxFolder() + "/file";
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      << std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1);
  const absl::Status status = ReadIdx(path, data[0] == 'i' ? 3 : 1);
  if (!status.ok() && status.message().find(path) == absl::string_view::npos) {
    std::fprintf(stderr, "an error that does not name the file: %s\n", status.ToString().c_str());
    std::abort();
  }
  return 0;
}
