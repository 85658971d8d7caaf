// A thin SQLite wrapper for both stores: files opened with our durability settings, and statements.
//
// Not thread-safe. No error is retried: after a disk error (above all of fsync) the state of the disk is unknown, so
// the error is returned and the process ends. Errors by code: DataLoss (not a database, or damaged),
// ResourceExhausted (disk full), FailedPrecondition (another process has it, or a newer schema), PermissionDenied,
// Internal (any other error of the disk).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace muster::store {

struct Schema {
  int application_id;  // distinguishes our files from each other and from other programs'
  // The n-th brings a file of schema n - 1 to n; schema 0 is an empty file. A file is migrated when it is opened, in
  // one transaction; a build that knows only older schemas refuses it from then on. Released steps are never changed.
  std::initializer_list<const char*> steps;

  int64_t version() const { return static_cast<int64_t>(steps.size()); }
};

class Database;

// A prepared statement; must not outlive its Database.
class Statement {
 public:
  Statement() = default;
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

  // Resets the statement and binds its parameters in order.
  template <typename... Arguments>
  void Bind(const Arguments&... arguments) {
    Reset();
    int index = 0;
    (BindOne(++index, arguments), ...);
  }

  // True: a row is available. False: done, and reset.
  absl::StatusOr<bool> Step();
  // Runs it to the end, ignoring rows.
  absl::Status Run();
  void Reset();

  int64_t Integer(int column) const;
  double Real(int column) const;
  bool IsNull(int column) const;
  std::string Blob(int column) const;

 private:
  friend class Database;
  Statement(Database* database, sqlite3_stmt* statement) : database_(database), statement_(statement) {}

  void BindOne(int index, int64_t value);
  void BindOne(int index, uint64_t value) { BindOne(index, static_cast<int64_t>(value)); }
  void BindOne(int index, uint32_t value) { BindOne(index, static_cast<int64_t>(value)); }
  void BindOne(int index, int value) { BindOne(index, static_cast<int64_t>(value)); }
  void BindOne(int index, std::string_view value);  // as a blob: keys compare byte by byte
  void BindOne(int index, const std::string& value) { BindOne(index, std::string_view(value)); }
  void BindOne(int index, const std::optional<double>& value);  // none: NULL

  Database* database_ = nullptr;
  sqlite3_stmt* statement_ = nullptr;
};

class Database {
 public:
  // Opens or creates `path`: journal_mode=PERSIST (DELETE does not sync the directory after it unlinks the journal),
  // synchronous=FULL, locking_mode=EXCLUSIVE with the lock taken at once.
  static absl::StatusOr<std::unique_ptr<Database>> Open(const std::string& path, const Schema& schema);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // BEGIN, `work`, COMMIT: durable when it returns OK; otherwise rolled back, if that is still possible. Its
  // failpoints, in addition to those of failpoint_vfs.h: store.NAME.begin, store.NAME.commit (before the commit),
  // store.NAME.committed (after it, so the caller does not get the result).
  template <typename Work>
  absl::Status InTransaction(const Work& work) {
    if (absl::Status status = Step("begin", "BEGIN IMMEDIATE"); !status.ok()) return status;
    absl::Status status = work();
    if (status.ok()) status = Step("commit", "COMMIT");
    // Only so that the object may be destroyed; the result does not matter any more.
    if (!status.ok()) Run("ROLLBACK").IgnoreError();
    return status.ok() ? Step("committed", nullptr) : status;
  }

  absl::Status Run(const char* sql);
  absl::StatusOr<Statement> Prepare(const char* sql);
  // The single integer that `sql` returns.
  absl::StatusOr<int64_t> Integer(const char* sql);
  // Checks the whole file. DataLoss: the message has the first error.
  absl::Status CheckIntegrity();

  // The Status of a SQLite result code.
  absl::Status Error(int code, std::string_view what) const;
  const std::string& path() const { return path_; }

 private:
  Database(std::string path, sqlite3* handle);
  // The failpoint of that name, then `sql`.
  absl::Status Step(std::string_view name, const char* sql);
  absl::Status Initialise(const Schema& schema);
  absl::Status Migrate(int64_t version, const Schema& schema);

  std::string path_;
  std::string failpoints_;  // prefix of their names
  sqlite3* handle_;
};

// One statement on a file that no one has open and that may be lost: no journal is left beside it, and nothing is
// synced.
absl::Status RunOnCopy(const std::string& path, const char* sql);

}  // namespace muster::store
