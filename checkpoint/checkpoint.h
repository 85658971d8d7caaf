// Checkpoints on disk. Below checkpoint.path there is one folder per step:
//
//   step-0000000100-g1/shard-00000.safetensors   the tensors that one shard owns; after the last shard's, what the
//                                                ranks of other replicas keep for themselves
//   step-0000000100-g1/shard-00000.sha256        as `sha256sum -c` reads it, and checksums of its blocks
//   step-0000000100-g1/manifest.sha256           of manifest.json, as `sha256sum -c` reads it
//   step-0000000100-g1/manifest.json             proto/manifest.proto; names and checksums of the shards
//   owner.json                                   FolderOwner of proto/manifest.proto: the job that owns the path
//   owner.json.previous                          the one before it, if the path was adopted (checkpoint/adopt.h)
//
// A path has one owner, and only the owner writes and removes there. The owner is checked before anything is written,
// renamed or removed, so two jobs never mix or delete each other's checkpoints, whichever names the path has, nor do
// two coordinators. Callers say for which job they act; job "" writes an imported checkpoint, to a path without an
// owner.
//
// A folder is written under a hidden staging name: each file is fsynced, the manifest last, then the folder is renamed.
// So a folder with a step's name is complete after any kill or power loss. Checksums detect later damage.
//
// In a shard a parameter has its Hugging Face name, and optimizer state is named "optimizer.<kind>.<name>". If a shard
// owns only elements [begin, begin + length) of a tensor, they are one flat run "<name>@<begin>", and the same key in
// __metadata__ holds "<begin> <shape>", e.g. "4096 256x128". If several ranks compute each unit together, a shard owns
// elements of a part of a tensor, in which <begin> counts, and "<begin> <shape> <row> <first> <run>" describes that
// part: elements [first, first + run) of each row of `row` elements.
//
// Thread-safe: no shared state but the disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "checkpoint/shard_reader.h"
#include "common/checkpoint_names.h"
#include "models/box.h"
#include "proto/manifest.pb.h"

namespace muster::checkpoint {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kManifestSumFile[] = "manifest.sha256";

// For whom a caller acts.
struct Holder {
  std::string job;            // id; "": an import
  std::string store_id = {};  // of the job's coordinator; "": not known, and not compared
};

// A run of a tensor's elements in memory: the source of a write, or the target of a read.
struct TensorRun {
  std::string name;             // as in the shard
  std::vector<uint64_t> shape;  // of the whole tensor
  uint64_t begin = 0;           // element
  absl::Span<float> values;
  absl::Span<uint16_t> bf16 = {};  // in place of `values`; fp32 in files, and rounded when it is read
  models::FlatBox box = {};        // the part of the tensor in which `begin` counts; all by default

  uint64_t size() const { return values.size() + bf16.size(); }
};

struct Written {
  StepName name;
  uint64_t bytes = 0;  // of all files
};

// Of the checkpoint: as many as its table has shards, from each replica that writes. FileAt
// (strategies/schedule/mesh.h) numbers them.
uint32_t Files(const Manifest& manifest);
// Where the rank that wrote a file is in the mesh: "stage 1, tensor 0". Empty where the file's number says it all, as
// it does without stages and tensor ranks, and if the table's numbers do not fit together. REQUIRES: one of Files().
std::string PlaceOfFile(const Manifest& manifest, uint32_t file);

// Creates the staging folder of `name` below `path`, and replaces one that a killed attempt left. `path` is created if
// missing, and claimed for `holder` if it has no owner. AlreadyExists: the step's folder exists. FailedPrecondition:
// `path` belongs to another job, or to another store's.
absl::Status Begin(const std::string& path, const Holder& holder, const StepName& name);

// Writes one shard and its checksums into the staging folder. Processes may write different shards concurrently.
absl::StatusOr<ShardFile> WriteShard(const std::string& path, const StepName& name, uint32_t shard,
                                     absl::Span<const TensorRun> runs);
// Whether WriteShard for this shard has finished, in any process. An error: waiting on is in vain, because the staging
// folder is gone or may not be opened any more.
absl::StatusOr<bool> ShardIsWritten(const std::string& path, const StepName& name, uint32_t shard);

// Completes a checkpoint whose shards are all in the staging folder: fills in the manifest's list of shards, format and
// written_by, writes it, and renames the folder. DataLoss: a shard is missing. FailedPrecondition: `path` belongs to
// another job than manifest.job(), or to another store's than `store_id`.
absl::StatusOr<Written> Finish(const std::string& path, Manifest manifest, const std::string& store_id = "");

// After an error: removes the staging folder, if `path` still belongs to `holder`.
void Abandon(const std::string& path, const Holder& holder, const StepName& name);

// Begin, WriteShard and Finish for a table of one shard. ResourceExhausted: disk full. After an error the staging
// folder is removed and earlier checkpoints are intact. The caller must not retry on a disk that failed (promise 9),
// but end.
absl::StatusOr<Written> Write(const std::string& path, Manifest manifest, absl::Span<const TensorRun> runs);

enum class Verification {
  kEveryByte,  // before Open returns
  kAsRead,     // Open verifies manifest, sizes and headers; Read verifies the blocks that it reads
};

// A checkpoint for reading. Returns only verified bytes.
class Checkpoint {
 public:
  // NotFound: no such folder. DataLoss: a file is missing, damaged or cut; names file, PlaceOfFile and cause; likewise
  // Read and Verify. PermissionDenied: this process may not read it, whole or not; names path and user.
  // FailedPrecondition: an unknown format.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory,
                                         Verification verification = Verification::kEveryByte);

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }

  // Fills run.values or run.bf16 from the shards that hold them. FailedPrecondition: the tensor is missing, has another
  // shape, or is incomplete. DataLoss: it is damaged. Consecutive reads with one scratch read no block twice.
  absl::Status Read(const TensorRun& run) const;
  bool Has(const std::string& name) const { return runs_.contains(name); }
  // What the shards hold of it in its shape, which may be nothing: written to run.values, whose other elements stay as
  // they are, or added to them. Other errors as Read. REQUIRES: run.bf16 is empty.
  absl::Status ReadHeld(const TensorRun& run, BlockScratch& scratch) const;
  absl::Status Add(const TensorRun& run, BlockScratch& scratch) const;
  absl::Status Read(const TensorRun& run, BlockScratch& scratch) const;

  // Reads every byte; one DataLoss for each damaged shard.
  std::vector<absl::Status> Verify() const;

 private:
  struct StoredRun {
    size_t shard = 0;  // index in shards_
    size_t entry = 0;  // index in its header
    std::vector<uint64_t> shape;
    uint64_t begin = 0;  // elements of `box`
    uint64_t end = 0;
    models::FlatBox box = {};
  };
  Checkpoint() = default;
  // Elements of `run` from `to` on, from those of `stored` from `from` on.
  absl::Status ReadPart(const StoredRun& stored, uint64_t from, const TensorRun& run, uint64_t to, uint64_t elements,
                        BlockScratch& scratch) const;
  // What `stored` has of it; adds to `filled`.
  absl::Status ReadCommon(const StoredRun& stored, const TensorRun& run, BlockScratch& scratch, uint64_t& filled) const;
  // `error` of one of the shards, with its place.
  absl::Status Placed(size_t shard, const absl::Status& error) const;
  absl::Status OpenShards();
  absl::Status Index(size_t shard);

  std::string directory_;
  Manifest manifest_;
  std::vector<ShardReader> shards_;
  std::map<std::string, std::vector<StoredRun>> runs_;  // by tensor
};

struct Opened {
  Checkpoint checkpoint;
  std::vector<absl::Status> damaged;  // errors of the newer candidates; the caller must report them
};

// Opens the first intact one of `folders` (step folders, newest first). DataLoss: none is; the message has each
// cause. PermissionDenied: before an intact one there is one that may not be read. REQUIRES: `folders` is not empty.
absl::StatusOr<Opened> OpenFirstWhole(const std::vector<std::string>& folders,
                                      Verification verification = Verification::kEveryByte);

// PermissionDenied: `path` is there and this process may not see what is in it, so that List finds nothing.
absl::Status CheckListable(const std::string& path);
// Names of the step folders below `path`, newest first. Empty if `path` is not there, or not CheckListable.
std::vector<StepName> List(const std::string& path);
// Resolves a path that a user gives: `path` itself if it is a step folder, else the step folders below it, newest
// first.
std::vector<std::string> StepFolders(const std::string& path);

// The job in a step folder's manifest; "": an imported checkpoint; none: the manifest cannot be read.
std::optional<std::string> WriterOf(const std::string& folder);

// Run on every rank before the job's first step: creates `path` if missing and checks that `holder` can use it, so that
// a bad path fails at the start and not at the first checkpoint. FailedPrecondition: it belongs to another job or to
// another store's, or has no owner but holds another job's checkpoints, written by an older Muster; the message names
// both and says what to do. An owner file of an older build names no store, and is any store's. PermissionDenied,
// ResourceExhausted: nothing can be written there.
absl::Status CheckFolder(const std::string& path, const Holder& holder);
// On rank 0: CheckFolder, then makes `holder` the owner unless it is already, and adds its store if the owner file
// names none. After OK the owner file is on disk. If several jobs claim a folder concurrently, exactly one succeeds.
absl::Status Claim(const std::string& path, const Holder& holder);
// The owner of `path`; without a job: none. FailedPrecondition: the owner file names no job. Others: it cannot be read.
absl::StatusOr<FolderOwner> OwnerOf(const std::string& path);

// Removes old checkpoints below `path`, as rank 0 of `generation` of the holder's job:
//   - step folders older than the newest of `published` (names) that are not in `published`. Where some of `published`
//     are gone, as after the coordinator's store was restored from a copy, so many of the newest others stay instead;
//   - of the newer folders, those in neither `published` nor `pending`, except the newest two;
//   - staging folders of older generations, and partly removed folders.
// `pending` are reported checkpoints that may be published already, although rank 0 has not received that yet. Never
// touches the checkpoints of a later generation or of another job, or a folder without a readable manifest. Does
// nothing if `path` has no owner. Returns the names removed. FailedPrecondition: `path` belongs to another job, or to
// another store's.
absl::StatusOr<std::vector<std::string>> Retain(const std::string& path, const Holder& holder, uint64_t generation,
                                                const std::set<std::string>& published,
                                                const std::set<std::string>& pending = {});

}  // namespace muster::checkpoint
