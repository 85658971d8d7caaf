// Checkpoints on disk. Below checkpoint.path one folder a step:
//
//   step-0000000100-g1/shard-00000.safetensors   what one shard owns
//   step-0000000100-g1/shard-00000.sha256        as `sha256sum -c` reads it, and checksums of its blocks
//   step-0000000100-g1/manifest.sha256           of manifest.json, as `sha256sum -c` reads it
//   step-0000000100-g1/manifest.json             proto/manifest.proto; names and checksums of the shards
//
// A folder is written under a hidden staging name, each file fsynced, the manifest last, then renamed: a folder with a
// step's name is whole, whatever was killed or lost power. A damaged one is found by its checksums.
//
// In a shard a parameter has its Hugging Face name, and state of the optimizer "optimizer.<kind>.<name>". A tensor of
// which the shard owns only elements [begin, begin + length) is stored as one flat run under "<name>@<begin>", and
// __metadata__ says under the same key "<begin> <shape>", e.g. "4096 256x128".
//
// Thread-safe: no shared state but the disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/shard.h"
#include "checkpoint/step_name.h"
#include "proto/manifest.pb.h"

namespace muster::checkpoint {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kManifestSumFile[] = "manifest.sha256";

// A run of a tensor's elements in memory, fp32: what is written, or where to read to.
struct TensorRun {
  std::string name;             // as in the shard
  std::vector<uint64_t> shape;  // of the whole tensor
  uint64_t begin = 0;           // element
  absl::Span<float> values;
};

struct Written {
  StepName name;
  uint64_t bytes = 0;  // of all files
};

// Makes the staging folder of manifest.step and manifest.generation below `path` (which is made if it is not there),
// in place of one that a killed attempt left. AlreadyExists: the step's folder is there already.
absl::Status Begin(const std::string& path, const StepName& name);

// Writes one shard and its checksums into the staging folder; several processes may, each its own.
absl::StatusOr<ShardFile> WriteShard(const std::string& path, const StepName& name, uint32_t shard,
                                     absl::Span<const TensorRun> parts);
// Whether somebody's WriteShard of it is done.
bool ShardIsWritten(const std::string& path, const StepName& name, uint32_t shard);

// Writes the manifest behind the shards of its table, which are all in the staging folder, and renames; the list of
// shards, format and written_by are filled in here. DataLoss: a shard is missing there.
absl::StatusOr<Written> Finish(const std::string& path, Manifest manifest);

// After an error: the staging folder goes.
void Abandon(const std::string& path, const StepName& name);

// All three for a table of one shard. ResourceExhausted: disk full. After an error the staging folder is gone and
// earlier checkpoints are as they were; the disk is not to be trusted with a second try (promise 9), so the caller
// ends.
absl::StatusOr<Written> Write(const std::string& path, Manifest manifest, absl::Span<const TensorRun> parts);

enum class Verification {
  kEveryByte,  // before Open returns
  kAsRead,     // manifest, sizes and headers by Open, the rest where and when it is read
};

// A checkpoint of which no byte is given out that was not verified.
class Checkpoint {
 public:
  // NotFound: no such folder. DataLoss: a file is missing, damaged or cut; names file and cause.
  // FailedPrecondition: a format that this build does not know.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory,
                                         Verification verification = Verification::kEveryByte);

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }

  // Fills part.values from whichever shards hold them. FailedPrecondition: the checkpoint has no such tensor, has it in
  // another shape, or not all of it. DataLoss: the disk changed it. Reads of neighbours with one scratch read no block
  // twice.
  absl::Status Read(const TensorRun& part) const;
  absl::Status Read(const TensorRun& part, BlockScratch& scratch) const;

  // Reads every byte; one DataLoss for each damaged shard.
  std::vector<absl::Status> Verify() const;

 private:
  struct StoredRun {
    size_t shard = 0;  // index in shards_
    size_t entry = 0;  // index in its header
    std::vector<uint64_t> shape;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  Checkpoint() = default;
  absl::Status OpenShards();
  absl::Status Index(size_t shard);

  std::string directory_;
  Manifest manifest_;
  std::vector<ShardReader> shards_;
  std::map<std::string, std::vector<StoredRun>> pieces_;  // by tensor
};

struct Opened {
  Checkpoint checkpoint;
  std::vector<absl::Status> damaged;  // of the candidates before it: to be told loudly
};

// The first of `folders` (of a step each, newest first) that is whole. DataLoss: none is; the message has each one's
// cause. REQUIRES: not empty.
absl::StatusOr<Opened> OpenFirstWhole(const std::vector<std::string>& folders);

// Names of the step folders below `path`, newest first. Empty if `path` is not there.
std::vector<StepName> List(const std::string& path);
// What a user may name: `path` itself if it is a step's folder, else the step folders below it, newest first.
std::vector<std::string> StepFolders(const std::string& path);

// Before a job's first step: makes `path` if it is not there, and finds out now rather than at the first checkpoint
// whether it can be used. FailedPrecondition: it holds a checkpoint of another job, which would be mixed up with, or
// lost to, this one's. PermissionDenied, ResourceExhausted: nothing can be written there.
absl::Status Claim(const std::string& path, const std::string& job);

// Removes what is no longer wanted below `path`, as rank 0 of `generation`:
//   step folders that are not in `published` (names) and older than its newest; of the newer ones that are not in
//   `pending` either, which the coordinator has not heard of, all but the newest two; staging folders of older
//   generations; half removed folders.
// `pending` are newer than the published ones that rank 0 has heard of, and may be published already. Never touches
// what a later generation wrote. Returns the names removed.
absl::StatusOr<std::vector<std::string>> Retain(const std::string& path, uint64_t generation,
                                                const std::set<std::string>& published,
                                                const std::set<std::string>& pending = {});

}  // namespace muster::checkpoint
