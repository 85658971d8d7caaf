// Which calls that change nothing get an entry in the audit log: without a bound a user who is refused over and over
// would push the others' entries out of it.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/clock.h"

namespace muster::server {

class AuditLimit {
 public:
  static constexpr uint32_t kMostUnchanged = 60;  // of one user within a minute

  // Whether the call gets an entry: then how many of the user's calls before it have none; nullopt: it gets none.
  std::optional<uint64_t> Admit(const std::string& user, bool changed, SteadyTime now);

 private:
  struct User {
    SteadyTime minute;  // its beginning
    uint32_t unchanged = 0;
    uint64_t left_out = 0;
  };
  std::map<std::string, User> users_;  // those with such calls of late
  SteadyTime swept_;
};

}  // namespace muster::server
