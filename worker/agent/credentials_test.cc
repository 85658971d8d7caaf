#include "worker/agent/credentials.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "absl/strings/match.h"
#include "testing/temporary_folder.h"
#include "worker/agent/token.h"

namespace muster::agent {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest() : key_(tls::MakeKey().value()), authority_(NewAuthority()) {}

  static tls::KeyPair NewAuthority() {
    const std::string key = tls::MakeKey().value();
    return {tls::MakeAuthority(key, "a", tls::ValidFor(absl::Hours(9), kNow)).value(), key};
  }
  std::string Signed(const std::string& name, absl::Duration life) {
    return tls::Sign(tls::MakeRequest(key_, "x").value(), authority_,
                     {tls::Use::kNode, name, {}, tls::ValidFor(life, kNow)})
        .value();
  }

  const TemporaryFolder folder_;
  const std::string key_;
  const tls::KeyPair authority_;
};

TEST_F(CredentialsTest, AreKeptInOneFileOfOurs) {
  EXPECT_EQ(LoadCredentials(folder_.path(), "n").status().code(), absl::StatusCode::kNotFound);
  const std::string certificate = Signed("n", absl::Hours(3));
  ASSERT_TRUE(KeepCredentials(folder_.path(), "n", certificate, key_, authority_.certificate).ok());
  const auto loaded = LoadCredentials(folder_.path(), "n");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->security.authority, authority_.certificate);
  EXPECT_EQ(loaded->security.own.certificate, certificate);
  EXPECT_TRUE(tls::CheckPair(loaded->security.own).ok());
  EXPECT_EQ(loaded->authority_sha256, tls::ReadCertificate(authority_.certificate)->sha256);
  const std::string path = folder_.path() + "/trust/node.pem";
  struct stat info {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  chmod(path.c_str(), 0644);
  EXPECT_EQ(LoadCredentials(folder_.path(), "n").status().code(), absl::StatusCode::kPermissionDenied);
}

// The certificate's validity begins with its authority, years before.
TEST_F(CredentialsTest, AreRenewedWithAThirdOfTheirLifeLeftSinceTheyWereWritten) {
  const tls::Validity validity{kNow - absl::Hours(24 * 1000), kNow + absl::Hours(3)};
  const std::string certificate =
      tls::Sign(tls::MakeRequest(key_, "x").value(), authority_, {tls::Use::kNode, "n", {}, validity}).value();
  ASSERT_TRUE(KeepCredentials(folder_.path(), "n", certificate, key_, authority_.certificate).ok());
  const auto due = [&](absl::Time written) {
    const timespec times[2] = {absl::ToTimespec(written), absl::ToTimespec(written)};
    EXPECT_EQ(utimensat(AT_FDCWD, (folder_.path() + "/trust/node.pem").c_str(), times, 0), 0);
    return RenewalTime(LoadCredentials(folder_.path(), "n").value());
  };
  EXPECT_EQ(due(kNow), kNow + absl::Hours(2));
  // By a wrong clock: before the certificate ends, still.
  const absl::Time all = validity.end - (validity.end - validity.begin) / 3;
  EXPECT_EQ(due(kNow + absl::Hours(9)), all);
  EXPECT_EQ(due(kNow - absl::Hours(24 * 2000)), all);
}

// By the file that was just written: a worker that is not started again renews in time, too.
TEST_F(CredentialsTest, KnowWhenTheyWereWritten) {
  const absl::Time before = absl::Now() - absl::Seconds(1);  // the kernel's clock of files is coarse
  const auto kept = KeepCredentials(folder_.path(), "n", Signed("n", absl::Hours(3)), key_, authority_.certificate);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_GE(kept->written, before);
  EXPECT_LE(kept->written, absl::Now());
}

TEST_F(CredentialsTest, WhatDoesNotFitIsRefused) {
  const std::string good = Signed("n", absl::Hours(3));
  const auto keep = [&](const std::string& certificate, const std::string& key, const std::string& authority) {
    return KeepCredentials(folder_.path(), "n", certificate, key, authority).status().code();
  };
  const auto wrong = absl::StatusCode::kInvalidArgument;
  EXPECT_EQ(keep(Signed("m", absl::Hours(1)), key_, authority_.certificate), wrong);
  EXPECT_EQ(keep(good, tls::MakeKey().value(), authority_.certificate), wrong);
  EXPECT_EQ(keep(good, key_, NewAuthority().certificate), wrong);
  EXPECT_EQ(keep("", key_, authority_.certificate), wrong);
  EXPECT_EQ(LoadCredentials(folder_.path(), "n").status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(keep(good, key_, authority_.certificate), absl::StatusCode::kOk);
  const absl::Status other = LoadCredentials(folder_.path(), "m").status();
  EXPECT_EQ(other.code(), wrong);
  EXPECT_TRUE(absl::StrContains(other.message(), "join again")) << other;
  folder_.Write("trust/node.pem", good);
  chmod((folder_.path() + "/trust/node.pem").c_str(), 0600);
  EXPECT_EQ(LoadCredentials(folder_.path(), "n").status().code(), wrong);
}

TEST_F(CredentialsTest, AJoinTokenThatCannotBeReadIsAnErrorAlsoWithASocket) {
  const auto obtain = [&](const absl::StatusOr<std::string>& token) {
    return ObtainCredentials({"unix:/run/c.sock", token, folder_.path(), "n"}, [](absl::Duration) { return false; })
        .status();
  };
  EXPECT_EQ(obtain("").code(), absl::StatusCode::kNotFound) << "none is needed";
  const absl::Status unreadable = obtain(ReadJoinToken(folder_.path() + "/nofile"));
  EXPECT_EQ(unreadable.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(unreadable.message(), "--join-token: ")) << unreadable;
  EXPECT_TRUE(absl::StrContains(unreadable.message(), "/nofile")) << unreadable;
}

TEST(ReadJoinToken, FromTheFileElseTheEnvironment) {
  const TemporaryFolder folder;
  const std::string file = folder.Write("t", "from-file\n");
  unsetenv("MUSTER_JOIN_TOKEN");
  EXPECT_EQ(ReadJoinToken("").value(), "");
  setenv("MUSTER_JOIN_TOKEN", "from-variable", 1);
  EXPECT_EQ(ReadJoinToken("").value(), "from-variable");
  EXPECT_EQ(ReadJoinToken(file).value(), "from-file");
  EXPECT_EQ(ReadJoinToken(folder.path() + "/none").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::agent
