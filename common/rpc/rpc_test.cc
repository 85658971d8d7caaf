#include "common/rpc/rpc.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "absl/strings/cord.h"
#include "absl/synchronization/notification.h"
#include "common/version.h"
#include "testing/temporary_folder.h"

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

TEST(CheckAddress, TheFormOfACoordinatorsAddress) {
  for (const char* good : {"unix:/run/c.sock", "unix:///run/c.sock", "127.0.0.1:7070", "gpu-head:7070", "[::1]:7070",
                           "dns:///gpu-head:7070"}) {
    EXPECT_TRUE(CheckAddress(good).ok()) << good << " " << CheckAddress(good);
  }
  for (const char* wrong : {"", "nonsense", "unix:", "unix:rel", "127.0.0.1:abc", "127.0.0.1:", ":7070", "a:70000"}) {
    const absl::Status status = CheckAddress(wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_EQ(status.message(), "invalid coordinator address " + std::string(wrong) + ": use unix:/path or host:port");
  }
  EXPECT_EQ(CheckAddress("::1:7070").message(),
            "invalid coordinator address ::1:7070: an IPv6 address needs brackets, as in [::1]:7070");
  EXPECT_EQ(CheckAddress("http://127.0.0.1:7070").message(),
            "invalid coordinator address http://127.0.0.1:7070: leave out http://: write host:port");
  EXPECT_EQ(CheckAddress("https://gpu-head").message(),
            "invalid coordinator address https://gpu-head: leave out https://: write host:port");
}

TEST(AddCallMetadata, ATokenThatCannotBeSentAbortsNoProcess) {
  const TemporaryFolder folder;
  grpc::ClientContext context;
  AddCallMetadata("junk\r\n\x80", context);
  grpc::GenericStub stub(Dial("unix:" + folder.path() + "/none.sock"));
  grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  absl::Notification ended;
  grpc::Status found;
  stub.UnaryCall(&context, "/", {}, &request, &reply, [&](const grpc::Status& status) {
    found = status;
    ended.Notify();
  });
  ended.WaitForNotification();
  EXPECT_EQ(found.error_code(), grpc::StatusCode::UNAVAILABLE) << found.error_message();
}

// What a callback owns holds the channel by its context, and the last one when the caller has let go.
TEST(KeepCallbackThreads, ACallbackMayHoldTheLastChannel) {
  KeepCallbackThreads();
  struct Call {
    explicit Call(absl::Notification* destroyed) : destroyed(destroyed) {}
    ~Call() { context.reset(), destroyed->Notify(); }
    absl::Notification* const destroyed;
    std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
    grpc::Slice nothing;
    grpc::ByteBuffer request = grpc::ByteBuffer(&nothing, 1), reply;
  };
  const TemporaryFolder folder;
  for (int i = 0; i < 20; ++i) {
    absl::Notification let_go, destroyed;
    absl::Status found;
    {
      auto call = std::make_shared<Call>(&destroyed);
      grpc::GenericStub stub(Dial("unix:" + folder.path() + "/none.sock"));
      stub.UnaryCall(call->context.get(), "/", {}, &call->request, &call->reply, [&, call](const grpc::Status& status) {
        let_go.WaitForNotification();
        found = FromGrpc(status);
      });
    }
    let_go.Notify();
    destroyed.WaitForNotification();
    EXPECT_EQ(found.code(), absl::StatusCode::kUnavailable) << found;
  }
}

}  // namespace
}  // namespace muster::rpc
