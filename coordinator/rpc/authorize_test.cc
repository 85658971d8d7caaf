#include "coordinator/rpc/authorize.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/match.h"

namespace muster::rpc {
namespace {

constexpr Role kRoles[] = {Role::kViewer, Role::kSubmitter, Role::kAdmin, Role::kWorker, Role::kJoiner, Role::kLocal};

// Who may call: one letter for each of kRoles.
TEST(Authorize, Table) {
  const struct {
    const char* method;
    std::optional<std::string> owner;
    const char* allowed;
  } cases[] = {
      {"/muster.v1.Jobs/Submit", {}, "-sa--l"},
      {"/muster.v1.Jobs/Get", {}, "vsa--l"},
      {"/muster.v1.Jobs/Watch", {}, "vsa--l"},
      {"/muster.v1.Jobs/Cancel", {}, "-sa--l"},
      {"/muster.v1.Jobs/Cancel", "ann", "-sa--l"},
      {"/muster.v1.Jobs/Cancel", "bob", "--a--l"},
      {"/muster.v1.Jobs/Delete", "bob", "--a--l"},
      {"/muster.v1.Jobs/Checkpoint", "ann", "-sa--l"},
      {"/muster.v1.Jobs/Checkpoint", "bob", "--a--l"},
      {"/muster.v1.Nodes/List", {}, "vsa--l"},
      {"/muster.v1.Nodes/Use", {}, "vsa--l"},
      {"/muster.v1.Nodes/Drain", {}, "--a--l"},
      {"/muster.v1.Admin/Backup", {}, "--a--l"},
      {"/muster.v1.Admin/ListProjects", {}, "vsa--l"},
      {"/muster.v1.Admin/SetProject", {}, "--a--l"},
      {"/muster.v1.Admin/DeleteProject", {}, "--a--l"},
      {"/muster.v1.Admin/ListReservations", {}, "vsa--l"},
      {"/muster.v1.Admin/SetReservation", {}, "--a--l"},
      {"/muster.v1.Admin/DeleteReservation", {}, "--a--l"},
      {"/muster.v1.Admin/Version", {}, "vsa--l"},
      {"/muster.v1.Admin/SignIn", {}, "vsa--l"},
      {"/muster.v1.Jobs/Plan", {}, "vsa--l"},
      {"/muster.v1.Workers/Connect", {}, "---w-l"},
      {"/muster.v1.Workers/RendezvousSet", {}, "---w-l"},
      {"/muster.v1.Workers/FetchTable", {}, "---w-l"},
      {"/muster.v1.Jobs/Unknown", {}, "------"},
      {"/muster.v1.Trust/Join", {}, "----jl"},
      {"/muster.v1.Trust/Renew", {}, "---w-l"},
      {"/muster.v1.Trust/CreateToken", {}, "--a--l"},
      {"/muster.v1.Trust/ListTokens", {}, "--a--l"},
      {"/muster.v1.Trust/RevokeToken", {}, "--a--l"},
      {"/muster.v1.Trust/RevokeNode", {}, "--a--l"},
      {"/muster.v1.Admin/ListAudit", {}, "--a--l"},
      {"/muster.v1.Jobs/Label", "ann", "-sa--l"},
      {"/muster.v1.Jobs/Label", "bob", "--a--l"},
      {"/muster.v1.Jobs/Note", "bob", "--a--l"},
      {"/muster.v1.Jobs/SetTemplate", {}, "-sa--l"},
      {"/muster.v1.Jobs/SetTemplate", "ann", "-sa--l"},
      {"/muster.v1.Jobs/SetTemplate", "bob", "--a--l"},
      {"/muster.v1.Jobs/GetTemplate", "bob", "vsa--l"},
      {"/muster.v1.Jobs/ListTemplates", {}, "vsa--l"},
      {"/muster.v1.Jobs/DeleteTemplate", "bob", "--a--l"},
  };
  for (const auto& c : cases) {
    for (int i = 0; i < 6; ++i) {
      const absl::Status status = Authorize({"ann", kRoles[i], {}, {}}, c.method, {c.owner});
      EXPECT_EQ(status.ok(), c.allowed[i] != '-') << c.method << " " << i << " " << status;
      if (!status.ok()) {
        EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
      }
    }
  }
}

TEST(Authorize, PrivateJobsAreReadByTheirOwnersAndAdmins) {
  const struct {
    const char* method;
    std::optional<std::string> owner;
    const char* allowed;
  } cases[] = {
      {"/muster.v1.Jobs/Get", "ann", "vsa--l"},   {"/muster.v1.Jobs/Get", "bob", "--a--l"},
      {"/muster.v1.Jobs/Watch", "ann", "vsa--l"}, {"/muster.v1.Jobs/Watch", "bob", "--a--l"},
      {"/muster.v1.Jobs/Watch", {}, "vsa--l"},    {"/muster.v1.Jobs/List", {}, "vsa--l"},
      {"/muster.v1.Nodes/List", {}, "vsa--l"},    {"/muster.v1.Jobs/Cancel", "ann", "-sa--l"},
  };
  for (const auto& c : cases) {
    for (int i = 0; i < 6; ++i) {
      const absl::Status status = Authorize({"ann", kRoles[i], {}, {}}, c.method, {c.owner, /*is_private=*/true});
      EXPECT_EQ(status.ok(), c.allowed[i] != '-') << c.method << " " << i << " " << status;
    }
  }
}

TEST(Tokens, ParsesAndFinds) {
  const auto tokens = Tokens::Parse("# users\n0123456789abcdef ann submitter\n\n  fedcba9876543210\tw1 worker\r\n");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Find("0123456789abcdef")->name, "ann");
  EXPECT_EQ(tokens->Find("0123456789abcdef")->role, Role::kSubmitter);
  EXPECT_EQ(tokens->Find("fedcba9876543210")->role, Role::kWorker);
  for (const char* wrong : {"", "0123456789abcde", "0123456789abcdeg", "ann"}) {
    EXPECT_EQ(tokens->Find(wrong).status().code(), absl::StatusCode::kUnauthenticated) << wrong;
  }
}

TEST(Tokens, NamesTheBadLineNeverTheToken) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"\n0123456789abcdef ann\n", "line 2"},
      {"0123456789abcdef ann king\n", "line 1"},
      {"0123456789abcdef ann admin extra\n", "line 1"},
      {"short ann admin\n", "16 characters"},
      {"0123456789abcdef a admin\n0123456789abcdef b admin\n", "line 2: this token is there twice"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Tokens::Parse(c.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.text;
    EXPECT_TRUE(absl::StrContains(status.message(), c.message)) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "0123456789abcdef")) << status;
  }
}

TEST(Tokens, FileMustBePrivate) {
  char path[] = "/tmp/muster-tokens-XXXXXX";
  close(mkstemp(path));
  std::ofstream(path) << "0123456789abcdef ann admin\n";
  EXPECT_TRUE(Tokens::Load(path).ok());
  chmod(path, 0644);
  EXPECT_EQ(Tokens::Load(path).status().code(), absl::StatusCode::kPermissionDenied);
  std::remove(path);
  EXPECT_EQ(Tokens::Load(path).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster::rpc
