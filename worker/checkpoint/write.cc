#include <errno.h>
#include <stdio.h>

#include <cstring>
#include <filesystem>
#include <utility>

#include <google/protobuf/util/json_util.h>
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/file_error.h"
#include "common/version.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/file.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;

uint64_t ElementsOf(const std::vector<uint64_t>& shape) {
  uint64_t elements = 1;
  for (const uint64_t n : shape) elements *= n;
  return elements;
}

SafetensorsHeader MakeHeader(absl::Span<const Part> parts) {
  SafetensorsHeader header;
  header.metadata["format"] = "pt";  // Hugging Face's readers look for it; the layout of its tensors is the same
  uint64_t offset = 0;
  for (const Part& part : parts) {
    TensorEntry entry{.name = part.name, .dtype = "F32", .shape = part.shape, .begin = offset};
    if (part.values.size() != ElementsOf(part.shape)) {
      entry.name = absl::StrCat(part.name, "@", part.begin);
      entry.shape = {part.values.size()};
      header.metadata[entry.name] = absl::StrCat(part.begin, " ", absl::StrJoin(part.shape, "x"));
    }
    offset += part.values.size() * sizeof(float);
    entry.end = offset;
    header.tensors.push_back(std::move(entry));
  }
  return header;
}

constexpr size_t kSumDigits = 64;  // of SHA-256, in hex

std::string SumPath(const std::string& path, const StepName& name, uint32_t shard) {
  return absl::StrCat(path, "/", name.Staging(), absl::StrFormat("/shard-%05d.sha256", shard));
}

absl::Status WriteFile(const std::string& path, std::string_view content, uint64_t& bytes) {
  absl::StatusOr<NewFile> file = NewFile::Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Write(content); !status.ok()) return status;
  bytes += content.size();
  return file->Finish().status();
}

}  // namespace

absl::Status Begin(const std::string& path, const StepName& name) {
  const std::string final_path = absl::StrCat(path, "/", name.Directory());
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return FileError(error.value(), absl::StrCat("creating the checkpoint folder ", path));
  if (fs::exists(fs::symlink_status(final_path, error))) {
    return absl::AlreadyExistsError(absl::StrCat(final_path, " exists already: does another job use ", path, "?"));
  }
  const std::string staging = absl::StrCat(path, "/", name.Staging());
  fs::remove_all(staging, error);
  if (error) return FileError(error.value(), absl::StrCat("removing ", staging));
  fs::create_directory(staging, error);
  if (error) return FileError(error.value(), absl::StrCat("creating ", staging));
  return absl::OkStatus();
}

absl::StatusOr<ShardFile> WriteShard(const std::string& path, const StepName& name, uint32_t shard,
                                     absl::Span<const Part> parts) {
  ShardFile result;
  result.set_shard(shard);
  result.set_file(absl::StrFormat("shard-%05d.safetensors", shard));
  absl::StatusOr<NewFile> file = NewFile::Create(absl::StrCat(path, "/", name.Staging(), "/", result.file()));
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Write(EncodeHeader(MakeHeader(parts))); !status.ok()) return status;
  for (const Part& part : parts) {
    const std::string_view bytes(reinterpret_cast<const char*>(part.values.data()), part.values.size() * sizeof(float));
    if (absl::Status status = file->Write(bytes); !status.ok()) return status;
  }
  result.set_bytes(file->bytes());
  absl::StatusOr<std::string> sha256 = file->Finish();
  if (!sha256.ok()) return sha256.status();
  result.set_sha256(*sha256);
  uint64_t bytes = 0;
  const absl::Status summed =
      WriteFile(SumPath(path, name, shard), absl::StrCat(*sha256, "  ", result.file(), "\n"), bytes);
  if (!summed.ok()) return summed;
  return result;
}

namespace {

// A shard in the staging folder, as who wrote it left it.
absl::StatusOr<ShardFile> FindShard(const std::string& path, const StepName& name, uint32_t shard) {
  ShardFile found;
  found.set_shard(shard);
  found.set_file(absl::StrFormat("shard-%05d.safetensors", shard));
  absl::StatusOr<ReadFile> sum = ReadFile::Open(SumPath(path, name, shard));
  absl::StatusOr<ReadFile> file = ReadFile::Open(absl::StrCat(path, "/", name.Staging(), "/", found.file()));
  const std::string suffix = absl::StrCat("  ", found.file(), "\n");
  if (!sum.ok() || !file.ok() || sum->bytes() != kSumDigits + suffix.size()) {
    return absl::DataLossError(absl::StrCat(path, "/", name.Staging(), "/", found.file(),
                                            ": not there as a rank wrote it; is checkpoint.path one directory that "
                                            "every rank's node sees?"));
  }
  std::string text(sum->bytes(), '\0');
  if (absl::Status status = sum->Read(0, text.size(), text.data()); !status.ok()) return status;
  if (!absl::EndsWith(text, suffix)) return absl::DataLossError(absl::StrCat(found.file(), ": a checksum of another"));
  found.set_sha256(text.substr(0, kSumDigits));
  found.set_bytes(file->bytes());
  return found;
}

}  // namespace

absl::StatusOr<Written> Finish(const std::string& path, Manifest manifest) {
  Written written{.name = {manifest.step(), manifest.generation()}};
  manifest.clear_shards();
  for (uint32_t shard = 0; shard < manifest.table().shards(); ++shard) {
    absl::StatusOr<ShardFile> found = FindShard(path, written.name, shard);
    if (!found.ok()) return found.status();
    written.bytes += found->bytes() + kSumDigits + 2 + found->file().size() + 1;  // and its checksum's file
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
  absl::Status status = WriteFile(absl::StrCat(staging, "/", kManifestSumFile), sum, written.bytes);
  if (status.ok()) status = WriteFile(absl::StrCat(staging, "/", kManifestFile), json, written.bytes);
  if (status.ok()) status = SyncDirectory(staging);
  if (!status.ok()) return status;
  const std::string final_path = absl::StrCat(path, "/", written.name.Directory());
  if (rename(staging.c_str(), final_path.c_str()) != 0) {
    return FileError(errno, absl::StrCat("renaming ", staging, " to ", final_path));
  }
  if (status = SyncDirectory(path); !status.ok()) return status;
  return written;
}

void Abandon(const std::string& path, const StepName& name) {
  std::error_code ignored;
  fs::remove_all(absl::StrCat(path, "/", name.Staging()), ignored);
}

absl::StatusOr<Written> Write(const std::string& path, Manifest manifest, absl::Span<const Part> parts) {
  const StepName name{manifest.step(), manifest.generation()};
  if (absl::Status status = Begin(path, name); !status.ok()) return status;
  const auto write = [&]() -> absl::StatusOr<Written> {
    const absl::StatusOr<ShardFile> shard = WriteShard(path, name, 0, parts);
    return shard.ok() ? Finish(path, std::move(manifest)) : shard.status();
  };
  absl::StatusOr<Written> written = write();
  if (!written.ok()) Abandon(path, name);
  return written;
}

}  // namespace muster::checkpoint
