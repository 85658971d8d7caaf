#include "common/tls/certificate.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/sha256.h"
#include "common/tls/openssl.h"

namespace muster::tls {
namespace {

constexpr int kVersion3 = 2;  // X.509 counts from 0

absl::Status LibraryError(const char* what) { return absl::InternalError(absl::StrCat(what, ": ", TakeError())); }

// A file may be encrypted with a passphrase; never prompt for it.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<Key> ReadKey(const std::string& pem) {
  Key key(PEM_read_bio_PrivateKey(BioOf(pem).get(), nullptr, NoPassphrase, nullptr));
  if (key == nullptr) return absl::InvalidArgumentError(absl::StrCat("no private key in PEM form: ", TakeError()));
  return key;
}

absl::StatusOr<X509Object> ReadX509(const std::string& pem) {
  X509Object certificate(PEM_read_bio_X509(BioOf(pem).get(), nullptr, NoPassphrase, nullptr));
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no certificate in PEM form: ", TakeError()));
  }
  return certificate;
}

// The signature proves that the requester has the key.
absl::StatusOr<X509Request> ReadRequest(const std::string& pem) {
  X509Request request(PEM_read_bio_X509_REQ(BioOf(pem).get(), nullptr, NoPassphrase, nullptr));
  if (request == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("no certificate request in PEM form: ", TakeError()));
  }
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  char group[32] = {};
  size_t length = 0;
  if (key == nullptr || EVP_PKEY_get_base_id(key) != EVP_PKEY_EC ||
      EVP_PKEY_get_group_name(key, group, sizeof group, &length) != 1 || std::string_view(group) != "prime256v1") {
    TakeError();
    return absl::InvalidArgumentError("the certificate request's key is not P-256");
  }
  if (X509_REQ_verify(request.get(), key) != 1) {
    TakeError();
    return absl::InvalidArgumentError("the certificate request is not signed by its own key");
  }
  return request;
}

template <typename Write>
absl::StatusOr<std::string> ToPem(const Write& write) {
  Bio bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || write(bio.get()) != 1) return LibraryError("cannot write PEM");
  return TextOf(bio.get());
}

bool SetName(X509_NAME* name, const std::string& text) {
  return X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()),
                                    -1, 0) == 1;
}

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  if (extension == nullptr) return false;
  const bool added = X509_add_ext(certificate, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// 159 random bits: unique without a counter, and positive.
bool SetSerial(X509* certificate) {
  unsigned char bytes[20];
  if (RAND_bytes(bytes, sizeof bytes) != 1) return false;
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40);
  BIGNUM* number = BN_bin2bn(bytes, sizeof bytes, nullptr);
  const bool set = number != nullptr && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return set;
}

bool SetValidity(X509* certificate, const Validity& validity) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(validity.begin)) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(validity.end)) != nullptr;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? absl::FromTimeT(timegm(&parts)) : absl::InfinitePast();
}

absl::StatusOr<std::string> AlternativeNames(const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (const std::string& host : hosts) {
    unsigned char bytes[sizeof(in6_addr)];
    const bool address = inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
    // The library parses a list of settings: a name must not be able to add one.
    const bool plain = host.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") ==
                           std::string::npos &&
                       !host.empty() && host.size() <= 253;
    if (!address && !plain) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", host, "\" is neither a host name nor an IP address (without a port)"));
    }
    names.push_back(absl::StrCat(address ? "IP:" : "DNS:", host));
  }
  return absl::StrJoin(names, ",");
}

std::string KeyDigest(X509_PUBKEY* key) {
  unsigned char* der = nullptr;
  const int length = i2d_X509_PUBKEY(key, &der);
  if (length <= 0) return "";
  std::string digest = Sha256Hex(std::string_view(reinterpret_cast<char*>(der), length));
  OPENSSL_free(der);
  return digest;
}

std::vector<std::string> HostsOf(X509* certificate) {
  std::vector<std::string> hosts;
  auto* names = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_DNS) {
      hosts.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                         ASN1_STRING_length(name->d.dNSName));
    } else if (name->type == GEN_IPADD) {
      const int length = ASN1_STRING_length(name->d.iPAddress);
      char text[INET6_ADDRSTRLEN] = {};
      if (length == 4 || length == 16) {
        inet_ntop(length == 4 ? AF_INET : AF_INET6, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof text);
        hosts.emplace_back(text);
      }
    }
  }
  GENERAL_NAMES_free(names);
  return hosts;
}

std::string NameOf(X509* certificate) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (at < 0) return "";
  unsigned char* text = nullptr;
  const int length = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
  if (length < 0) return "";
  std::string name(reinterpret_cast<char*>(text), length);
  OPENSSL_free(text);
  return name;
}

absl::Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\": a certificate's name has 1 to ", kMaxNameBytes, " bytes"));
}

}  // namespace

std::string TakeError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  if (error == 0) return "no reason given";
  const char* reason = ERR_reason_error_string(error);
  return reason == nullptr ? absl::StrCat("error ", absl::Hex(error)) : reason;
}

Validity ValidFor(absl::Duration life, absl::Time now) { return {now - kClockSkew, now + life}; }

Validity ValidUnder(const Certificate& authority, absl::Duration life, absl::Time now) {
  const absl::Time sane = std::max(now, authority.validity.begin);
  return {authority.validity.begin, std::min(sane + life, authority.validity.end)};
}

absl::StatusOr<std::string> MakeKey() {
  const Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) return LibraryError("cannot make a key");
  return ToPem(
      [&](BIO* bio) { return PEM_write_bio_PKCS8PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
}

absl::StatusOr<std::string> MakeAuthority(const std::string& key_pem, const std::string& name,
                                          const Validity& validity) {
  if (absl::Status status = CheckName(name); !status.ok()) return status;
  const absl::StatusOr<Key> key = ReadKey(key_pem);
  if (!key.ok()) return key.status();
  const X509Object made(X509_new());
  X509* certificate = made.get();
  const bool ok = X509_set_version(certificate, kVersion3) == 1 && SetSerial(certificate) &&
                  SetValidity(certificate, validity) && SetName(X509_get_subject_name(certificate), name) &&
                  X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1 &&
                  X509_set_pubkey(certificate, key->get()) == 1 &&
                  AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
                  AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
                  AddExtension(certificate, certificate, NID_subject_key_identifier, "hash") &&
                  X509_sign(certificate, key->get(), EVP_sha256()) != 0;
  if (!ok) return LibraryError("cannot make an authority");
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

absl::StatusOr<std::string> MakeRequest(const std::string& key_pem, const std::string& name) {
  if (absl::Status status = CheckName(name); !status.ok()) return status;
  const absl::StatusOr<Key> key = ReadKey(key_pem);
  if (!key.ok()) return key.status();
  const X509Request request(X509_REQ_new());
  const bool ok = X509_REQ_set_version(request.get(), 0) == 1 &&
                  SetName(X509_REQ_get_subject_name(request.get()), name) &&
                  X509_REQ_set_pubkey(request.get(), key->get()) == 1 &&
                  X509_REQ_sign(request.get(), key->get(), EVP_sha256()) != 0;
  if (!ok) return LibraryError("cannot make a certificate request");
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); });
}

absl::StatusOr<std::string> Sign(const std::string& request_pem, const KeyPair& authority, const Issue& issue) {
  if (absl::Status status = CheckName(issue.name); !status.ok()) return status;
  const absl::StatusOr<X509Request> request = ReadRequest(request_pem);
  if (!request.ok()) return request.status();
  const absl::StatusOr<X509Object> issuer = ReadX509(authority.certificate);
  if (!issuer.ok()) return issuer.status();
  const absl::StatusOr<Key> key = ReadKey(authority.key);
  if (!key.ok()) return key.status();
  const absl::StatusOr<std::string> names = AlternativeNames(issue.hosts);
  if (!names.ok()) return names.status();

  const X509Object made(X509_new());
  X509* certificate = made.get();
  const char* purpose = issue.use == Use::kServer ? "serverAuth" : "clientAuth";
  const bool ok = X509_set_version(certificate, kVersion3) == 1 && SetSerial(certificate) &&
                  SetValidity(certificate, issue.validity) && SetName(X509_get_subject_name(certificate), issue.name) &&
                  X509_set_issuer_name(certificate, X509_get_subject_name(issuer->get())) == 1 &&
                  X509_set_pubkey(certificate, X509_REQ_get0_pubkey(request->get())) == 1 &&
                  AddExtension(certificate, issuer->get(), NID_basic_constraints, "critical,CA:FALSE") &&
                  AddExtension(certificate, issuer->get(), NID_key_usage, "critical,digitalSignature") &&
                  AddExtension(certificate, issuer->get(), NID_ext_key_usage, purpose) &&
                  AddExtension(certificate, issuer->get(), NID_subject_key_identifier, "hash") &&
                  AddExtension(certificate, issuer->get(), NID_authority_key_identifier, "keyid:always") &&
                  (names->empty() || AddExtension(certificate, issuer->get(), NID_subject_alt_name, *names)) &&
                  X509_sign(certificate, key->get(), EVP_sha256()) != 0;
  if (!ok) return LibraryError("cannot sign a certificate");
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

absl::StatusOr<std::string> KeyOfRequest(const std::string& request_pem) {
  const absl::StatusOr<X509Request> request = ReadRequest(request_pem);
  if (!request.ok()) return request.status();
  return KeyDigest(X509_REQ_get_X509_PUBKEY(request->get()));
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& pem) {
  const absl::StatusOr<X509Object> certificate = ReadX509(pem);
  if (!certificate.ok()) return certificate.status();
  X509* x509 = certificate->get();
  unsigned char* der = nullptr;
  const int length = i2d_X509(x509, &der);
  if (length <= 0) return LibraryError("cannot encode a certificate");
  Certificate result;
  result.sha256 = Sha256Hex(std::string_view(reinterpret_cast<char*>(der), length));
  OPENSSL_free(der);
  result.name = NameOf(x509);
  result.hosts = HostsOf(x509);
  result.validity = {TimeOf(X509_get0_notBefore(x509)), TimeOf(X509_get0_notAfter(x509))};
  result.key_sha256 = KeyDigest(X509_get_X509_PUBKEY(x509));
  result.is_authority = X509_check_ca(x509) == 1;
  return result;
}

absl::StatusOr<std::vector<std::string>> SplitCertificates(const std::string& pem) {
  std::vector<std::string> certificates;
  const Bio bio = BioOf(pem);
  while (true) {
    const X509Object next(PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr));
    if (next == nullptr) break;
    absl::StatusOr<std::string> one = ToPem([&](BIO* out) { return PEM_write_bio_X509(out, next.get()); });
    if (!one.ok()) return one.status();
    certificates.push_back(*std::move(one));
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string error = TakeError();
  if (certificates.empty() || !at_end) {
    return absl::InvalidArgumentError(absl::StrCat("no certificates in PEM form: ", error));
  }
  return certificates;
}

absl::Status CheckPair(const KeyPair& pair) {
  const absl::StatusOr<X509Object> certificate = ReadX509(pair.certificate);
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<Key> key = ReadKey(pair.key);
  if (!key.ok()) return key.status();
  if (X509_check_private_key(certificate->get(), key->get()) == 1) return absl::OkStatus();
  TakeError();
  return absl::InvalidArgumentError("the key does not belong to the certificate");
}

absl::Status CheckSignedBy(const std::string& pem, const std::string& authority) {
  const absl::StatusOr<X509Object> certificate = ReadX509(pem);
  if (!certificate.ok()) return certificate.status();
  const absl::StatusOr<X509Object> issuer = ReadX509(authority);
  if (!issuer.ok()) return issuer.status();
  if (X509_verify(certificate->get(), X509_get0_pubkey(issuer->get())) == 1) return absl::OkStatus();
  TakeError();
  return absl::InvalidArgumentError("the certificate is not signed by this authority");
}

}  // namespace muster::tls
