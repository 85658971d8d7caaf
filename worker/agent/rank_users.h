// Whom ranks run as: the daemon's own user, or the user of the job's owner (--run-as-owner).
//
// A map file has a line for each owner, and comments after #:
//
//   # owner   system user, or uid:gid,gid,...   umask of the rank, 077 if it is not there
//   ann       ann
//   bob       61001:61001,44                    umask=027
//
// A rank of ann gets the groups that the system says; one of bob only those of his line. The file is read at the start
// of each rank, so a change needs no restart.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {

struct RankUser {
  std::string name;
  rundir::User ids;
  std::string home;  // empty: unknown
};

// A line of a map file.
struct MappedUser {
  std::string system;  // a user of the system; empty: `ids`
  rundir::User ids;    // of a system user only its umask
};

// By owner. InvalidArgument: a bad line, an owner that is there twice, or root; the message begins with "line 3".
absl::StatusOr<std::map<std::string, MappedUser>> ParseUserMap(std::string_view text);

class RankUsers {
 public:
  RankUsers() = default;  // off
  // `setting`: "off", "system" (the system's user with the owner's name), or the path of a map file. `coordinator`: its
  // address. InvalidArgument: the file is malformed. PermissionDenied: who is neither root nor this user may change it.
  // Others as ReadWhole.
  static absl::StatusOr<RankUsers> Make(const std::string& setting, const std::string& coordinator);

  // Whether ranks run as other users than this process.
  bool switches() const { return !setting_.empty(); }
  // None: as this process. PermissionDenied: there is no user for this owner, or one that no rank may have: root, this
  // process's, the coordinator's; for "system" also those below uid 1000. Others as Make.
  absl::StatusOr<std::optional<RankUser>> Find(const std::string& owner) const;

 private:
  absl::StatusOr<RankUser> Look(const std::string& owner) const;
  absl::Status Judge(const RankUser& user) const;

  std::string setting_;      // empty: off
  std::string coordinator_;  // the path of its socket; empty: it has another address
};

// Makes the run folder, or takes one that is there, and lets other users pass through it to their ranks' folders. They
// can neither list nor change it. PermissionDenied: it is no folder, belongs to another user, or others may write to
// it; FailedPrecondition: other users cannot reach it. Others as FileError.
absl::Status MakePassableRunFolder(const std::string& run);

}  // namespace muster::agent
