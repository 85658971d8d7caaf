#include "coordinator/rpc/call.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/rpc.h"
#include "common/sha256.h"
#include "common/tls/certificate.h"
#include "common/tls/token.h"

namespace muster::rpc {
namespace {

// A property of the connection, such as its certificate; empty if it has none.
std::string PropertyOf(const grpc::AuthContext* about, const char* name) {
  if (about == nullptr) return "";
  const std::vector<grpc::string_ref> values = about->FindPropertyValues(name);
  return values.empty() ? "" : std::string(values.front().data(), values.front().size());
}

std::string PropertyOf(const grpc::ServerContextBase& context, const char* name) {
  return PropertyOf(context.auth_context().get(), name);
}

// Whether the call came in over TLS.
bool IsEncrypted(const grpc::AuthContext* about) {
  const std::string type = PropertyOf(about, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  return type == GRPC_TLS_TRANSPORT_SECURITY_TYPE || type == GRPC_SSL_TRANSPORT_SECURITY_TYPE;
}

}  // namespace

Gate::Gate(Principal local, std::optional<Tokens> tokens, const TrustRecords* records, const Clock* clock,
           std::function<void(const std::string& peer)> known, const std::string& local_token)
    : local_(std::move(local)),
      tokens_(std::move(tokens)),
      records_(records),
      clock_(clock),
      known_(std::move(known)),
      local_token_sha256_(local_token.empty() ? "" : Sha256Hex(local_token)) {}

absl::StatusOr<Principal> Gate::Admit(const grpc::ServerContextBase& context, std::string_view method,
                                      Principal* known) const {
  absl::StatusOr<Principal> caller = Identify(context);
  if (!caller.ok()) return caller;
  if (known != nullptr) *known = *caller;
  known_(context.peer());
  if (absl::Status status = CheckVersion(context); !status.ok()) return status;
  if (absl::Status status = Authorize(*caller, method, {}); !status.ok()) return status;
  return caller;
}

std::string Gate::PeerOf(const grpc::ServerContextBase& context) const {
  const auto found = context.client_metadata().find(kWebPeer);
  if (found == context.client_metadata().end() || local_token_sha256_.empty()) return context.peer();
  const std::string text(found->second.data(), found->second.size());
  const size_t space = std::min(text.find(' '), text.size());
  if (Sha256Hex(text.substr(0, space)) != local_token_sha256_) return context.peer();
  return absl::StrCat("web", text.substr(space));
}

absl::StatusOr<Principal> Gate::Identify(const grpc::ServerContextBase& context) const {
  if (absl::StartsWith(context.peer(), "unix:")) return local_;
  const bool encrypted = IsEncrypted(context.auth_context().get());
  const std::string token = TokenOf(context);
  if (!encrypted && !token.empty() && Sha256Hex(token) == local_token_sha256_) return local_;
  if (encrypted) return IdentifyOverTls(token, PropertyOf(context, GRPC_X509_PEM_CERT_PROPERTY_NAME));
  return OwnerOf(token, encrypted);
}

absl::StatusOr<Principal> Gate::IdentifyOverTls(const std::string& token, const std::string& certificate) const {
  if (token.empty() && records_ != nullptr && !certificate.empty()) return NodeOf(certificate);
  return OwnerOf(token, /*encrypted=*/true);
}

// gRPC calls it with the call's headers, before it reads a message.
class Gate::Doorman final : public grpc::AuthMetadataProcessor {
 public:
  explicit Doorman(const Gate* gate) : gate_(gate) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& headers, grpc::AuthContext* about, OutputMetadata*,
                       OutputMetadata*) override {
    const auto header = [&](const char* name) {
      const auto found = headers.find(name);
      return found == headers.end() ? std::string() : std::string(found->second.data(), found->second.size());
    };
    // Whoever watches over the service need not be its user.
    const std::string path = header(":path");
    if (absl::StartsWith(path, "/grpc.health.") || absl::StartsWith(path, "/grpc.reflection.")) return {};
    const std::string authorization = header("authorization");
    absl::string_view token = authorization;
    if (!absl::ConsumePrefix(&token, "Bearer ")) token = "";
    if (!IsEncrypted(about)) return ToGrpc(gate_->OwnerOf(std::string(token), /*encrypted=*/false).status());
    return ToGrpc(
        gate_->IdentifyOverTls(std::string(token), PropertyOf(about, GRPC_X509_PEM_CERT_PROPERTY_NAME)).status());
  }

 private:
  const Gate* const gate_;
};

std::shared_ptr<grpc::AuthMetadataProcessor> Gate::BeforeMessages() const { return std::make_shared<Doorman>(this); }

absl::StatusOr<Principal> Gate::OwnerOf(const std::string& token, bool encrypted) const {
  if (tls::IsToken(token) && records_ != nullptr) {
    const absl::StatusOr<tls::Token> parsed = tls::ParseToken(token);
    if (!parsed.ok()) return absl::UnauthenticatedError(parsed.status().message());
    return records_->FindToken(*parsed, clock_->Read().wall);
  }
  static const auto& no_tokens = *new Tokens();
  absl::StatusOr<Principal> found = (tokens_.has_value() ? *tokens_ : no_tokens).Find(token);
  if (found.ok() && found->role == Role::kWorker && encrypted) {
    return absl::UnauthenticatedError(
        "over TLS a worker shows a node certificate: start it with --join-token and a token of `muster coordinator "
        "token create --role worker`");
  }
  return found;
}

// The handshake has verified that our authority signed it and that the peer has its key.
absl::StatusOr<Principal> Gate::NodeOf(const std::string& pem) const {
  const absl::StatusOr<tls::Certificate> certificate = tls::ReadCertificate(pem);
  if (!certificate.ok()) return absl::UnauthenticatedError(certificate.status().message());
  // A connection may outlive its certificate.
  if (clock_->Read().wall >= certificate->validity.end) {
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate of node ", certificate->name, " has expired: join again with a token"));
  }
  if (absl::Status status = records_->CheckNode(certificate->name, certificate->key_sha256); !status.ok()) {
    return status;
  }
  return Principal{absl::StrCat("node ", certificate->name), Role::kWorker, certificate->name, certificate->key_sha256};
}

grpc::ServerUnaryReactor* EndWith(const absl::Status& status, grpc::CallbackServerContext& context) {
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace muster::rpc
