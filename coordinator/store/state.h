// The state store: jobs, generations, nodes and state events. A small transactional key-value store, so that etcd can
// replace SQLite.
//
// Not thread-safe; one thread owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::store {

inline constexpr size_t kMaxValueBytes = 512 * 1024;  // etcd's limits, enforced by every implementation
inline constexpr size_t kMaxCommitKeys = 100;         // per group of a Commit

struct KeyValue {
  std::string key;
  std::string value;
};

struct Change {
  std::string key;
  std::optional<std::string> value;  // none: delete
};

// The changes of one event.
using ChangeGroup = std::vector<Change>;

// A row of copies alone: a store that has it was restored from a backup.
inline constexpr char kCopyKey[] = "copy";

class StateStore {
 public:
  virtual ~StateStore() = default;

  // Rows with begin <= key < end (an empty `end`: no bound), in key order, at most `limit` (0: all).
  virtual absl::StatusOr<std::vector<KeyValue>> Range(std::string_view begin, std::string_view end, size_t limit) = 0;

  // nullopt: no such row.
  virtual absl::StatusOr<std::optional<std::string>> Get(std::string_view key) = 0;

  // The highest that has written; 0: none.
  virtual uint64_t term() const = 0;

  // Durable (fsync) when it returns OK. A group is atomic, and groups become visible in order; SQLite writes all of
  // them in one transaction. InvalidArgument: a key or group over the limits; nothing was written. FailedPrecondition:
  // a leader with a higher term has written. ResourceExhausted: the disk is full, and so is the
  // space that was reserved for this store; nothing was written. After any other error the state of the disk is
  // unknown; the caller ends the process and recovers from the disk.
  virtual absl::Status Commit(uint64_t term, const std::vector<ChangeGroup>& groups) = 0;

  // Whether the space that is reserved for this store is there, or could be taken again. Without it, whatever else is
  // written to this disk takes space that this store needs.
  virtual bool HasReserve() = 0;

  // Writes a consistent, durable copy to one new file, with the row kCopyKey. Returns its size in bytes. AlreadyExists,
  // InvalidArgument (not an absolute path), NotFound (no such folder), FailedPrecondition (its folder is a file), or
  // Internal with the disk's error, after which no file is left.
  virtual absl::StatusOr<uint64_t> Backup(const std::string& path) = 0;
};

// `directory`/state.db, created if it is missing: journal_mode=PERSIST, synchronous=FULL, locking_mode=EXCLUSIVE.
// FailedPrecondition: a schema newer than this build, or another process has it open; DataLoss: not a database, or
// damaged; other codes: the disk's error.
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteState(const std::string& directory);

}  // namespace muster::store
