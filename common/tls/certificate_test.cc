#include "common/tls/certificate.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "testing/temporary_folder.h"

namespace muster::tls {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

KeyPair NewAuthority(absl::Time now = kNow) {
  const std::string key = MakeKey().value();
  return {MakeAuthority(key, "an authority", ValidFor(absl::Hours(1000), now)).value(), key};
}

TEST(Certificate, BeginsWithItsAuthorityAndEndsByItsLifeWhateverTheClock) {
  Certificate authority;
  authority.validity = {kNow, kNow + absl::Hours(1000)};
  const struct {
    absl::Duration clock, end;  // since kNow
  } rows[] = {{absl::Hours(10), absl::Hours(15)},
              {-absl::Hours(500), absl::Hours(5)},     // a slow clock: else it would have ended before it began
              {absl::Hours(998), absl::Hours(1000)}};  // not longer than the authority
  for (const auto& row : rows) {
    const Validity validity = ValidUnder(authority, absl::Hours(5), kNow + row.clock);
    EXPECT_EQ(validity.begin, kNow) << row.clock;
    EXPECT_EQ(validity.end, kNow + row.end) << row.clock;
  }
}

TEST(Certificate, SaysWhatTheIssuerDecided) {
  const KeyPair authority = NewAuthority();
  const std::string key = MakeKey().value();
  const std::string request = MakeRequest(key, "wants-to-be-root").value();
  const std::string pem =
      Sign(request, authority, {Use::kServer, "c", {"gpu-head", "10.0.0.5", "::1"}, ValidFor(absl::Hours(2), kNow)})
          .value();
  const Certificate certificate = ReadCertificate(pem).value();
  EXPECT_EQ(certificate.name, "c");
  EXPECT_EQ(certificate.hosts, (std::vector<std::string>{"gpu-head", "10.0.0.5", "::1"}));
  EXPECT_EQ(certificate.validity.begin, kNow - kClockSkew);
  EXPECT_EQ(certificate.validity.end, kNow + absl::Hours(2));
  EXPECT_EQ(certificate.key_sha256, KeyOfRequest(request).value());
  EXPECT_FALSE(certificate.is_authority);
  EXPECT_TRUE(ReadCertificate(authority.certificate)->is_authority);
  EXPECT_TRUE(CheckPair({pem, key}).ok());
  EXPECT_FALSE(CheckPair({pem, authority.key}).ok());
  EXPECT_TRUE(CheckSignedBy(pem, authority.certificate).ok());
  EXPECT_FALSE(CheckSignedBy(pem, NewAuthority().certificate).ok());
}

TEST(Certificate, NoTwoAreEqual) {
  const KeyPair authority = NewAuthority();
  const std::string request = MakeRequest(MakeKey().value(), "n").value();
  std::set<std::string> all;
  for (int i = 0; i < 20; ++i) {
    const std::string pem = Sign(request, authority, {Use::kNode, "n", {}, ValidFor(absl::Hours(1), kNow)}).value();
    EXPECT_TRUE(all.insert(ReadCertificate(pem)->sha256).second);
  }
}

TEST(Certificate, SplitsAChain) {
  const KeyPair a = NewAuthority(), b = NewAuthority();
  const auto both = SplitCertificates(a.certificate + "text between\n" + b.certificate);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(*both, (std::vector<std::string>{a.certificate, b.certificate}));
  for (const std::string& bad : {std::string(), std::string("hello"), a.key, a.certificate.substr(0, 200)}) {
    EXPECT_EQ(SplitCertificates(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(Certificate, WhatIsNoneIsRefused) {
  const KeyPair authority = NewAuthority();
  const Issue issue = {Use::kNode, "n", {}, ValidFor(absl::Hours(1), kNow)};
  const std::string request = MakeRequest(MakeKey().value(), "n").value();
  // Changes one letter of the body, so that the signature or the encoding is wrong.
  int refused = 0, tried = 0;
  for (size_t at = 60; at < request.size() - 60; at += 7) {
    std::string damaged = request;
    if (damaged[at] == '\n') continue;
    damaged[at] = damaged[at] == 'A' ? 'B' : 'A';
    if (damaged == request) continue;
    ++tried;
    refused += !Sign(damaged, authority, issue).ok();
  }
  EXPECT_GT(tried, 20);
  EXPECT_EQ(refused, tried);
  for (const std::string& bad : {std::string(), std::string("x"), authority.certificate, authority.key}) {
    EXPECT_EQ(Sign(bad, authority, issue).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(KeyOfRequest(bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
  for (const std::string& bad : {std::string(), std::string("x"), request, authority.key}) {
    EXPECT_EQ(ReadCertificate(bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(MakeRequest(authority.key, "").ok());
  EXPECT_FALSE(MakeRequest(authority.key, std::string(65, 'x')).ok());
  EXPECT_FALSE(MakeRequest("no key", "x").ok());
}

TEST(Certificate, AHostCannotBringItsOwnExtension) {
  const KeyPair authority = NewAuthority();
  const std::string request = MakeRequest(MakeKey().value(), "c").value();
  for (const char* host : {"", "a,DNS:b", "a b", "http://a", "host:1", "email:x@y", "a\nb"}) {
    const auto pem = Sign(request, authority, {Use::kServer, "c", {host}, ValidFor(absl::Hours(1), kNow)});
    EXPECT_EQ(pem.status().code(), absl::StatusCode::kInvalidArgument) << host;
  }
}

// Verified by another implementation: the openssl program (Debian's package of that name).
TEST(Certificate, OpensslVerifiesTheChain) {
  ASSERT_EQ(std::system("openssl version >/dev/null"), 0) << "install openssl";
  const TemporaryFolder folder;
  const KeyPair authority = NewAuthority(absl::Now()), other = NewAuthority(absl::Now());
  const std::string request = MakeRequest(MakeKey().value(), "n").value();
  const Validity hour = ValidFor(absl::Hours(1), absl::Now());
  folder.Write("ca", authority.certificate);
  folder.Write("other", other.certificate);
  folder.Write("server", Sign(request, authority, {Use::kServer, "c", {"gpu-head", "10.0.0.5"}, hour}).value());
  folder.Write("node", Sign(request, authority, {Use::kNode, "n", {}, hour}).value());
  folder.Write("old", Sign(request, authority,
                           {Use::kNode, "n", {}, {absl::Now() - absl::Hours(2), absl::Now() - absl::Hours(1)}})
                          .value());
  folder.Write("early", Sign(request, authority,
                             {Use::kNode, "n", {}, {absl::Now() + absl::Hours(1), absl::Now() + absl::Hours(2)}})
                            .value());
  const auto verify = [&](const std::string& arguments) {
    return std::system(
               absl::StrCat("cd ", folder.path(), " && openssl verify -x509_strict ", arguments, " >/dev/null 2>&1")
                   .c_str()) == 0;
  };
  EXPECT_TRUE(verify("-CAfile ca -purpose sslserver -verify_hostname gpu-head server"));
  EXPECT_TRUE(verify("-CAfile ca -purpose sslserver -verify_ip 10.0.0.5 server"));
  EXPECT_TRUE(verify("-CAfile ca -purpose sslclient node"));
  EXPECT_FALSE(verify("-CAfile ca -purpose sslserver -verify_hostname elsewhere server"));
  EXPECT_FALSE(verify("-CAfile ca -purpose sslclient server"));
  EXPECT_FALSE(verify("-CAfile ca -purpose sslserver node"));
  EXPECT_FALSE(verify("-CAfile other node"));
  EXPECT_FALSE(verify("-CAfile ca old"));
  EXPECT_FALSE(verify("-CAfile ca early"));
}

}  // namespace
}  // namespace muster::tls
