// One-time codes that sign a browser in to the web page as the caller who asked for the code (Admin.SignIn). A code
// works once, for a minute. A token or the Unix socket so becomes a session without a secret in a URL that lasts.
//
//   SignIns codes("http://127.0.0.1:7080", &clock);
//   absl::StatusOr<std::string> code = codes.Offer(credential);
//   std::optional<Credential> who = codes.Redeem(*code);   // nullopt from then on
//
// Thread-safe. `clock` outlives it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace muster::rpc {

// By what a caller is known; the web server makes its calls with it.
struct Credential {
  bool local = false;  // the user of the Unix socket
  std::string token;   // of all others
  std::string user;    // for display
  std::string role;    // for display
};

class SignIns {
 public:
  static constexpr absl::Duration kLife = absl::Minutes(1);
  static constexpr size_t kMostCodes = 1000;

  // `url`: of the page, without a slash at the end.
  SignIns(std::string url, const Clock* clock) : url_(std::move(url)), clock_(clock) {}

  const std::string& url() const { return url_; }
  // ResourceExhausted: kMostCodes wait. Internal: no randomness.
  absl::StatusOr<std::string> Offer(const Credential& credential);
  // nullopt: unknown, used or too old.
  std::optional<Credential> Redeem(std::string_view code);

 private:
  struct Offered {
    Credential credential;
    SteadyTime at;
  };
  void DropOld() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string url_;
  const Clock* const clock_;
  Mutex mutex_;
  std::map<std::string, Offered> by_digest_ ABSL_GUARDED_BY(mutex_);  // SHA-256, so lookup time reveals nothing
};

}  // namespace muster::rpc
