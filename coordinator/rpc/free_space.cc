#include "coordinator/rpc/free_space.h"

#include <sys/statvfs.h>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace muster::rpc {

absl::Status CheckFreeSpace(const std::string& state_dir, uint64_t min_free_bytes) {
  struct statvfs info {};
  if (statvfs(state_dir.c_str(), &info) != 0) return absl::OkStatus();
  const uint64_t free = uint64_t{info.f_bavail} * info.f_frsize;
  if (free >= min_free_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("no new jobs: the coordinator's disk at ", state_dir, " has ",
                                                   FormatBytes(free), " free, less than ", FormatBytes(min_free_bytes),
                                                   "; make room there, or delete ended jobs"));
}

}  // namespace muster::rpc
