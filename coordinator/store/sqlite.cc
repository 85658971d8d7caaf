#include "coordinator/store/sqlite.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "common/file_error.h"
#include "common/log/log.h"
#include "coordinator/store/failpoint_vfs.h"

namespace muster::store {
namespace {

absl::StatusCode CodeOf(int code) {
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_SCHEMA:
      return absl::StatusCode::kDataLoss;
    case SQLITE_FULL:
      return absl::StatusCode::kResourceExhausted;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::StatusCode::kFailedPrecondition;
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      return absl::StatusCode::kPermissionDenied;
    default:
      return absl::StatusCode::kInternal;
  }
}

const char* HintOf(int code) {
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_SCHEMA:
      return "; the file is damaged or no database: move it away or restore a backup";
    case SQLITE_FULL:
      return "; the disk is full: make room and start again, nothing that was accepted is lost";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "; another process has it open";
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      return "; check the folder's owner, its permissions and that the disk is not mounted read-only";
    default:
      return "; look at the kernel's log for errors of the disk";
  }
}

}  // namespace

Statement::Statement(Statement&& other) noexcept
    : database_(other.database_), statement_(std::exchange(other.statement_, nullptr)) {}

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(database_, other.database_);
  std::swap(statement_, other.statement_);
  return *this;
}

Statement::~Statement() { sqlite3_finalize(statement_); }

absl::StatusOr<bool> Statement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : database_->Error(code, sqlite3_sql(statement_));
  sqlite3_reset(statement_);
  if (!status.ok()) return status;
  return false;
}

absl::Status Statement::Run() {
  while (true) {
    const absl::StatusOr<bool> row = Step();
    if (!row.ok()) return row.status();
    if (!*row) return absl::OkStatus();
  }
}

void Statement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

int64_t Statement::Integer(int column) const { return sqlite3_column_int64(statement_, column); }
double Statement::Real(int column) const { return sqlite3_column_double(statement_, column); }
bool Statement::IsNull(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

std::string Statement::Blob(int column) const {
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
}

void Statement::BindOne(int index, int64_t value) { sqlite3_bind_int64(statement_, index, value); }
void Statement::BindOne(int index, std::string_view value) {
  // A null pointer would bind NULL instead of an empty blob.
  sqlite3_bind_blob64(statement_, index, value.data() == nullptr ? "" : value.data(), value.size(), SQLITE_TRANSIENT);
}
void Statement::BindOne(int index, const std::optional<double>& value) {
  if (value.has_value()) {
    sqlite3_bind_double(statement_, index, *value);
  } else {
    sqlite3_bind_null(statement_, index);
  }
}

Database::Database(std::string path, sqlite3* handle) : path_(std::move(path)), handle_(handle) {
  const std::string name = path_.substr(path_.rfind('/') + 1);
  failpoints_ = absl::StrCat("store.", name.substr(0, name.find('.')), ".");
}

absl::Status Database::Step(std::string_view name, const char* sql) {
  if (const int error = failpoint::Hit(absl::StrCat(failpoints_, std::string(name)))) return FileError(error, path_);
  return sql == nullptr ? absl::OkStatus() : Run(sql);
}

absl::StatusOr<std::unique_ptr<Database>> Database::Open(const std::string& path, const Schema& schema) {
  sqlite3* handle = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &handle,
                                   SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, FailpointVfs());
  std::unique_ptr<Database> database(new Database(path, handle));
  if (code != SQLITE_OK) return database->Error(code, "open");
  sqlite3_extended_result_codes(handle, 1);
  if (absl::Status status = database->Initialise(schema); !status.ok()) return status;
  return database;
}

absl::Status Database::Initialise(const Schema& schema) {
  for (const char* sql : {"PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=PERSIST", "PRAGMA synchronous=FULL",
                          "PRAGMA temp_store=MEMORY", "PRAGMA trusted_schema=OFF", "BEGIN EXCLUSIVE"}) {
    if (absl::Status status = Run(sql); !status.ok()) return status;
  }
  const absl::StatusOr<int64_t> application = Integer("PRAGMA application_id");
  if (!application.ok()) return application.status();
  const absl::StatusOr<int64_t> version = Integer("PRAGMA user_version");
  if (!version.ok()) return version.status();
  const absl::StatusOr<int64_t> tables = Integer("SELECT count(*) FROM sqlite_schema");
  if (!tables.ok()) return tables.status();
  const bool is_new = *application == 0 && *version == 0 && *tables == 0;
  if (!is_new && *application != schema.application_id) {
    return absl::DataLossError(absl::StrCat(path_, " is a database of another kind (application id ", *application,
                                            "); move it away or name another folder"));
  }
  if (!is_new && *version < 1) return absl::DataLossError(absl::StrCat(path_, " has tables, but no schema version"));
  if (*version > schema.version()) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " has schema ", *version,
                                                      ", written by a newer muster; this build knows schemas up to ",
                                                      schema.version(), "; start the newer build, or another folder"));
  }
  if (is_new) {
    const absl::Status status = Run(absl::StrCat("PRAGMA application_id=", schema.application_id).c_str());
    if (!status.ok()) return status;
  }
  if (absl::Status status = Migrate(*version, schema); !status.ok()) return status;
  return Run("COMMIT");
}

absl::Status Database::Migrate(int64_t version, const Schema& schema) {
  if (version == schema.version()) return absl::OkStatus();
  for (int64_t step = version; step < schema.version(); ++step) {
    if (absl::Status status = Run(schema.steps.begin()[step]); !status.ok()) return status;
  }
  if (version > 0) {
    LogInfo("the store's file is migrated; older builds refuse it from now on",
            {{"file", path_}, {"from", version}, {"to", schema.version()}});
  }
  return Run(absl::StrCat("PRAGMA user_version=", schema.version()).c_str());
}

Database::~Database() { sqlite3_close_v2(handle_); }

absl::Status Database::Run(const char* sql) {
  const int code = sqlite3_exec(handle_, sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code, sql);
}

absl::StatusOr<Statement> Database::Prepare(const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(handle_, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return Error(code, sql);
  return Statement(this, statement);
}

absl::StatusOr<int64_t> Database::Integer(const char* sql) {
  absl::StatusOr<Statement> statement = Prepare(sql);
  if (!statement.ok()) return statement.status();
  const absl::StatusOr<bool> row = statement->Step();
  if (!row.ok()) return row.status();
  return *row ? statement->Integer(0) : 0;
}

absl::Status Database::CheckIntegrity() {
  absl::StatusOr<Statement> statement = Prepare("PRAGMA quick_check(1)");
  if (!statement.ok()) return statement.status();
  const absl::StatusOr<bool> row = statement->Step();
  if (!row.ok()) return row.status();
  const std::string decision = *row ? statement->Blob(0) : "no decision";
  if (decision == "ok") return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, " is damaged: ", decision, HintOf(SQLITE_CORRUPT)));
}

absl::Status Database::Error(int code, std::string_view what) const {
  const std::string first_words(what.substr(0, 60));
  return absl::Status(CodeOf(code), absl::StrCat(path_, ": ", sqlite3_errstr(code), " (",
                                                 handle_ == nullptr ? "no handle" : sqlite3_errmsg(handle_), ", code ",
                                                 code, ") in \"", first_words, "\"", HintOf(code)));
}

absl::Status RunOnCopy(const std::string& path, const char* sql) {
  sqlite3* copy = nullptr;
  int code = sqlite3_open_v2(path.c_str(), &copy, SQLITE_OPEN_READWRITE, nullptr);
  if (code == SQLITE_OK) code = sqlite3_exec(copy, "PRAGMA journal_mode=MEMORY", nullptr, nullptr, nullptr);
  if (code == SQLITE_OK) code = sqlite3_exec(copy, sql, nullptr, nullptr, nullptr);
  const std::string what = code == SQLITE_OK ? "" : sqlite3_errmsg(copy);
  sqlite3_close(copy);
  if (code == SQLITE_OK) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot write to the copy ", path, ": ", what));
}

}  // namespace muster::store
