#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <google/protobuf/util/json_util.h>
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "checkpoint/bf16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file.h"
#include "checkpoint/folder_owner.h"
#include "checkpoint/shard_reader.h"
#include "common/failpoint.h"
#include "common/file/beneath.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "common/version.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/mesh.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;

uint64_t ElementsOf(const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (const uint64_t n : shape) elements *= n;
  return elements;
}

SafetensorsHeader MakeHeader(absl::Span<const TensorRun> runs) {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";  // Hugging Face's readers look for it; the layout of its tensors is the same
  uint64_t offset = 0;
  for (const TensorRun& run : runs) {
    TensorEntry entry{.name = run.name, .dtype = "F32", .shape = run.shape, .begin = offset};
    if (run.size() != ElementsOf(run.shape)) {
      entry.name = absl::StrCat(run.name, "@", run.begin);
      entry.shape = {run.size()};
      header.metadata[entry.name] = absl::StrCat(run.begin, " ", absl::StrJoin(run.shape, "x"));
      if (!run.box.whole()) {
        absl::StrAppend(&header.metadata[entry.name], " ", run.box.row, " ", run.box.begin, " ", run.box.run);
      }
    }
    offset += run.size() * sizeof(float);
    entry.end = offset;
    header.tensors.push_back(std::move(entry));
  }
  return header;
}

constexpr size_t kWidenedElements = 1 << 16;  // of bf16 at once

absl::Status WriteValues(absl::Span<const float> values, NewFile& file) {
  return file.Write({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

constexpr size_t kSumDigits = 64;  // of SHA-256, in hex

// A comment for sha256sum.
constexpr absl::string_view kBlocksPrefix = "# crc32c of the header and of every ";
constexpr absl::string_view kBlocksMiddle = " bytes after it:";

std::string ShardName(uint32_t shard) { return absl::StrFormat("shard-%05d.safetensors", shard); }

std::string SumPath(const std::string& path, const StepName& name, uint32_t shard) {
  return absl::StrCat(path, "/", name.Staging(), absl::StrFormat("/shard-%05d.sha256", shard));
}

std::string SumText(const ShardFile& shard) {
  std::string text =
      absl::StrCat(shard.sha256(), "  ", shard.file(), "\n", kBlocksPrefix, shard.block_bytes(), kBlocksMiddle);
  for (const uint32_t crc : shard.block_crc32c()) absl::StrAppendFormat(&text, " %08x", crc);
  return text + "\n";
}

// The inverse of SumText; false: not a valid checksum file for this shard.
bool ParseSum(absl::string_view text, ShardFile& shard) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.size() != 3 || lines[0].size() != kSumDigits + 2 + shard.file().size()) return false;
  shard.set_sha256(std::string(lines[0].substr(0, kSumDigits)));
  absl::string_view rest = lines[1];
  if (!absl::ConsumePrefix(&rest, kBlocksPrefix)) return false;
  const size_t cut = rest.find(kBlocksMiddle);
  uint64_t block_bytes = 0;
  if (cut == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, cut), &block_bytes)) return false;
  shard.set_block_bytes(block_bytes);
  for (const absl::string_view word : absl::StrSplit(rest.substr(cut + kBlocksMiddle.size()), ' ', absl::SkipEmpty())) {
    uint32_t crc = 0;
    if (!absl::SimpleHexAtoi(word, &crc)) return false;
    shard.add_block_crc32c(crc);
  }
  return SumText(shard) == text;
}

}  // namespace

absl::Status Begin(const std::string& path, const Holder& holder, const StepName& name) {
  const std::string final_path = absl::StrCat(path, "/", name.Directory());
  if (absl::Status status = MakeConfinedFolders(path); !status.ok()) return status;
  if (absl::Status status = Hold(path, holder); !status.ok()) return status;
  std::error_code error;
  if (fs::exists(fs::symlink_status(final_path, error))) {
    return absl::AlreadyExistsError(absl::StrCat(final_path, " exists already: does another job use ", path, "?"));
  }
  const std::string staging = absl::StrCat(path, "/", name.Staging());
  fs::remove_all(staging, error);
  if (error) return FileError(error.value(), absl::StrCat("removing ", staging));
  if (const int failed = failpoint::Hit("checkpoint.staging.create")) error.assign(failed, std::generic_category());
  if (error) return FileError(error.value(), absl::StrCat("creating ", staging));
  return MakeConfinedFolders(staging);
}

absl::StatusOr<ShardFile> WriteShard(const std::string& path, const StepName& name, uint32_t shard,
                                     absl::Span<const TensorRun> runs) {
  ShardFile result;
  result.set_shard(shard);
  result.set_file(ShardName(shard));
  absl::StatusOr<NewFile> file =
      NewFile::Create(absl::StrCat(path, "/", name.Staging(), "/", result.file()), "checkpoint.shard");
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Write(EncodeHeader(MakeHeader(runs))); !status.ok()) return status;
  file->BeginBlocks(kBlockBytes);
  std::vector<float> wide;
  for (const TensorRun& run : runs) {
    if (absl::Status status = WriteValues(run.values, *file); !status.ok()) return status;
    for (size_t begin = 0; begin < run.bf16.size(); begin += wide.size()) {
      const absl::Span<const uint16_t> part = run.bf16.subspan(begin, kWidenedElements);
      wide.resize(part.size());
      std::transform(part.begin(), part.end(), wide.begin(), FromBf16);
      if (absl::Status status = WriteValues(wide, *file); !status.ok()) return status;
    }
  }
  result.set_bytes(file->bytes());
  absl::StatusOr<std::string> sha256 = file->Finish();
  if (!sha256.ok()) return sha256.status();
  result.set_sha256(*sha256);
  result.set_block_bytes(kBlockBytes);
  result.mutable_block_crc32c()->Add(file->block_crc32c().begin(), file->block_crc32c().end());
  // Renamed, so that the file is complete when it appears, and its shard is on disk.
  absl::Status status = WriteDurably(SumPath(path, name, shard), SumText(result), {.points = "checkpoint.sum"});
  if (!status.ok()) return status;
  return result;
}

uint32_t Files(const Manifest& manifest) { return manifest.table().shards() * std::max(1u, manifest.replicas()); }

// The ranks of one replica are numbered as the table's shards are.
std::string PlaceOfFile(const Manifest& manifest, uint32_t file) {
  const PartitionTable& table = manifest.table();
  if (table.shards() == 0) return "";
  Mesh mesh = partition::MeshOf(table);
  if (mesh.parts() == 1 || mesh.owners() != table.shards()) return "";
  Coordinate at = CoordinateOfOwner(mesh, file % table.shards());
  mesh.replica = std::max(1u, manifest.replicas()), at.replica = file / table.shards();
  return Print(mesh, at);
}

absl::StatusOr<bool> ShardIsWritten(const std::string& path, const StepName& name, uint32_t shard) {
  absl::Status status = ReadFile::Open(SumPath(path, name, shard)).status();
  if (!absl::IsNotFound(status)) return status.ok() ? absl::StatusOr<bool>(true) : status;
  const std::string staging = absl::StrCat(path, "/", name.Staging());
  std::error_code error;
  if (fs::is_directory(staging, error)) return false;
  return absl::NotFoundError(absl::StrCat(staging, " was removed while shards were being written to it"));
}

namespace {

constexpr uint64_t kMaxSumBytes = 64 << 20;

// Reads a shard's entry from the staging folder; adds the bytes of its checksum file.
absl::StatusOr<ShardFile> FindShard(const std::string& path, const StepName& name, uint32_t shard, uint64_t& bytes) {
  ShardFile found;
  found.set_shard(shard);
  found.set_file(ShardName(shard));
  const absl::StatusOr<std::string> sum = ReadText(SumPath(path, name, shard), kMaxSumBytes);
  const absl::StatusOr<ReadFile> file = ReadFile::Open(absl::StrCat(path, "/", name.Staging(), "/", found.file()));
  if (!sum.ok() || !file.ok() || !ParseSum(*sum, found)) {
    return absl::DataLossError(
        absl::StrCat(path, "/", name.Staging(), "/", found.file(),
                     ": missing or not as its rank wrote it; is checkpoint.path one directory that "
                     "every rank's node sees?"));
  }
  found.set_bytes(file->bytes());
  bytes += sum->size();
  return found;
}

}  // namespace

absl::StatusOr<Written> Finish(const std::string& path, Manifest manifest, const std::string& store_id) {
  Written written{.name = {manifest.step(), manifest.generation()}};
  manifest.clear_shards();
  for (uint32_t shard = 0; shard < Files(manifest); ++shard) {
    absl::StatusOr<ShardFile> found = FindShard(path, written.name, shard, written.bytes);
    if (!found.ok()) return found.status();
    written.bytes += found->bytes();
    *manifest.add_shards() = *std::move(found);
  }
  manifest.set_format(1);
  manifest.set_written_by(absl::StrCat("muster ", kVersion));
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(manifest, &json, options).ok()) {
    return absl::InternalError("the checkpoint's manifest cannot be written as JSON");
  }
  const std::string staging = absl::StrCat(path, "/", written.name.Staging());
  const std::string sum = absl::StrCat(Sha256Hex(json), "  ", kManifestFile, "\n");
  absl::Status status =
      WriteInPlace(absl::StrCat(staging, "/", kManifestSumFile), sum, {.points = "checkpoint.manifest_sum"});
  if (status.ok()) {
    status = WriteInPlace(absl::StrCat(staging, "/", kManifestFile), json, {.points = "checkpoint.manifest"});
  }
  if (status.ok()) status = SyncFolder(staging, "checkpoint.staging.sync");
  if (status.ok()) status = Hold(path, {manifest.job(), store_id});
  if (status.ok()) status = Rename(staging, absl::StrCat(path, "/", written.name.Directory()), "checkpoint.rename");
  if (status.ok()) status = SyncFolder(path, "checkpoint.path.sync");
  if (!status.ok()) return status;
  written.bytes += sum.size() + json.size();
  return written;
}

void Abandon(const std::string& path, const Holder& holder, const StepName& name) {
  const absl::StatusOr<FolderOwner> owner = OwnerOf(path);
  // An import has no owner file.
  if (!owner.ok() || !Owns(*owner, holder)) return;
  std::error_code ignored;
  fs::remove_all(absl::StrCat(path, "/", name.Staging()), ignored);
}

absl::StatusOr<Written> Write(const std::string& path, Manifest manifest, absl::Span<const TensorRun> runs) {
  const StepName name{manifest.step(), manifest.generation()};
  const Holder holder{manifest.job()};
  if (absl::Status status = Begin(path, holder, name); !status.ok()) return status;
  const auto write = [&]() -> absl::StatusOr<Written> {
    const absl::StatusOr<ShardFile> shard = WriteShard(path, name, 0, runs);
    return shard.ok() ? Finish(path, std::move(manifest)) : shard.status();
  };
  absl::StatusOr<Written> written = write();
  if (!written.ok()) Abandon(path, holder, name);
  return written;
}

}  // namespace muster::checkpoint
