#include "common/rpc/rpc.h"

#include <gtest/gtest.h>

#include "absl/strings/cord.h"
#include "common/version.h"

namespace muster::rpc {
namespace {

TEST(Status, RoundTripsEveryCodeWithDetails) {
  for (int code = 1; code <= 16; ++code) {
    absl::Status status(static_cast<absl::StatusCode>(code), "why");
    status.SetPayload(kErrorDetails, absl::Cord("bytes"));
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
  }
  EXPECT_TRUE(FromGrpc(ToGrpc(absl::OkStatus())).ok());
}

TEST(Version, ForeignProtocolNamesBoth) {
  EXPECT_TRUE(CheckVersion({kProtocol, kOldestProtocol}, kVersion).ok());
  EXPECT_TRUE(CheckVersion({kProtocol + 1, kProtocol}, "9.9.9").ok()) << "the next release speaks this one's protocol";
  const absl::Status status = CheckVersion({kProtocol + 1, 0}, "9.9.9");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("9.9.9"), absl::string_view::npos);
  EXPECT_NE(status.message().find(kVersion), absl::string_view::npos);
}

}  // namespace
}  // namespace muster::rpc
