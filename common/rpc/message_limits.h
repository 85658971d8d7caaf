// How large the requests of the coordinator's methods may be. A larger one is refused before it is parsed (the
// coordinator answers InvalidArgument), since a message of many empty fields takes dozens of times its size in memory.
// What is not listed has the server's limit: the messages of workers' streams, which are read once the caller is known
// to be a worker.
//
// Included by every generated *.grpc.pb.h (build_defs/proto.bzl), so that a method is the same in all that call or
// serve it.
#pragma once

#include <grpcpp/impl/codegen/proto_utils.h>

#include <string>

namespace muster::v1 {
class BackupRequest;
class CancelRequest;
class CheckpointRequest;
class CreateTokenRequest;
class DeleteProjectRequest;
class DeleteRequest;
class DeleteReservationRequest;
class DeleteTemplateRequest;
class DrainRequest;
class FetchTableRequest;
class ForgetRequest;
class GetJobRequest;
class GetTemplateRequest;
class JoinRequest;
class LabelRequest;
class ListAuditRequest;
class ListJobsRequest;
class ListNodesRequest;
class ListProjectsRequest;
class ListReservationsRequest;
class ListTemplatesRequest;
class ListTokensRequest;
class NodeUseRequest;
class NoteRequest;
class PauseRequest;
class PlanRequest;
class RendezvousGetRequest;
class RendezvousSetRequest;
class RenewRequest;
class ResumeRequest;
class RevokeNodeRequest;
class RevokeTokenRequest;
class SetProjectRequest;
class SetReservationRequest;
class SetTemplateRequest;
class SignInRequest;
class SubmitRequest;
class SyncRequest;
class TraceRequest;
class UndrainRequest;
class VersionRequest;
class WatchRequest;
}  // namespace muster::v1

namespace muster::rpc {

// In place of gRPC's own way to read and write message type T.
template <typename T, size_t kMostBytes>
class LimitedMessage {
 public:
  static grpc::Status Serialize(const grpc::protobuf::MessageLite& message, grpc::ByteBuffer* to, bool* own_buffer) {
    return grpc::GenericSerialize<grpc::ProtoBufferWriter, T>(message, to, own_buffer);
  }
  static grpc::Status Deserialize(grpc::ByteBuffer* from, grpc::protobuf::MessageLite* message) {
    if (from != nullptr && from->Length() > kMostBytes) {
      const size_t bytes = from->Length();
      from->Clear();  // its caller does not: gRPC's own way to read a message does this
      return grpc::Status(
          grpc::StatusCode::RESOURCE_EXHAUSTED,
          "a request of " + std::to_string(bytes) + " bytes, at most " + std::to_string(kMostBytes) + " are allowed");
    }
    return grpc::GenericDeserialize<grpc::ProtoBufferReader, T>(from, message);
  }
};

}  // namespace muster::rpc

#define MUSTER_LIMIT_MESSAGE(Type, most_bytes)            \
  template <>                                             \
  class grpc::SerializationTraits<muster::v1::Type, void> \
      : public muster::rpc::LimitedMessage<muster::v1::Type, most_bytes> {}

MUSTER_LIMIT_MESSAGE(BackupRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(CancelRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(CheckpointRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(CreateTokenRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(DeleteProjectRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(DeleteRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(DeleteReservationRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(DeleteTemplateRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(DrainRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(FetchTableRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(ForgetRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(GetJobRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(GetTemplateRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(JoinRequest, 64 << 10);
MUSTER_LIMIT_MESSAGE(LabelRequest, 16 << 10);
MUSTER_LIMIT_MESSAGE(ListAuditRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(ListJobsRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(ListNodesRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(ListProjectsRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(ListReservationsRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(ListTemplatesRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(ListTokensRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(NodeUseRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(NoteRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(PauseRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(PlanRequest, 1 << 20);
MUSTER_LIMIT_MESSAGE(RendezvousGetRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(RendezvousSetRequest, 128 << 10);
MUSTER_LIMIT_MESSAGE(RenewRequest, 64 << 10);
MUSTER_LIMIT_MESSAGE(ResumeRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(RevokeNodeRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(RevokeTokenRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(SetProjectRequest, 256 << 10);
MUSTER_LIMIT_MESSAGE(SetReservationRequest, 512 << 10);
MUSTER_LIMIT_MESSAGE(SetTemplateRequest, 128 << 10);
MUSTER_LIMIT_MESSAGE(SignInRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(SubmitRequest, 128 << 10);
MUSTER_LIMIT_MESSAGE(SyncRequest, 64 << 10);
MUSTER_LIMIT_MESSAGE(TraceRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(UndrainRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(VersionRequest, 8 << 10);
MUSTER_LIMIT_MESSAGE(WatchRequest, 8 << 10);

#undef MUSTER_LIMIT_MESSAGE
