// The standard services, health and reflection, and which others are served beside them.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "coordinator/daemon/all_methods_test.h"
#include "coordinator/daemon/server.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "coordinator/rpc/authorize.h"

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

// The contents of all fields of this number in a message of any type.
std::vector<std::string> FieldsOf(const std::string& message, int number) {
  google::protobuf::UnknownFieldSet fields;
  EXPECT_TRUE(fields.ParseFromString(message));
  std::vector<std::string> found;
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() == number && field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      found.push_back(field.length_delimited());
    }
  }
  return found;
}

// As any client is answered.
std::set<std::string> ServedBy(const std::string& address) {
  // ServerReflectionRequest{list_services: "*"} is field 7, the reply's list_services_response field 6, with a
  // service in each field 1 and its name in that one's field 1.
  const std::string reply =
      Ask(address, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", std::string("\x3a\x01*"));
  std::set<std::string> names;
  for (const std::string& list : FieldsOf(reply, 6)) {
    for (const std::string& service : FieldsOf(list, 1)) {
      for (std::string& name : FieldsOf(service, 1)) names.insert(std::move(name));
    }
  }
  return names;
}

TEST_F(StandardServices, HealthAndReflectionAnswer) {
  Start();
  // HealthCheckResponse{status: SERVING} is field 1, varint 1.
  EXPECT_EQ(Ask(address(), "/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
  EXPECT_TRUE(ServedBy(address()).contains("grpc.reflection.v1alpha.ServerReflection"));
}

// The table of AccessTest and the coordinator's own check at its start go by lists of services. A service that is
// served and missing there would have methods that no one has looked at.
TEST_F(StandardServices, NoServiceIsServedWithoutRules) {
  Start();
  std::set<std::string> covered, own;
  for (const google::protobuf::MethodDescriptor* method : AllMethods()) covered.insert(method->service()->full_name());
  for (const std::string& name : ServedBy(address())) {
    if (name == "grpc.health.v1.Health" || name == "grpc.reflection.v1alpha.ServerReflection") continue;
    own.insert(name);
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string path = absl::StrCat("/", name, "/", service->method(i)->name());
      EXPECT_TRUE(rpc::HasRule(path)) << path;
    }
  }
  EXPECT_EQ(own, (std::set<std::string>{"muster.v1.Admin", "muster.v1.Jobs", "muster.v1.Nodes", "muster.v1.Trust",
                                        "muster.v1.Workers"}))
      << "a new one: add it to CheckRules in server.cc, and to docs/security.md";
  EXPECT_EQ(covered, own) << "all_methods_test.h names the files";
}

}  // namespace
}  // namespace muster::server
