#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include <google/protobuf/util/json_util.h>
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "checkpoint/bf16.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/file.h"
#include "common/file_error.h"
#include "common/sha256.h"

namespace muster::checkpoint {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> ReadStepFile(const std::string& path) {
  absl::StatusOr<ReadFile> file = ReadFile::Open(path);
  if (!file.ok()) return AsDamage(file.status());
  if (file->bytes() > (64u << 20)) return absl::DataLossError(absl::StrCat(path, ": too large"));
  std::string text(file->bytes(), '\0');
  if (absl::Status status = file->Read(0, text.size(), text.data()); !status.ok()) return status;
  return text;
}

absl::StatusOr<Manifest> ReadManifest(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kManifestFile);
  absl::StatusOr<std::string> json = ReadStepFile(path);
  if (!json.ok()) return json.status();
  absl::StatusOr<std::string> sum = ReadStepFile(absl::StrCat(directory, "/", kManifestSumFile));
  if (!sum.ok()) return sum.status();
  if (*sum != absl::StrCat(Sha256Hex(*json), "  ", kManifestFile, "\n")) {
    return absl::DataLossError(absl::StrCat(path, ": differs from its checksum in ", kManifestSumFile));
  }
  Manifest manifest;
  const auto parsed = google::protobuf::util::JsonStringToMessage(*json, &manifest);
  if (!parsed.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": written by another version of muster? ",
                                                      std::string(parsed.message().data(), parsed.message().size())));
  }
  if (manifest.format() != 1) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": format ", manifest.format(), " of ",
                                                      manifest.written_by(), "; this build reads format 1"));
  }
  return manifest;
}

// "4096 256x128", or "0 256x128 128 64 64".
bool ParseExtent(const std::string& text, uint64_t& begin, std::vector<uint64_t>& shape, models::FlatBox& box) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  if ((words.size() != 2 && words.size() != 5) || !absl::SimpleAtoi(words[0], &begin)) return false;
  uint64_t elements = 1;
  for (const auto& word : absl::StrSplit(words[1], 'x')) {
    if (!absl::SimpleAtoi(word, &shape.emplace_back())) return false;
    elements *= shape.back();
  }
  if (words.size() == 2) return true;
  return absl::SimpleAtoi(words[2], &box.row) && absl::SimpleAtoi(words[3], &box.begin) &&
         absl::SimpleAtoi(words[4], &box.run) && box.run > 0 && box.begin < box.row && box.run <= box.row - box.begin &&
         elements % box.row == 0;
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory, Verification verification) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    // Not "no such folder", or an older checkpoint would be used instead.
    if (error == std::errc::permission_denied) return FileError(EACCES, directory);
    return absl::NotFoundError(absl::StrCat(directory, ": no such checkpoint folder"));
  }
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  absl::StatusOr<Manifest> manifest = ReadManifest(directory);
  if (!manifest.ok()) return manifest.status();
  checkpoint.manifest_ = *std::move(manifest);
  if (absl::Status status = checkpoint.OpenShards(); !status.ok()) return status;
  if (verification == Verification::kEveryByte) {
    if (const std::vector<absl::Status> damage = checkpoint.Verify(); !damage.empty()) return damage.front();
  }
  return checkpoint;
}

std::vector<absl::Status> Checkpoint::Verify() const {
  std::vector<absl::Status> damage;
  for (size_t shard = 0; shard < shards_.size(); ++shard) {
    if (absl::Status status = shards_[shard].Verify(); !status.ok()) damage.push_back(Placed(shard, status));
  }
  return damage;
}

absl::Status Checkpoint::Placed(size_t shard, const absl::Status& error) const {
  const std::string place = error.ok() ? "" : PlaceOfFile(manifest_, static_cast<uint32_t>(shard));
  return place.empty() ? error : absl::Status(error.code(), absl::StrCat(place, ": ", error.message()));
}

absl::Status Checkpoint::OpenShards() {
  if (manifest_.shards_size() == 0 || manifest_.shards_size() != static_cast<int>(Files(manifest_))) {
    return absl::DataLossError(absl::StrCat(
        directory_, ": ", manifest_.shards_size(), " shard files for a table of ", manifest_.table().shards(),
        " shards", manifest_.replicas() > 1 ? absl::StrCat(" and ", manifest_.replicas(), " replicas") : ""));
  }
  for (int i = 0; i < manifest_.shards_size(); ++i) {
    const ShardFile& shard = manifest_.shards(i);
    if (shard.file() != absl::StrFormat("shard-%05d.safetensors", i)) {
      return absl::DataLossError(absl::StrCat(directory_, ": shard ", i, " is named ", shard.file()));
    }
    absl::StatusOr<ShardReader> opened = ShardReader::Open(directory_, shard);
    if (!opened.ok()) return Placed(shards_.size(), opened.status());
    shards_.push_back(*std::move(opened));
    if (absl::Status status = Index(shards_.size() - 1); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Index(size_t shard) {
  const SafetensorsHeader& header = shards_[shard].header();
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    const TensorEntry& entry = header.tensors[i];
    const uint64_t elements = (entry.end - entry.begin) / sizeof(float);
    StoredRun stored{.shard = shard, .entry = i, .shape = entry.shape, .end = elements};
    std::string name = entry.name;
    if (entry.dtype != "F32") {
      return absl::FailedPreconditionError(absl::StrCat(directory_, ": ", name, " is ", entry.dtype, ", not F32"));
    }
    if (const auto extent = header.metadata.find(name); extent != header.metadata.end()) {
      stored.shape.clear();
      if (!ParseExtent(extent->second, stored.begin, stored.shape, stored.box) ||
          name.rfind('@') == std::string::npos) {
        return absl::DataLossError(absl::StrCat(directory_, ": the extent of ", name, " is unreadable"));
      }
      name.resize(name.rfind('@'));
      stored.end = stored.begin + elements;
    }
    runs_[name].push_back(std::move(stored));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadPart(const StoredRun& stored, uint64_t from, const TensorRun& run, uint64_t to,
                                  uint64_t elements, BlockScratch& scratch) const {
  const ShardReader& shard = shards_[stored.shard];
  return Placed(stored.shard, shard.Read(shard.header().tensors[stored.entry], (from - stored.begin) * sizeof(float),
                                         elements * sizeof(float),
                                         reinterpret_cast<char*>(run.values.data() + (to - run.begin)), scratch));
}

absl::Status Checkpoint::ReadCommon(const StoredRun& stored, const TensorRun& run, BlockScratch& scratch,
                                    uint64_t& filled) const {
  const uint64_t end = run.begin + run.values.size();
  if (stored.box == run.box) {
    const uint64_t from = std::max(stored.begin, run.begin), to = std::min(stored.end, end);
    if (from >= to) return absl::OkStatus();
    filled += to - from;
    return ReadPart(stored, from, run, from, to - from, scratch);
  }
  // Stretches that are consecutive in both, in the order of the shard's file.
  for (uint64_t at = run.begin; at < end;) {
    const uint64_t place = run.box.Whole(at), from = std::max(stored.begin, stored.box.FirstFrom(place));
    if (from >= stored.end) break;
    const uint64_t skipped = stored.box.Whole(from) - place, left = std::min(end - at, run.box.Left(at));
    if (skipped >= left) {
      at += left;
      continue;
    }
    at += skipped;
    const uint64_t elements = std::min({left - skipped, stored.box.Left(from), stored.end - from});
    if (absl::Status s = ReadPart(stored, from, run, at, elements, scratch); !s.ok()) return s;
    filled += elements, at += elements;
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(const TensorRun& run, BlockScratch& scratch) const {
  if (!run.bf16.empty()) return ReadAsBf16(run, [&](const TensorRun& part) { return Read(part, scratch); });
  const auto wrong = [&](std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(directory_, ": ", run.name, ": ", std::string(what)));
  };
  const auto found = runs_.find(run.name);
  if (found == runs_.end()) {
    return wrong("the checkpoint has no such tensor: was the model or the optimizer changed since?");
  }
  uint64_t filled = 0;
  for (const StoredRun& stored : found->second) {
    if (stored.shape != run.shape) {
      return wrong(absl::StrCat("shape [", absl::StrJoin(stored.shape, ", "), "] in the checkpoint, [",
                                absl::StrJoin(run.shape, ", "), "] in the model"));
    }
    if (absl::Status status = ReadCommon(stored, run, scratch, filled); !status.ok()) return status;
  }
  if (filled != run.values.size()) {
    return wrong(absl::StrCat("the checkpoint holds ", filled, " of ", run.values.size(), " elements"));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadHeld(const TensorRun& run, BlockScratch& scratch) const {
  const auto found = runs_.find(run.name);
  if (found == runs_.end()) return absl::OkStatus();
  for (const StoredRun& stored : found->second) {
    uint64_t filled = 0;
    if (stored.shape != run.shape) continue;
    if (absl::Status status = ReadCommon(stored, run, scratch, filled); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Add(const TensorRun& run, BlockScratch& scratch) const {
  if (!Has(run.name)) return absl::OkStatus();
  std::vector<float> values(run.values.size());
  TensorRun part = run;
  part.values = absl::MakeSpan(values);
  if (absl::Status status = ReadHeld(part, scratch); !status.ok()) return status;
  std::transform(values.begin(), values.end(), run.values.begin(), run.values.begin(), std::plus<>());
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(const TensorRun& run) const {
  BlockScratch scratch;
  return Read(run, scratch);
}

absl::StatusOr<Opened> OpenFirstWhole(const std::vector<std::string>& folders, Verification verification) {
  std::vector<absl::Status> damaged;
  for (const std::string& folder : folders) {
    absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder, verification);
    if (checkpoint.ok()) return Opened{*std::move(checkpoint), std::move(damaged)};
    // It may be whole: who asks for the newest one does not get an older one because of a mode.
    if (absl::IsPermissionDenied(checkpoint.status())) return checkpoint.status();
    damaged.push_back(checkpoint.status());
  }
  const std::string causes = absl::StrJoin(
      damaged, "; ", [](std::string* out, const absl::Status& status) { absl::StrAppend(out, status.message()); });
  return absl::DataLossError(absl::StrCat("no whole checkpoint is left: ", causes));
}

}  // namespace muster::checkpoint
