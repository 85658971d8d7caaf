#pragma once

namespace muster {

inline constexpr char kVersion[] = "0.1.0";
// Raised when two builds can no longer communicate.
inline constexpr unsigned kProtocol = 7;
// gRPC metadata that names the client's build.
inline constexpr char kVersionMetadata[] = "muster-version";
inline constexpr char kProtocolMetadata[] = "muster-protocol";

}  // namespace muster
