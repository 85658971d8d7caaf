// X.509 as Muster uses it: P-256 keys, one authority, certificates for the coordinator (server) and for nodes (client).
// Everything is PEM text, in and out; time is an argument.
//
//   std::string key = MakeKey().value();
//   std::string request = MakeRequest(key, "node-a").value();           // the key stays where it was made
//   std::string certificate = Sign(request, authority, {...}).value();  // at the coordinator
//
// Pure and thread-safe. Errors: InvalidArgument: malformed text from a peer or a file; Internal: the library fails.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster::tls {

// An authority is valid from this long before its creation, since clocks of machines differ.
inline constexpr absl::Duration kClockSkew = absl::Minutes(10);

inline constexpr size_t kMaxNameBytes = 64;  // of a subject's common name (RFC 5280, ub-common-name)

struct KeyPair {
  std::string certificate;  // may be followed by its issuers
  std::string key;
};

struct Validity {
  absl::Time begin;
  absl::Time end;
};
// From `now` less kClockSkew to `now` plus `life`.
Validity ValidFor(absl::Duration life, absl::Time now);

enum class Use {
  kServer,  // extended key usage serverAuth, with names that clients check
  kNode,    // clientAuth; the subject is the node's id
};

struct Issue {
  Use use = Use::kNode;
  std::string name;                // the subject's common name, 1 to 64 bytes
  std::vector<std::string> hosts;  // of a server: DNS names and IP addresses
  Validity validity;
};

// The content of a certificate.
struct Certificate {
  std::string name;
  std::vector<std::string> hosts;
  Validity validity;
  std::string sha256;      // of the whole certificate, 64 hexadecimal digits: what is pinned
  std::string key_sha256;  // of the public key
  bool is_authority = false;
};

// Of what `authority` signs for the next `life`. It begins with the authority, so that a certificate made while the
// clock was fast (showed a time in the future) is valid once the clock is right. While the clock is slow (shows a time
// before the authority's beginning), `life` counts from that beginning.
Validity ValidUnder(const Certificate& authority, absl::Duration life, absl::Time now);

// Makes a private key, PKCS#8.
absl::StatusOr<std::string> MakeKey();
// Makes a self-signed authority that may sign only end certificates.
absl::StatusOr<std::string> MakeAuthority(const std::string& key, const std::string& name, const Validity& validity);
// Makes a PKCS#10 request, which proves that its maker has the key.
absl::StatusOr<std::string> MakeRequest(const std::string& key, const std::string& name);
// Takes only the public key from the request: the issuer decides the content. InvalidArgument: no request, not signed
// by its own key, or a key that is not P-256.
absl::StatusOr<std::string> Sign(const std::string& request, const KeyPair& authority, const Issue& issue);

// The SHA-256 of the public key in a request.
absl::StatusOr<std::string> KeyOfRequest(const std::string& request);
// The first certificate in `pem`.
absl::StatusOr<Certificate> ReadCertificate(const std::string& pem);
// Each certificate in `pem` separately, in order.
absl::StatusOr<std::vector<std::string>> SplitCertificates(const std::string& pem);
// OK: the key belongs to the (first) certificate.
absl::Status CheckPair(const KeyPair& pair);
// OK: `authority` signed the first certificate in `pem`, at any time.
absl::Status CheckSignedBy(const std::string& pem, const std::string& authority);

}  // namespace muster::tls
