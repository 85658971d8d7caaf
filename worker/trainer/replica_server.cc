#include "worker/trainer/replica_server.h"

#include <grpcpp/server_builder.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "proto/replicas_service.grpc.pb.h"

namespace muster::trainer {
namespace {

constexpr size_t kReplicaChunk = size_t{1} << 20;

// As long as the longer one, so that the time says nothing.
bool SameSecret(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0 && !a.empty();
}

}  // namespace

// Sends one chunk at a time.
class ReplicaServer::Call final : public grpc::ServerWriteReactor<ReplicaChunk>, public rpc::SelfOwned<Call> {
 public:
  void Begin(const absl::StatusOr<Found>& found) {
    if (!found.ok()) return Finish(rpc::ToGrpc(found.status()));
    bytes_ = found->bytes;
    chunk_.set_exchange(found->exchange);
    Next();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the other replica disconnected"));
    Next();
  }
  void OnDone() override { Release(); }

 private:
  void Next() {
    if (at_ == bytes_->size() && sent_) return Finish(grpc::Status::OK);
    const size_t size = std::min(kReplicaChunk, bytes_->size() - at_);
    chunk_.set_data(bytes_->data() + at_, size);
    at_ += size;
    sent_ = true;
    StartWrite(&chunk_);
  }

  Bytes bytes_;
  size_t at_ = 0;
  bool sent_ = false;  // an empty state has a chunk, too, for its exchange
  ReplicaChunk chunk_;
};

class ReplicaServer::Service final : public Replicas::CallbackService {
 public:
  explicit Service(ReplicaServer* server) : server_(server) {}

  grpc::ServerWriteReactor<ReplicaChunk>* Fetch(grpc::CallbackServerContext*,
                                                const FetchReplicaRequest* request) override {
    const uint64_t base = request->base();
    const std::shared_ptr<Call> call = Call::Make();
    call->Begin(server_->Find(request->fragment(), request->has_base() ? &base : nullptr, request->replica(),
                              request->secret()));
    return call.get();
  }

 private:
  ReplicaServer* const server_;
};

ReplicaServer::ReplicaServer(const OuterState* state) : state_(state), service_(std::make_unique<Service>(this)) {}

ReplicaServer::~ReplicaServer() {
  if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now()));
}

absl::StatusOr<std::unique_ptr<ReplicaServer>> ReplicaServer::Start(const std::string& host, const OuterState* state) {
  std::unique_ptr<ReplicaServer> server(new ReplicaServer(state));
  const std::string name = absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(absl::StrCat(name, ":0"), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(server->service_.get());
  rpc::AllowKeepalive(builder);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, " for the other replicas; is that an address of this machine?"));
  }
  server->address_ = absl::StrCat(name, ":", port);
  return server;
}

void ReplicaServer::UseSecret(const std::string& secret) {
  absl::MutexLock lock(&mutex_);
  secret_ = secret;
}

void ReplicaServer::Offer(uint32_t fragment, uint64_t base, uint32_t replica, Bytes contribution) {
  absl::MutexLock lock(&mutex_);
  Offers& offers = offers_[fragment];
  if (offers.base != base) offers = {base, {}};
  offers.of_replica[replica] = std::move(contribution);
}

absl::StatusOr<ReplicaServer::Found> ReplicaServer::Find(uint32_t fragment, const uint64_t* base, uint32_t replica,
                                                         const std::string& secret) {
  {
    absl::MutexLock lock(&mutex_);
    if (!SameSecret(secret, secret_)) return absl::UnauthenticatedError("another run's secret");
  }
  if (base == nullptr) {  // a copy of all of it, so not under the lock
    Found found;
    found.bytes = std::make_shared<const std::string>(state_->State(fragment, found.exchange));
    return found;
  }
  absl::MutexLock lock(&mutex_);
  const auto offers = offers_.find(fragment);
  if (offers != offers_.end() && offers->second.base == *base) {
    const auto of = offers->second.of_replica.find(replica);
    if (of != offers->second.of_replica.end()) return Found{of->second, 0};
  }
  return absl::NotFoundError(absl::StrCat("no contribution of replica ", replica, " to the exchange of fragment ",
                                          fragment, " after ", *base, " is here"));
}

absl::StatusOr<Fetched> FetchFrom(const std::string& address, const std::string& secret, uint32_t fragment,
                                  const uint64_t* base, uint32_t replica, absl::Duration patience, const Begun& begun) {
  const std::unique_ptr<Replicas::Stub> stub = Replicas::NewStub(rpc::Dial(address));
  grpc::ClientContext context;
  rpc::AddCallMetadata("", context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
  FetchReplicaRequest request;
  request.set_secret(secret);
  request.set_fragment(fragment);
  if (base != nullptr) request.set_base(*base);
  request.set_replica(replica);
  begun([&context] { context.TryCancel(); });
  const std::unique_ptr<grpc::ClientReader<ReplicaChunk>> reader = stub->Fetch(&context, request);
  Fetched fetched;
  ReplicaChunk chunk;
  while (reader->Read(&chunk)) {
    fetched.bytes.append(chunk.data());
    fetched.exchange = chunk.exchange();
  }
  const grpc::Status status = reader->Finish();
  begun(nullptr);
  if (!status.ok()) return rpc::FromGrpc(status);
  return fetched;
}

}  // namespace muster::trainer
