// Tokens, addresses, and files in folders.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/tls/endpoint.h"
#include "common/tls/token.h"
#include "common/tls/trust_folder.h"
#include "testing/temporary_folder.h"

namespace muster::tls {
namespace {

const absl::Time kFilesNow = absl::FromUnixSeconds(1'800'000'000);

unsigned ModeOf(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

TEST(Endpoint, TellsLoopbackFromTheRest) {
  const struct {
    const char* text;
    const char* host;  // null: refused
    bool loopback;
  } cases[] = {
      {"127.0.0.1:7070", "127.0.0.1", true},
      {"127.9.9.9:1", "127.9.9.9", true},
      {"localhost:1", "localhost", true},
      {"[::1]:1", "::1", true},
      {"0.0.0.0:1", "0.0.0.0", false},
      {"[::]:1", "::", false},
      {"128.0.0.1:1", "128.0.0.1", false},
      {"localhost.evil.org:1", "localhost.evil.org", false},
      {"127.0.0.1.evil.org:1", "127.0.0.1.evil.org", false},
      {"gpu-head:65535", "gpu-head", false},
      {"gpu-head:65536", nullptr, false},
      {"gpu-head", nullptr, false},
      {":1", nullptr, false},
      {"::1:1", nullptr, false},
      {"a:", nullptr, false},
  };
  for (const auto& c : cases) {
    const auto endpoint = ParseEndpoint(c.text);
    ASSERT_EQ(endpoint.ok(), c.host != nullptr) << c.text;
    if (!endpoint.ok()) continue;
    EXPECT_EQ(endpoint->host, c.host);
    EXPECT_EQ(IsLoopback(endpoint->host), c.loopback) << c.text;
  }
}

TEST(Token, GoesRoundAndNeverShowsItsSecret) {
  const Token token = MakeToken(std::string(64, 'a')).value();
  const std::string text = ToString(token);
  EXPECT_TRUE(IsToken(text));
  const auto parsed = ParseToken("  " + text + "\n");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->authority_sha256, token.authority_sha256);
  EXPECT_EQ(parsed->id, token.id);
  EXPECT_EQ(parsed->secret, token.secret);
  EXPECT_NE(MakeToken(std::string(64, 'a'))->secret, token.secret);
  EXPECT_FALSE(IsToken("0123456789abcdef"));
  for (const std::string& with : {text, " " + text + "\n", "/home/ann/" + text, "muster1." + text, "a=" + text + "x",
                                  text.substr(0, text.size() - 31)}) {
    EXPECT_TRUE(HoldsToken(with)) << with;
  }
  for (const std::string& without : {std::string(), std::string("muster1."), std::string("muster1.cluster.local"),
                                     "muster1." + std::string(64, 'a'), "muster1." + std::string(65, 'a') + ".x"}) {
    EXPECT_FALSE(HoldsToken(without)) << without;
  }
  for (const std::string& bad :
       {text.substr(0, text.size() - 1), text + "x", text + ".x", text.substr(1), std::string(),
        absl::StrCat("muster1.", std::string(64, 'z'), ".", token.id, ".", token.secret)}) {
    const auto status = ParseToken(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_FALSE(absl::StrContains(status.message(), token.secret.substr(0, 8)));
  }
}

TEST(TrustFolder, MadeOnceAndReadAgain) {
  const TemporaryFolder folder;
  EXPECT_FALSE(HasTrust(folder.path()));
  const absl::Status none = LoadTrust(folder.path(), kFilesNow).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(none.message(), "muster coordinator init")) << none;
  const Trust made = MakeTrust(folder.path(), {"gpu-head", "127.0.0.1"}, kFilesNow).value();
  const std::string trust = TrustFolderOf(folder.path());
  EXPECT_EQ(ModeOf(trust), 0700u);
  EXPECT_EQ(ModeOf(trust + "/ca.key"), 0600u);
  EXPECT_EQ(ModeOf(trust + "/server.key"), 0600u);
  EXPECT_EQ(ModeOf(trust + "/ca.crt"), 0644u);
  const Trust loaded = LoadTrust(folder.path(), kFilesNow).value();
  EXPECT_EQ(loaded.server_facts.sha256, made.server_facts.sha256);
  EXPECT_EQ(loaded.authority_facts.sha256, made.authority_facts.sha256);
  EXPECT_EQ(SplitCertificates(loaded.server.certificate)->size(), 2u);
  // A second run makes another certificate for other names, with the same authority.
  const Trust again = MakeTrust(folder.path(), {"other"}, kFilesNow).value();
  EXPECT_EQ(again.authority_facts.sha256, made.authority_facts.sha256);
  EXPECT_EQ(again.server_facts.hosts, std::vector<std::string>{"other"});
}

TEST(TrustFolder, RenewsTheServersCertificateInItsLastThird) {
  const TemporaryFolder folder;
  const Trust made = MakeTrust(folder.path(), {"gpu-head"}, kFilesNow).value();
  const absl::Duration life = made.server_facts.validity.end - kFilesNow;
  EXPECT_EQ(LoadTrust(folder.path(), kFilesNow + life * 0.6)->server_facts.sha256, made.server_facts.sha256);
  for (const double share : {0.7, 1.5}) {
    const Trust renewed = LoadTrust(folder.path(), kFilesNow + life * share).value();
    EXPECT_NE(renewed.server_facts.sha256, made.server_facts.sha256) << share;
    EXPECT_EQ(renewed.server_facts.hosts, made.server_facts.hosts);
    EXPECT_TRUE(CheckPair(renewed.server).ok());
  }
  EXPECT_TRUE(
      absl::StrContains(LoadTrust(folder.path(), kFilesNow + absl::Hours(24 * 4000)).status().message(), "expired"));
}

TEST(TrustFolder, ACertificateMadeWithASlowClockIsValidOnceItIsRight) {
  const TemporaryFolder folder;
  const Trust made = MakeTrust(folder.path(), {"gpu-head"}, kFilesNow).value();
  const Trust with_slow_clock = MakeTrust(folder.path(), {"other"}, kFilesNow - absl::Hours(24 * 3000)).value();
  EXPECT_EQ(with_slow_clock.server_facts.validity.begin, made.server_facts.validity.begin);
  EXPECT_GT(with_slow_clock.server_facts.validity.end, kFilesNow + absl::Hours(24 * 800));
}

TEST(TrustFolder, MendsHalfAPairAndRefusesWhatIsOpenToOthers) {
  const TemporaryFolder folder;
  const Trust made = MakeTrust(folder.path(), {"gpu-head"}, kFilesNow).value();
  const std::string trust = TrustFolderOf(folder.path());
  ASSERT_TRUE(WriteDurably(trust + "/server.key", MakeKey().value()).ok());  // killed between the two
  EXPECT_TRUE(CheckPair(LoadTrust(folder.path(), kFilesNow)->server).ok());
  chmod((trust + "/ca.key").c_str(), 0644);
  EXPECT_EQ(LoadTrust(folder.path(), kFilesNow).status().code(), absl::StatusCode::kPermissionDenied);
  chmod((trust + "/ca.key").c_str(), 0600);
  chmod(trust.c_str(), 0755);
  EXPECT_EQ(LoadTrust(folder.path(), kFilesNow).status().code(), absl::StatusCode::kPermissionDenied);
  chmod(trust.c_str(), 0700);
  ASSERT_TRUE(WriteDurably(trust + "/ca.crt", "rubbish").ok());
  EXPECT_TRUE(absl::StrContains(LoadTrust(folder.path(), kFilesNow).status().message(), "ca.crt"));
}

}  // namespace
}  // namespace muster::tls
