#include "coordinator/rpc/trust_records.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "testing/temporary_folder.h"

namespace muster::rpc {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);
const std::string kPin(64, 'a');

class TrustRecordsTest : public ::testing::Test {
 protected:
  TrustRecordsTest() { Open(); }
  void Open() {
    auto records = TrustRecords::Open(path_);
    ASSERT_TRUE(records.ok()) << records.status();
    records_ = *std::move(records);
  }
  tls::Token Make(TokenRole role, const std::string& user, int64_t ttl_seconds = 0) {
    CreateTokenRequest request;
    request.set_role(role);
    request.set_user(user);
    if (ttl_seconds != 0) request.mutable_ttl()->set_seconds(ttl_seconds);
    const auto reply = records_->CreateToken(request, kPin, "me", kNow);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return tls::ParseToken(reply->token()).value();
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/records.pb";
  std::unique_ptr<TrustRecords> records_;
};

TEST_F(TrustRecordsTest, KnowsItsTokensAlsoAfterARestartAndKeepsNoSecret) {
  const tls::Token ann = Make(TOKEN_ROLE_SUBMITTER, "ann"), join = Make(TOKEN_ROLE_WORKER, "");
  for (int i = 0; i < 2; ++i) {
    const auto principal = records_->FindToken(ann, kNow + absl::Hours(1'000'000));
    ASSERT_TRUE(principal.ok()) << principal.status();
    EXPECT_EQ(principal->name, "ann");
    EXPECT_EQ(principal->role, Role::kSubmitter);
    EXPECT_EQ(records_->FindToken(join, kNow)->role, Role::kJoiner);
    tls::Token wrong = ann;
    wrong.secret = join.secret;
    EXPECT_EQ(records_->FindToken(wrong, kNow).status().code(), absl::StatusCode::kUnauthenticated);
    Open();
  }
  std::ifstream file(path_, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_TRUE(absl::StrContains(bytes, ann.id));
  EXPECT_FALSE(absl::StrContains(bytes, ann.secret));
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(TrustRecordsTest, TokensExpire) {
  const tls::Token join = Make(TOKEN_ROLE_WORKER, ""), ann = Make(TOKEN_ROLE_VIEWER, "ann", 100);
  const struct {
    const tls::Token& token;
    absl::Duration later;
    bool good;
  } cases[] = {
      {join, absl::Seconds(3599), true}, {join, absl::Seconds(3600), false}, {ann, absl::Seconds(99), true},
      {ann, absl::Seconds(100), false},  {ann, absl::Hours(10'000), false},
  };
  for (const auto& c : cases) {
    const auto found = records_->FindToken(c.token, kNow + c.later);
    EXPECT_EQ(found.ok(), c.good) << c.later;
    if (!c.good) {
      EXPECT_TRUE(absl::StrContains(found.status().message(), "expired on 2027")) << found.status();
    }
  }
}

// The clock was ten years ahead for a moment, in which another token was made.
TEST_F(TrustRecordsTest, TokensOutliveAJumpOfTheClock) {
  const tls::Token ann = Make(TOKEN_ROLE_VIEWER, "ann", 3600), revoked = Make(TOKEN_ROLE_ADMIN, "bob");
  ASSERT_TRUE(records_->RevokeToken(revoked.id, kNow).ok());
  CreateTokenRequest request;
  request.set_role(TOKEN_ROLE_WORKER);
  ASSERT_TRUE(records_->CreateToken(request, kPin, "me", kNow + absl::Hours(24 * 3650)).ok());
  EXPECT_FALSE(records_->FindToken(ann, kNow + absl::Hours(24 * 3650)).ok()) << "by that clock it has expired";
  EXPECT_TRUE(records_->FindToken(ann, kNow + absl::Seconds(60)).ok());
  EXPECT_TRUE(absl::StrContains(records_->FindToken(revoked, kNow).status().message(), "revoked"));
  EXPECT_EQ(records_->ListTokens().size(), 3u);
}

TEST(TrustBook, OfTooManyTokensThoseGoThatEnded) {
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  TrustBook book;
  CreateTokenRequest request;
  request.set_role(TOKEN_ROLE_VIEWER);
  request.set_user("ann");
  request.mutable_ttl()->set_seconds(100);
  std::vector<tls::Token> tokens;
  const auto add = [&](absl::Time at) {
    tls::Token token{std::string(64, 'a'), absl::StrFormat("%08d", tokens.size()), std::string(32, 's')};
    const absl::Status status = book.AddToken(request, token, "me", at).status();
    if (status.ok()) tokens.push_back(token);
    return status;
  };
  while (add(now + absl::Seconds(tokens.size() / 1000)).ok()) {
  }
  ASSERT_GE(tokens.size(), 1000u);
  EXPECT_EQ(add(now).code(), absl::StatusCode::kResourceExhausted) << "all are valid";
  const size_t all = tokens.size();
  EXPECT_TRUE(add(now + absl::Seconds(100)).ok()) << "the first has ended";
  EXPECT_FALSE(book.FindToken(tokens[0], now).ok());
  EXPECT_TRUE(book.FindToken(tokens[all - 1], now).ok());
  ASSERT_TRUE(book.RevokeToken(tokens[1].id, now).ok());
  EXPECT_TRUE(add(now).ok()) << "one was revoked";
}

TEST_F(TrustRecordsTest, RefusesWrongRequests) {
  const struct {
    TokenRole role;
    const char* user;
    int64_t ttl;
    const char* words;
  } cases[] = {
      {TOKEN_ROLE_UNSPECIFIED, "ann", 1, "role"},
      {static_cast<TokenRole>(99), "ann", 1, "role"},
      {TOKEN_ROLE_ADMIN, "", 1, "--user"},
      {TOKEN_ROLE_ADMIN, "a b", 1, "letters"},
      {TOKEN_ROLE_ADMIN, "a\nb", 1, "letters"},
      {TOKEN_ROLE_WORKER, "", -1, "ttl"},
      {TOKEN_ROLE_WORKER, "", int64_t{1} << 62, "ttl"},
  };
  for (const auto& c : cases) {
    CreateTokenRequest request;
    request.set_role(c.role);
    request.set_user(c.user);
    request.mutable_ttl()->set_seconds(c.ttl);
    const absl::Status status = records_->CreateToken(request, kPin, "me", kNow).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.words;
    EXPECT_TRUE(absl::StrContains(status.message(), c.words)) << status;
  }
}

TEST_F(TrustRecordsTest, NodesByTheirKeys) {
  const absl::Time end = kNow + absl::Hours(1);
  EXPECT_FALSE(records_->CheckNode("n", "k1").ok());
  ASSERT_TRUE(records_->Join("n", "k1", end, kNow).ok());
  EXPECT_TRUE(records_->CheckNode("n", "k1").ok());
  EXPECT_FALSE(records_->CheckNode("n", "k2").ok());
  EXPECT_FALSE(records_->CheckNode("m", "k1").ok());
  EXPECT_EQ(records_->Join("n", "k2", end, kNow).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(records_->Renew("n", "k1", "k2", end).ok());
  Open();
  EXPECT_TRUE(records_->CheckNode("n", "k1").ok());  // the reply may have been lost
  EXPECT_TRUE(records_->CheckNode("n", "k2").ok());
  ASSERT_TRUE(records_->Renew("n", "k1", "k3", end).ok());  // a retry
  EXPECT_FALSE(records_->CheckNode("n", "k2").ok());
  ASSERT_TRUE(records_->RevokeNode("n").ok());
  EXPECT_TRUE(records_->RevokeNode("n").ok());
  EXPECT_EQ(records_->RevokeNode("m").code(), absl::StatusCode::kNotFound);
  for (const char* key : {"k1", "k3"}) {
    EXPECT_TRUE(absl::StrContains(records_->CheckNode("n", key).message(), "was revoked"));
    EXPECT_EQ(records_->Join("n", key, end, kNow).code(), absl::StatusCode::kAlreadyExists);
  }
  EXPECT_FALSE(records_->Renew("n", "k1", "k4", end).ok());
  EXPECT_TRUE(records_->Join("n", "k5", end, kNow).ok());
  EXPECT_TRUE(records_->CheckNode("n", "k5").ok());
  EXPECT_FALSE(records_->CheckNode("n", "k3").ok());
}

TEST_F(TrustRecordsTest, DamagedOrOpenFilesAreRefused) {
  folder_.Write("records.pb", "\xff\xff\xff rubbish");
  chmod(path_.c_str(), 0600);
  EXPECT_EQ(TrustRecords::Open(path_).status().code(), absl::StatusCode::kDataLoss);
  chmod(path_.c_str(), 0644);
  EXPECT_EQ(TrustRecords::Open(path_).status().code(), absl::StatusCode::kPermissionDenied);
  folder_.Write("records.pb", "\x08\x02");
  chmod(path_.c_str(), 0600);
  EXPECT_EQ(TrustRecords::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TrustRecordsTest, WhatChangesNothingWritesNothing) {
  const tls::Token ann = Make(TOKEN_ROLE_SUBMITTER, "ann");
  ASSERT_TRUE(records_->RevokeToken(ann.id, kNow).ok());
  struct stat before {
  }, after{};
  ASSERT_EQ(stat(path_.c_str(), &before), 0);
  EXPECT_TRUE(records_->RevokeToken(ann.id, kNow).ok());
  ASSERT_EQ(stat(path_.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino) << "a durable write replaces the file";
  Make(TOKEN_ROLE_SUBMITTER, "bob");
  ASSERT_EQ(stat(path_.c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino);
}

}  // namespace
}  // namespace muster::rpc
