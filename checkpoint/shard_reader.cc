#include "checkpoint/shard_reader.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/file.h"
#include "common/crc32c.h"
#include "common/sha256.h"

namespace muster::checkpoint {
namespace {

constexpr size_t kRangesNamed = 8;  // of damage
// Which of them is not known here.
constexpr char kChanged[] =
    "these bytes changed after they were written: by another program, or by a faulty disk (see dmesg)";

}  // namespace

absl::StatusOr<ShardReader> ShardReader::Open(const std::string& directory, ShardFile entry) {
  const std::string path = absl::StrCat(directory, "/", entry.file());
  absl::StatusOr<ReadFile> raw = ReadFile::Open(path);
  if (!raw.ok()) return AsDamage(raw.status());
  if (raw->bytes() != entry.bytes()) {
    return absl::DataLossError(absl::StrCat(path, ": ", raw->bytes(), " bytes, the manifest says ", entry.bytes(),
                                            ": it was cut or added to"));
  }
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return AsDamage(file.status());
  ShardReader reader(std::move(entry), *std::move(file));
  if (!reader.has_blocks()) {
    if (absl::Status status = reader.Verify(); !status.ok()) return status;
    return reader;
  }
  const ShardFile& said = reader.entry_;
  const uint64_t body_bytes = said.bytes() - reader.file_.header_bytes();
  if (said.block_bytes() == 0 || static_cast<uint64_t>(said.block_crc32c_size()) !=
                                     1 + (body_bytes + said.block_bytes() - 1) / said.block_bytes()) {
    return absl::DataLossError(absl::StrCat(path, ": its header is of another length than when it was written"));
  }
  BlockScratch scratch;
  if (absl::Status status = reader.ReadBlock(0, scratch); !status.ok()) return status;
  return reader;
}

ShardReader::Block ShardReader::BlockAt(size_t index) const {
  const uint64_t header = file_.header_bytes();
  if (index == 0) return {0, header};
  const uint64_t begin = header + (index - 1) * entry_.block_bytes();
  return {begin, std::min(begin + entry_.block_bytes(), entry_.bytes())};
}

size_t ShardReader::BlockOf(uint64_t at) const { return 1 + (at - file_.header_bytes()) / entry_.block_bytes(); }

absl::Status ShardReader::CheckBlock(size_t index, std::string_view bytes) const {
  if (Crc32c(bytes) == entry_.block_crc32c(static_cast<int>(index))) return absl::OkStatus();
  const Block block = BlockAt(index);
  return absl::DataLossError(absl::StrCat(file_.file().path(), ": bytes ", block.begin, " to ", block.end - 1,
                                          " differ from their checksum in the manifest: ", kChanged));
}

absl::Status ShardReader::ReadBlock(size_t index, BlockScratch& scratch) const {
  if (scratch.shard == &file_.file() && scratch.block == index) return absl::OkStatus();
  scratch.shard = nullptr;
  const Block block = BlockAt(index);
  scratch.bytes.resize(block.end - block.begin);
  absl::Status status = file_.file().Read(block.begin, scratch.bytes.size(), scratch.bytes.data());
  if (status.ok()) status = CheckBlock(index, scratch.bytes);
  if (!status.ok()) return status;
  scratch.shard = &file_.file();
  scratch.block = index;
  return absl::OkStatus();
}

absl::Status ShardReader::Read(const TensorEntry& tensor, uint64_t offset, uint64_t length, char* out,
                               BlockScratch& scratch) const {
  if (!has_blocks()) return file_.Read(tensor, offset, length, out);  // all of it was verified by Open
  uint64_t at = file_.header_bytes() + tensor.begin + offset;
  for (const uint64_t end = at + length; at < end;) {
    const size_t index = BlockOf(at);
    const Block block = BlockAt(index);
    const uint64_t length_here = std::min(end, block.end) - at;
    absl::Status status;
    if (length_here == block.end - block.begin) {
      status = file_.file().Read(at, length_here, out);
      if (status.ok()) status = CheckBlock(index, {out, length_here});
    } else {
      status = ReadBlock(index, scratch);
      if (status.ok()) std::memcpy(out, scratch.bytes.data() + (at - block.begin), length_here);
    }
    if (!status.ok()) return status;
    out += length_here;
    at += length_here;
  }
  return absl::OkStatus();
}

absl::Status ShardReader::Verify() const {
  const std::string& path = file_.file().path();
  Sha256 sha;
  std::string bytes;
  std::vector<std::string> damaged;
  size_t index = 0;
  for (uint64_t at = 0; at < entry_.bytes(); at += bytes.size(), ++index) {
    const Block block = has_blocks() ? BlockAt(index) : Block{at, std::min(at + kBlockBytes, entry_.bytes())};
    bytes.resize(block.end - block.begin);
    if (absl::Status status = file_.file().Read(at, bytes.size(), bytes.data()); !status.ok()) return AsDamage(status);
    sha.Update(bytes);
    if (has_blocks() && Crc32c(bytes) != entry_.block_crc32c(static_cast<int>(index))) {
      damaged.push_back(absl::StrCat(block.begin, " to ", block.end - 1));
    }
  }
  const std::string sha256 = sha.FinishHex();
  if (sha256 == entry_.sha256() && damaged.empty()) return absl::OkStatus();
  std::string where;
  if (!damaged.empty()) {
    const size_t more = damaged.size() - std::min(damaged.size(), kRangesNamed);
    damaged.resize(std::min(damaged.size(), kRangesNamed));
    where = absl::StrCat(", damaged are bytes ", absl::StrJoin(damaged, ", "), more > 0 ? " and others" : "");
  }
  return absl::DataLossError(
      absl::StrCat(path, ": SHA-256 is ", sha256, ", the manifest says ", entry_.sha256(), where, ": ", kChanged));
}

}  // namespace muster::checkpoint
