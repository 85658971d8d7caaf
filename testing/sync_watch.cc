#include "testing/sync_watch.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdarg>
#include <filesystem>
#include <set>

#include "common/check.h"
#include "common/mutex.h"

namespace muster {
namespace {

struct State {
  std::string root;  // empty: not watching
  std::set<std::string> unsynced;
  std::vector<std::string> renamed;
};

Mutex mutex;

State& TheState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  static State* const state = new State;  // outlives every thread that writes
  return *state;
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

bool IsBelow(const std::string& path, const std::string& root) {
  return !root.empty() && path.size() > root.size() && path.compare(0, root.size(), root) == 0 &&
         path[root.size()] == '/';
}

std::string PathOf(int fd) {
  char path[4096];
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return length <= 0 ? "" : std::string(path, static_cast<size_t>(length));
}

void Wrote(int fd) {
  const MutexLock lock(mutex);
  State& state = TheState();
  if (state.root.empty()) return;
  const std::string path = PathOf(fd);
  if (IsBelow(path, state.root)) state.unsynced.insert(path);
}

void Created(const std::string& path) {
  const MutexLock lock(mutex);
  State& state = TheState();
  if (IsBelow(path, state.root)) state.unsynced.insert(FolderOf(path));
}

void Synced(int fd) {
  const MutexLock lock(mutex);
  State& state = TheState();
  if (!state.root.empty()) state.unsynced.erase(PathOf(fd));
}

void Renamed(const std::string& from, const std::string& to) {
  const MutexLock lock(mutex);
  State& state = TheState();
  if (!IsBelow(to, state.root)) return;
  std::set<std::string> moved;
  for (const std::string& path : state.unsynced) {
    if (path != from && !IsBelow(path, from)) continue;
    state.renamed.push_back(from + " -> " + to + ": " + path);
    moved.insert(path);
  }
  for (const std::string& path : moved) {
    state.unsynced.erase(path);
    state.unsynced.insert(to + path.substr(from.size()));
  }
  state.unsynced.insert(FolderOf(from));
  state.unsynced.insert(FolderOf(to));
}

}  // namespace

SyncWatch::SyncWatch(const std::string& root) {
  const MutexLock lock(mutex);
  State& state = TheState();
  MUSTER_CHECK(state.root.empty(), "a SyncWatch of ", state.root, " is still there; ", root, " needs the only one");
  state = {.root = root, .unsynced = {}, .renamed = {}};
}

SyncWatch::~SyncWatch() {
  const MutexLock lock(mutex);
  TheState() = {};
}

std::vector<std::string> SyncWatch::Unsynced() const {
  const MutexLock lock(mutex);
  std::vector<std::string> left;
  for (const std::string& path : TheState().unsynced) {
    if (std::filesystem::exists(path)) left.push_back(path);
  }
  return left;
}

std::vector<std::string> SyncWatch::RenamedUnsynced() const {
  const MutexLock lock(mutex);
  return TheState().renamed;
}

}  // namespace muster

extern "C" {

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  const bool creates = (flags & O_CREAT) != 0 && access(path, F_OK) != 0;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (creates && fd >= 0) muster::Created(path);
  return fd;
}

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  return open64(path, flags, mode);
}

ssize_t write(int fd, const void* bytes, size_t count) {
  const ssize_t written = syscall(SYS_write, fd, bytes, count);
  if (written > 0 && fd > STDERR_FILENO) muster::Wrote(fd);
  return written;
}

ssize_t pwrite64(int fd, const void* bytes, size_t count, off64_t offset) {
  const ssize_t written = syscall(SYS_pwrite64, fd, bytes, count, offset);
  if (written > 0) muster::Wrote(fd);
  return written;
}

ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) { return pwrite64(fd, bytes, count, offset); }

int fsync(int fd) {
  const int result = static_cast<int>(syscall(SYS_fsync, fd));
  if (result == 0) muster::Synced(fd);
  return result;
}

int fdatasync(int fd) {
  const int result = static_cast<int>(syscall(SYS_fdatasync, fd));
  if (result == 0) muster::Synced(fd);
  return result;
}

int rename(const char* from, const char* to) noexcept {
  muster::Renamed(from, to);
  return static_cast<int>(syscall(SYS_rename, from, to));
}

int link(const char* from, const char* to) noexcept {
  const int result = static_cast<int>(syscall(SYS_link, from, to));
  if (result == 0) muster::Renamed(from, to);
  return result;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  const int result = static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  if (result == 0) muster::Renamed(from, to);
  return result;
}

}  // extern "C"
