// Signed-in browsers. A session is known by a random id in a cookie; the server keeps only the id's hash. Sessions
// survive a restart of the coordinator in a file, in which the token of a session is encrypted with a key that only the
// cookie has: the file alone lets no one in.
//
//   absl::StatusOr<std::unique_ptr<Sessions>> sessions = Sessions::Open(state_dir + "/web_sessions.pb", &clock);
//   absl::StatusOr<std::string> id = (*sessions)->Create(credential);   // for the cookie
//   std::optional<Session> who = (*sessions)->Find(*id);
//
// Thread-safe. `clock` outlives it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/rpc/sign_ins.h"
#include "proto/trust.pb.h"

namespace muster::web {

struct Session {
  rpc::Credential credential;
  std::string csrf;  // what a request that changes something has to repeat
};

class Sessions {
 public:
  static constexpr absl::Duration kLife = absl::Hours(12);
  static constexpr size_t kMost = 1000;      // the oldest one ends for another
  static constexpr size_t kMostOfUser = 50;  // likewise of one user

  // A file that is damaged or missing is an empty one: everybody signs in again. Errors as ReadPrivateFile.
  static absl::StatusOr<std::unique_ptr<Sessions>> Open(const std::string& path, const Clock* clock);

  // Returns the id. Errors as WriteDurably; Internal: no randomness.
  absl::StatusOr<std::string> Create(const rpc::Credential& credential);
  // nullopt: unknown, ended or too old.
  std::optional<Session> Find(std::string_view id);
  // Unknown: nothing.
  void End(std::string_view id);

 private:
  Sessions(std::string path, const Clock* clock) : path_(std::move(path)), clock_(clock) {}
  void DropOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropOldestOf(const std::string* user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Save() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const Clock* const clock_;
  Mutex mutex_;
  std::map<std::string, StoredSession> by_digest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::web
