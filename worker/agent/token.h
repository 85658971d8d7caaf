#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace muster::agent {

// The token of a worker in a token file: the one word of a file that holds nothing else, or the token of the first line
// `token name worker`, as the coordinator reads them; blank lines and lines that begin with # are skipped.
// InvalidArgument: neither.
absl::StatusOr<std::string> ParseToken(std::string_view text);

// A join token (common/tls/token.h): from the file, or if that is empty from MUSTER_JOIN_TOKEN; empty: neither is
// there. Errors as ReadToken.
absl::StatusOr<std::string> ReadJoinToken(const std::string& path);

// NotFound: no such file. InvalidArgument as ParseToken, or bytes that no token has; the message names the file.
absl::StatusOr<std::string> ReadToken(const std::string& path);

}  // namespace muster::agent
