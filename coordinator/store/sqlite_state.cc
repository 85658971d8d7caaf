#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "coordinator/store/reserve.h"
#include "coordinator/store/sqlite.h"
#include "coordinator/store/state.h"

namespace muster::store {
namespace {

constexpr Schema kStateSchema{0x4d535453,
                              {"CREATE TABLE rows(key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL);"
                               "CREATE TABLE meta(name TEXT PRIMARY KEY NOT NULL, value INTEGER NOT NULL);"
                               "INSERT INTO meta VALUES('term', 0);"}};

// Months of decisions about running jobs, since rows replace older ones.
constexpr uint64_t kReserveBytes = uint64_t{16} << 20;

absl::Status DiskError(const char* what, const std::string& path) {
  const int error = errno;
  const std::string message = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  return error == EEXIST ? absl::AlreadyExistsError(message) : absl::InternalError(message);
}

class SqliteState final : public StateStore {
 public:
  static absl::StatusOr<std::unique_ptr<StateStore>> Open(const std::string& path) {
    absl::StatusOr<std::unique_ptr<Database>> database = Database::Open(path, kStateSchema);
    if (!database.ok()) return database.status();
    std::unique_ptr<SqliteState> store(new SqliteState(*std::move(database), path));
    if (absl::Status status = store->Prepare(); !status.ok()) return status;
    return store;
  }

  absl::StatusOr<std::vector<KeyValue>> Range(std::string_view begin, std::string_view end, size_t limit) override {
    Statement& select = end.empty() ? select_from_ : select_range_;
    const int64_t rows = limit == 0 ? -1 : static_cast<int64_t>(limit);
    if (end.empty()) {
      select.Bind(begin, rows);
    } else {
      select.Bind(begin, rows, end);
    }
    std::vector<KeyValue> result;
    while (true) {
      const absl::StatusOr<bool> row = select.Step();
      if (!row.ok()) return row.status();
      if (!*row) return result;
      result.push_back({select.Blob(0), select.Blob(1)});
    }
  }

  absl::StatusOr<std::optional<std::string>> Get(std::string_view key) override {
    select_one_.Bind(key);
    const absl::StatusOr<bool> row = select_one_.Step();
    if (!row.ok()) return row.status();
    if (!*row) return std::nullopt;
    std::string value = select_one_.Blob(0);
    select_one_.Reset();
    return value;
  }

  uint64_t term() const override { return term_; }

  absl::Status Commit(uint64_t term, const std::vector<ChangeGroup>& groups) override {
    if (absl::Status status = CheckLimits(groups); !status.ok()) return status;
    if (term < term_) {
      return absl::FailedPreconditionError(absl::StrCat("a leader of term ", term_, " has written to ",
                                                        database_->path(), "; this process has term ", term,
                                                        " and must end"));
    }
    const auto write = [&] { return Write(term, groups); };
    absl::Status status = database_->InTransaction(write);
    // SQLite has rolled back: on a full disk nothing was written, so trying again is safe.
    if (absl::IsResourceExhausted(status) && reserve_.Release()) status = database_->InTransaction(write);
    if (!status.ok()) return status;
    term_ = term;
    reserve_.Refill();
    return status;
  }

  bool HasReserve() override { return reserve_.Refill(); }

  absl::StatusOr<uint64_t> Backup(const std::string& path) override {
    if (!absl::StartsWith(path, "/") || absl::EndsWith(path, "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", path, "\" is not the absolute path of a file on the coordinator's machine"));
    }
    const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) {
      const absl::Status status = CreateError(errno, path);
      if (absl::IsAlreadyExists(status)) {
        return absl::AlreadyExistsError(absl::StrCat(status.message(), "; name another file, or remove this one"));
      }
      // What the caller can mend is no internal error.
      if (absl::IsNotFound(status) || absl::IsFailedPrecondition(status)) {
        return absl::Status(
            status.code(),
            absl::StrCat(status.message(), "; name a file in a folder that exists on the coordinator's machine"));
      }
      return absl::InternalError(status.message());
    }
    close(fd);
    absl::Status status = CopyTo(path);
    struct stat info {};
    if (status.ok() && stat(path.c_str(), &info) != 0) status = DiskError("cannot read", path);
    if (!status.ok()) {
      unlink(path.c_str());
      return absl::InternalError(absl::StrCat("the backup failed and left no file: ", status.message()));
    }
    return static_cast<uint64_t>(info.st_size);
  }

 private:
  SqliteState(std::unique_ptr<Database> database, const std::string& path)
      : database_(std::move(database)), reserve_(absl::StrCat(path, "-reserve"), kReserveBytes) {}

  absl::Status Prepare() {
    if (absl::Status status = database_->CheckIntegrity(); !status.ok()) return status;
    const struct {
      Statement* statement;
      const char* sql;
    } statements[] = {
        {&select_from_, "SELECT key, value FROM rows WHERE key >= ?1 ORDER BY key LIMIT ?2"},
        {&select_range_, "SELECT key, value FROM rows WHERE key >= ?1 AND key < ?3 ORDER BY key LIMIT ?2"},
        {&select_one_, "SELECT value FROM rows WHERE key = ?"},
        {&put_, "INSERT INTO rows VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value"},
        {&delete_, "DELETE FROM rows WHERE key = ?"},
        {&put_term_, "UPDATE meta SET value = ? WHERE name = 'term'"},
    };
    for (const auto& [statement, sql] : statements) {
      absl::StatusOr<Statement> prepared = database_->Prepare(sql);
      if (!prepared.ok()) return prepared.status();
      *statement = *std::move(prepared);
    }
    const absl::StatusOr<int64_t> term = database_->Integer("SELECT value FROM meta WHERE name = 'term'");
    if (!term.ok()) return term.status();
    term_ = static_cast<uint64_t>(*term);
    return absl::OkStatus();
  }

  static absl::Status CheckLimits(const std::vector<ChangeGroup>& groups) {
    for (const ChangeGroup& group : groups) {
      if (group.size() > kMaxCommitKeys) {
        return absl::InvalidArgumentError(
            absl::StrCat("a group changes ", group.size(), " keys, at most ", kMaxCommitKeys, " are allowed"));
      }
      for (const Change& change : group) {
        if (change.key.empty()) return absl::InvalidArgumentError("a key is empty");
        if (change.value.has_value() && change.value->size() > kMaxValueBytes) {
          return absl::InvalidArgumentError(absl::StrCat("the value of ", change.key, " has ", change.value->size(),
                                                         " bytes, at most ", kMaxValueBytes, " are allowed"));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status Write(uint64_t term, const std::vector<ChangeGroup>& groups) {
    if (term != term_) {
      put_term_.Bind(term);
      if (absl::Status status = put_term_.Run(); !status.ok()) return status;
    }
    for (const ChangeGroup& group : groups) {
      for (const Change& change : group) {
        Statement& statement = change.value.has_value() ? put_ : delete_;
        if (change.value.has_value()) {
          statement.Bind(change.key, *change.value);
        } else {
          statement.Bind(change.key);
        }
        if (absl::Status status = statement.Run(); !status.ok()) return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status CopyTo(const std::string& path) {
    absl::StatusOr<Statement> vacuum = database_->Prepare("VACUUM INTO CAST(? AS TEXT)");
    if (!vacuum.ok()) return vacuum.status();
    vacuum->Bind(path);
    if (absl::Status status = vacuum->Run(); !status.ok()) return status;
    const std::string mark = absl::StrCat("INSERT OR REPLACE INTO rows VALUES(CAST('", kCopyKey, "' AS BLOB), x'31')");
    if (absl::Status status = RunOnCopy(path, mark.c_str()); !status.ok()) return status;
    if (absl::Status status = SyncFile(path); !status.ok()) return status;
    return SyncFolder(ParentFolder(path));
  }

  std::unique_ptr<Database> database_;  // before the statements, which it must outlive
  Statement select_from_, select_range_, select_one_, put_, delete_, put_term_;
  uint64_t term_ = 0;  // highest term that has written
  Reserve reserve_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteState(const std::string& directory) {
  return SqliteState::Open(absl::StrCat(directory, "/state.db"));
}

}  // namespace muster::store
