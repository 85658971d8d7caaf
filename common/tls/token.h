// Tokens as users hold them:
//
//   muster1.<SHA-256 of the coordinator's authority>.<id>.<secret>
//
// The first part pins the authority, so that a client with nothing but the token knows which coordinator to trust; the
// id names the token in lists; the secret (160 random bits) authenticates its holder. The coordinator keeps only the
// secret's hash.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::tls {

constexpr size_t kTokenSecretSize = 32;

struct Token {
  std::string authority_sha256;  // 64 hexadecimal digits
  std::string id;                // 8 characters
  std::string secret;            // 32 characters
};

// Makes a token. Errors as RandomText.
absl::StatusOr<Token> MakeToken(const std::string& authority_sha256);

std::string ToString(const Token& token);

// Whether `text` starts like a token of this form; those of a coordinator's --token-file do not.
bool IsToken(std::string_view text);
// Whether `text` has such a token in it, whole or without a part of its end.
bool HoldsToken(std::string_view text);
// OK: one word of printable ASCII. gRPC aborts the process for other bytes. InvalidArgument: another byte, by position.
absl::Status CheckTokenText(std::string_view text);
// Ignores surrounding blanks. InvalidArgument: another form; the message never contains the secret.
absl::StatusOr<Token> ParseToken(std::string_view text);

}  // namespace muster::tls
