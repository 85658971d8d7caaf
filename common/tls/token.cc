#include "common/tls/token.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/random_text.h"

namespace muster::tls {
namespace {

constexpr absl::string_view kPrefix = "muster1.";
constexpr size_t kAuthoritySize = 64;
constexpr size_t kIdSize = 8;

}  // namespace

absl::StatusOr<Token> MakeToken(const std::string& authority_sha256) {
  const absl::StatusOr<std::string> id = RandomText(kIdSize), secret = RandomText(kTokenSecretSize);
  if (!id.ok()) return id.status();
  if (!secret.ok()) return secret.status();
  return Token{authority_sha256, *id, *secret};
}

std::string ToString(const Token& token) {
  return absl::StrCat(kPrefix, token.authority_sha256, ".", token.id, ".", token.secret);
}

bool IsToken(std::string_view text) {
  return absl::StartsWith(absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size())), kPrefix);
}

bool HoldsToken(std::string_view text) {
  for (size_t at = text.find(kPrefix.data()); at != std::string_view::npos; at = text.find(kPrefix.data(), at + 1)) {
    const std::string_view rest = text.substr(at + kPrefix.size());
    if (rest.find_first_not_of("0123456789abcdef") == kAuthoritySize && rest[kAuthoritySize] == '.') return true;
  }
  return false;
}

absl::Status CheckTokenText(std::string_view text) {
  const auto wrong = std::find_if_not(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_isgraph(c); });
  if (wrong == text.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("this is not a token: byte ", wrong - text.begin() + 1, " of ",
                                                 text.size(), " is 0x",
                                                 absl::Hex(static_cast<unsigned char>(*wrong), absl::kZeroPad2),
                                                 ", which a request cannot carry; copy the token again: it is one word "
                                                 "of printable ASCII characters"));
}

absl::StatusOr<Token> ParseToken(std::string_view text) {
  const std::vector<std::string> parts =
      absl::StrSplit(absl::StripAsciiWhitespace(absl::string_view(text.data(), text.size())), '.');
  const bool fits = parts.size() == 4 && absl::StrCat(parts[0], ".") == kPrefix && parts[1].size() == kAuthoritySize &&
                    parts[1].find_first_not_of("0123456789abcdef") == std::string::npos && parts[2].size() == kIdSize &&
                    parts[3].size() == kTokenSecretSize && CheckTokenText(parts[2]).ok() &&
                    CheckTokenText(parts[3]).ok();
  if (!fits) {
    return absl::InvalidArgumentError(
        "this is not a token of `muster coordinator token create` (muster1.AUTHORITY.ID.SECRET), perhaps because it "
        "was cut off: copy it again, or ask an admin for a new one");
  }
  return Token{parts[1], parts[2], parts[3]};
}

}  // namespace muster::tls
