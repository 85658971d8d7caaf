// The standard services: health and reflection.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "common/rpc/rpc.h"
#include "coordinator/daemon/server.h"
#include "coordinator/daemon/server_fixture_test.h"

namespace muster::server {
namespace {

// Sends the bytes of one message and returns the first reply's.
std::string Ask(const std::string& address, const std::string& method, const std::string& request) {
  grpc::GenericStub stub(rpc::Dial(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  EXPECT_TRUE(next());
  const grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  EXPECT_TRUE(next());
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  EXPECT_TRUE(next()) << method;
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  EXPECT_TRUE(status.ok()) << method << ": " << status.error_message();
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (reply.Valid() && reply.Dump(&slices).ok()) {
    for (const grpc::Slice& part : slices) bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return bytes;
}

using StandardServices = ServerFixture;

TEST_F(StandardServices, HealthAndReflectionAnswer) {
  Start();
  // HealthCheckResponse{status: SERVING} is field 1, varint 1.
  EXPECT_EQ(Ask(address(), "/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
  // ServerReflectionRequest{list_services: "*"} is field 7.
  const std::string services =
      Ask(address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x01*"));
  for (const char* name : {"muster.v1.Jobs", "muster.v1.Nodes", "muster.v1.Admin", "muster.v1.Workers"}) {
    EXPECT_TRUE(absl::StrContains(services, name)) << name;
  }
}

}  // namespace
}  // namespace muster::server
