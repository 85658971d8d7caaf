#pragma once

#include <algorithm>
#include <optional>

namespace muster {

inline constexpr char kVersion[] = "0.1.0";
// The newest protocol that this build speaks, and the oldest. Builds whose ranges overlap work together and use the
// newest that both speak, so that a cluster can be upgraded one process at a time. Raise kProtocol when a peer must
// know what it may send or expect; raise kOldestProtocol when the code for an older one is deleted, one release later
// at the earliest.
inline constexpr unsigned kProtocol = 7;
inline constexpr unsigned kOldestProtocol = 7;

// The protocols that a build speaks. `oldest` 0: only the newest.
struct Protocols {
  unsigned newest = kProtocol;
  unsigned oldest = kOldestProtocol;
};

// The newest protocol that two builds speak; none: they have none in common.
constexpr std::optional<unsigned> CommonProtocol(const Protocols& a, const Protocols& b) {
  const auto oldest = [](const Protocols& of) { return of.oldest == 0 ? of.newest : of.oldest; };
  const unsigned common = std::min(a.newest, b.newest);
  if (common < std::max(oldest(a), oldest(b))) return std::nullopt;
  return common;
}

// gRPC metadata that names the client's build.
inline constexpr char kVersionMetadata[] = "muster-version";
inline constexpr char kProtocolMetadata[] = "muster-protocol";
inline constexpr char kOldestProtocolMetadata[] = "muster-oldest-protocol";
inline constexpr char kTimeMetadata[] = "muster-time";  // Unix seconds

}  // namespace muster
