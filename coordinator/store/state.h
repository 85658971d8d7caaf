// Rows that decide: jobs, generations, nodes, state events. A small transactional key-value store, so that etcd can
// take SQLite's place.
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

inline constexpr size_t kMaxValueBytes = 512 * 1024;  // etcd's limits, kept by every implementation
inline constexpr size_t kMaxCommitKeys = 100;         // per Commit call of one event; the batch may hold several

struct KeyValue {
  std::string key;
  std::string value;
};

struct Change {
  std::string key;
  std::optional<std::string> value;  // none: delete
};

class StateStore {
 public:
  virtual ~StateStore() = default;

  // All rows whose key begins with `prefix`, in key order.
  virtual absl::StatusOr<std::vector<KeyValue>> Scan(std::string_view prefix) = 0;

  // All or nothing, on disk (fsync) when it returns OK. FailedPrecondition: a leader with a higher term has written.
  // Any other error: nothing may be assumed; the caller ends the process and recovers from the disk.
  virtual absl::Status Commit(uint64_t term, const std::vector<Change>& changes) = 0;

  // A consistent copy in one new file. AlreadyExists, InvalidArgument, or the disk's error.
  virtual absl::Status Backup(const std::string& path) = 0;
};

// `directory`/state.db, created if it is not there: journal_mode=PERSIST, synchronous=FULL, locking_mode=EXCLUSIVE.
// FailedPrecondition: a schema newer than this build; DataLoss: not a database, or damaged.
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteState(const std::string& directory);

}  // namespace muster::store
