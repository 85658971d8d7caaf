#include "coordinator/store/failpoint_vfs.h"

#include <sqlite3.h>

#include <cerrno>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/failpoint.h"
#include "common/file_error.h"

namespace muster::store {
namespace {

// Our file object; the file of the underlying VFS follows it in the same memory.
struct File {
  sqlite3_file base;
  std::string* name;  // "store.state.journal", owned; null: not opened

  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};

File* Of(sqlite3_file* file) { return reinterpret_cast<File*>(file); }
sqlite3_vfs* Below(sqlite3_vfs* vfs) { return static_cast<sqlite3_vfs*>(vfs->pAppData); }

// "…/state.db-journal" is "store.state.journal".
std::string PartOf(const char* path) {
  absl::string_view name = path == nullptr ? "" : path;
  if (const size_t slash = name.rfind('/'); slash != absl::string_view::npos) name.remove_prefix(slash + 1);
  const bool journal = absl::ConsumeSuffix(&name, "-journal");
  const absl::string_view part = name == "state.db" ? "state" : name == "history.db" ? "history" : "copy";
  return absl::StrCat("store.", part, journal ? ".journal" : "");
}

// SQLITE_OK, or the error of an armed failpoint for the operation.
int Hit(std::string_view part, std::string_view operation, int failure) {
  const int error = failpoint::Hit(absl::StrCat(absl::string_view(part.data(), part.size()), ".",
                                                absl::string_view(operation.data(), operation.size())));
  if (error == 0) return SQLITE_OK;
  return IsFullDisk(error) || error == EFBIG ? SQLITE_FULL : failure;
}

int Close(sqlite3_file* file) {
  delete std::exchange(Of(file)->name, nullptr);
  return Of(file)->real()->pMethods == nullptr ? SQLITE_OK : Of(file)->real()->pMethods->xClose(Of(file)->real());
}
int Write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
  if (const int code = Hit(*Of(file)->name, "write", SQLITE_IOERR_WRITE); code != SQLITE_OK) return code;
  return Of(file)->real()->pMethods->xWrite(Of(file)->real(), data, bytes, offset);
}
int Truncate(sqlite3_file* file, sqlite3_int64 bytes) {
  if (const int code = Hit(*Of(file)->name, "truncate", SQLITE_IOERR_TRUNCATE); code != SQLITE_OK) return code;
  return Of(file)->real()->pMethods->xTruncate(Of(file)->real(), bytes);
}
// Whatever its cause, since what was synced is not known: as SQLite's own.
int Sync(sqlite3_file* file, int flags) {
  if (Hit(*Of(file)->name, "sync", SQLITE_IOERR_FSYNC) != SQLITE_OK) return SQLITE_IOERR_FSYNC;
  return Of(file)->real()->pMethods->xSync(Of(file)->real(), flags);
}

// Operations that only read, lock or query are passed on.
template <auto kMethod, typename... Arguments>
int Forward(sqlite3_file* file, Arguments... arguments) {
  return (Of(file)->real()->pMethods->*kMethod)(Of(file)->real(), arguments...);
}
void Barrier(sqlite3_file* file) { Of(file)->real()->pMethods->xShmBarrier(Of(file)->real()); }

constexpr sqlite3_io_methods kMethods = {
    .iVersion = 3,
    .xClose = Close,
    .xRead = Forward<&sqlite3_io_methods::xRead>,
    .xWrite = Write,
    .xTruncate = Truncate,
    .xSync = Sync,
    .xFileSize = Forward<&sqlite3_io_methods::xFileSize>,
    .xLock = Forward<&sqlite3_io_methods::xLock>,
    .xUnlock = Forward<&sqlite3_io_methods::xUnlock>,
    .xCheckReservedLock = Forward<&sqlite3_io_methods::xCheckReservedLock>,
    .xFileControl = Forward<&sqlite3_io_methods::xFileControl>,
    .xSectorSize = Forward<&sqlite3_io_methods::xSectorSize>,
    .xDeviceCharacteristics = Forward<&sqlite3_io_methods::xDeviceCharacteristics>,
    .xShmMap = Forward<&sqlite3_io_methods::xShmMap>,
    .xShmLock = Forward<&sqlite3_io_methods::xShmLock>,
    .xShmBarrier = Barrier,
    .xShmUnmap = Forward<&sqlite3_io_methods::xShmUnmap>,
    .xFetch = Forward<&sqlite3_io_methods::xFetch>,
    .xUnfetch = Forward<&sqlite3_io_methods::xUnfetch>,
};

int Open(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out_flags) {
  file->pMethods = nullptr;
  const std::string part = PartOf(path);
  if ((flags & SQLITE_OPEN_CREATE) != 0) {
    if (const int code = Hit(part, "create", SQLITE_CANTOPEN); code != SQLITE_OK) return code;
  }
  Of(file)->real()->pMethods = nullptr;
  const int code = Below(vfs)->xOpen(Below(vfs), path, Of(file)->real(), flags, out_flags);
  if (Of(file)->real()->pMethods == nullptr) return code;
  Of(file)->name = new std::string(part);
  file->pMethods = &kMethods;
  return code;
}
int Delete(sqlite3_vfs* vfs, const char* path, int sync_folder) {
  if (const int code = Hit(PartOf(path), "delete", SQLITE_IOERR_DELETE); code != SQLITE_OK) return code;
  return Below(vfs)->xDelete(Below(vfs), path, sync_folder);
}

}  // namespace

const char* FailpointVfs() {
  static sqlite3_vfs* const registered = [] {
    sqlite3_vfs* const below = sqlite3_vfs_find(nullptr);
    // Other methods use the underlying VFS's own object; it keeps no state there that we would have to share.
    auto* vfs = new sqlite3_vfs(*below);
    vfs->zName = "muster";
    vfs->pNext = nullptr;
    vfs->pAppData = below;
    vfs->szOsFile = static_cast<int>(sizeof(File)) + below->szOsFile;
    vfs->xOpen = Open;
    vfs->xDelete = Delete;
    sqlite3_vfs_register(vfs, /*makeDflt=*/0);
    return vfs;
  }();
  return registered->zName;
}

}  // namespace muster::store
