#include "data/megatron_index.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file/beneath.h"

namespace muster::data {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
constexpr uint64_t kBatch = 1 << 16;  // sequences per read

// Not open if the file cannot be read, or may not be.
std::ifstream OpenIndexFile(const std::string& path) {
  std::ifstream file;
  const absl::StatusOr<int> fd = OpenConfined(FileUse::kData, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (!fd.ok()) {
    file.setstate(std::ios::failbit);
    return file;
  }
  file.open(absl::StrCat("/proc/self/fd/", *fd), std::ios::binary);
  close(*fd);
  return file;
}

// Megatron's DType codes; 0: holds no token ids.
uint32_t WidthOf(uint8_t code) {
  switch (code) {
    case 1:  // uint8
      return 1;
    case 3:  // int16
    case 8:  // uint16
      return 2;
    case 4:  // int32
      return 4;
    case 5:  // int64
      return 8;
    default:
      return 0;
  }
}

template <typename T>
T At(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
bool ReadAt(std::ifstream& file, uint64_t offset, std::vector<T>& out) {
  file.seekg(static_cast<std::streamoff>(offset));
  return static_cast<bool>(
      file.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size() * sizeof(T))));
}

// Adds up the lengths; each place must equal the number of bytes before it.
absl::Status CheckSequences(std::ifstream& file, const std::string& path, MegatronIndex& index) {
  const auto wrong = [&](auto... what) { return absl::InvalidArgumentError(absl::StrCat(path, what...)); };
  const uint64_t places_at = kHeaderBytes + 4 * index.sequences;
  for (uint64_t first = 0; first < index.sequences; first += kBatch) {
    std::vector<int32_t> lengths(std::min(kBatch, index.sequences - first));
    std::vector<int64_t> places(lengths.size());
    if (!ReadAt(file, kHeaderBytes + 4 * first, lengths) || !ReadAt(file, places_at + 8 * first, places)) {
      return wrong(": its sequences cannot be read: the disk fails, or it was cut meanwhile");
    }
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] < 0) return wrong(": sequence ", first + i, " has a length of ", lengths[i]);
      if (places[i] != static_cast<int64_t>(index.tokens * index.width)) {
        return wrong(": sequence ", first + i, " begins at byte ", places[i], " of the .bin file, expected ",
                     index.tokens * index.width,
                     " (each follows the previous one): it was damaged, or another program ", "ordered it");
      }
      index.tokens += static_cast<uint64_t>(lengths[i]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool LooksLikeMegatronIndex(const std::string& path) {
  std::ifstream file = OpenIndexFile(path);
  char head[7] = {};
  return file.read(head, sizeof head) && std::string_view(head, sizeof head) == kMagic.substr(0, 7);
}

absl::StatusOr<MegatronIndex> ReadMegatronIndex(const std::string& path) {
  const auto wrong = [&](auto... what) { return absl::InvalidArgumentError(absl::StrCat(path, what...)); };
  std::error_code error;
  MegatronIndex index{.bytes = std::filesystem::file_size(path, error)};
  std::ifstream file = OpenIndexFile(path);
  std::vector<char> head(kHeaderBytes);
  if (error || !file) return absl::NotFoundError(absl::StrCat(path, " cannot be read"));
  if (index.bytes < kHeaderBytes || !ReadAt(file, 0, head)) {
    return wrong(" has ", index.bytes, " bytes, less than the ", kHeaderBytes,
                 " bytes of header of a Megatron index: it was cut");
  }
  if (std::string_view(head.data(), kMagic.size()) != kMagic)
    return wrong(" does not begin with MMIDIDX and two zeros");
  if (At<uint64_t>(&head[9]) != 1) {
    return wrong(" is a Megatron index of version ", At<uint64_t>(&head[9]), ", expected version 1");
  }
  const auto code = static_cast<uint8_t>(head[17]);
  index.width = WidthOf(code);
  if (index.width == 0) {
    return wrong(" says dtype code ", static_cast<int>(code),
                 ", expected one of token ids: 1 (uint8), 3 (int16), 4 (int32), 5 (int64), 8 (uint16)");
  }
  index.sequences = At<uint64_t>(&head[18]);
  const auto entries = At<uint64_t>(&head[26]);
  if (index.sequences > index.bytes || entries > index.bytes ||
      index.bytes != kHeaderBytes + 12 * index.sequences + 8 * entries) {
    return wrong(" has ", index.bytes, " bytes, which is not what ", index.sequences, " sequences and ", entries,
                 " document indices take: it was cut or damaged");
  }
  if (absl::Status status = CheckSequences(file, path, index); !status.ok()) return status;
  index.documents = entries == 0 ? 0 : entries - 1;
  return index;
}

}  // namespace muster::data
