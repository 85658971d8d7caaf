#include "common/rpc/rpc.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/rpc/chaos.h"
#include "common/tls/endpoint.h"
#include "common/version.h"

namespace muster::rpc {
namespace {

// Both sides use it: a server cuts off a client that pings more often than it allows.
constexpr int kKeepaliveMilliseconds = 20'000;
constexpr int kKeepaliveTimeoutMilliseconds = 10'000;

std::string MetadataOf(const grpc::ServerContextBase& context, const char* key) {
  const auto& all = context.client_metadata();
  const auto found = all.find(key);
  return found == all.end() ? std::string() : std::string(found->second.data(), found->second.size());
}

// Keeps gRPC's threads for the life of the process. Otherwise destroying the last channel or server joins them, which
// sometimes took 10 s (an executor thread that polls; gRPC 1.51).
void KeepLibrary() {
  [[maybe_unused]] static const bool kept = [] {
    grpc_init();
    return true;
  }();
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto details = status.GetPayload(kErrorDetails);
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message()),
                      details.has_value() ? std::string(*details) : std::string());
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  if (!status.error_details().empty()) result.SetPayload(kErrorDetails, absl::Cord(status.error_details()));
  return result;
}

absl::Status CheckAddress(const std::string& address) {
  const auto wrong = [&](absl::string_view use) {
    return absl::InvalidArgumentError(absl::StrCat("invalid coordinator address ", address, ": ", use));
  };
  constexpr char kForms[] = "use unix:/path or host:port";
  absl::string_view rest = address;
  for (const absl::string_view scheme : {"http://", "https://", "grpc://", "tcp://"}) {
    if (absl::ConsumePrefix(&rest, scheme)) return wrong(absl::StrCat("leave out ", scheme, ": write host:port"));
  }
  if (absl::ConsumePrefix(&rest, "unix:")) return absl::StartsWith(rest, "/") ? absl::OkStatus() : wrong(kForms);
  absl::ConsumePrefix(&rest, "dns:///");
  if (tls::ParseEndpoint(std::string(rest)).ok()) return absl::OkStatus();
  const bool ipv6 = std::count(rest.begin(), rest.end(), ':') > 1 && !absl::StartsWith(rest, "[");
  return wrong(ipv6 ? "an IPv6 address needs brackets, as in [::1]:7070" : kForms);
}

absl::Status CheckSecure(const std::string& address, const Security& security) {
  if (!security.authority.empty() || absl::StartsWith(address, "unix:")) return absl::OkStatus();
  const absl::StatusOr<tls::Endpoint> endpoint = tls::ParseEndpoint(address);
  if (!endpoint.ok()) return endpoint.status();
  if (tls::IsLoopback(endpoint->host)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      address, " is another machine: connections to it need TLS, and no authority to trust is configured"));
}

std::shared_ptr<grpc::Channel> Dial(const std::string& address, const Security& security) {
  KeepLibrary();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10'000);  // gRPC's name for the connect time-out
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMilliseconds);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit: a watch may be silent for hours
  arguments.SetMaxReceiveMessageSize(16 << 20);
  if (security.authority.empty() || absl::StartsWith(address, "unix:")) {
    return grpc::experimental::CreateCustomChannelWithInterceptors(address, grpc::InsecureChannelCredentials(),
                                                                   arguments, chaos::Interceptors());
  }
  const grpc::SslCredentialsOptions options = {security.authority, security.own.key, security.own.certificate};
  return grpc::experimental::CreateCustomChannelWithInterceptors(address, grpc::SslCredentials(options), arguments,
                                                                 chaos::Interceptors());
}

void AllowKeepalive(grpc::ServerBuilder& builder) {
  KeepLibrary();
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveMilliseconds / 2);
}

void KeepCallbackThreads() {
  KeepLibrary();
  struct Call {
    std::shared_ptr<grpc::Channel> channel = grpc::CreateChannel("unix:/", grpc::InsecureChannelCredentials());
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request = grpc::ByteBuffer(&nothing, 1), reply;
  };
  // In static storage, where leak checks find what it owns.
  alignas(Call) static char storage[sizeof(Call)];
  // A channel takes the queue with its first call, whatever becomes of that.
  [[maybe_unused]] static const bool kept = [] {
    Call& call = *new (storage) Call;
    call.context.TryCancel();
    grpc::GenericStub(call.channel)
        .UnaryCall(&call.context, "/", {}, &call.request, &call.reply, [](const grpc::Status&) {});
    return true;
  }();
}

void AddCallMetadata(const std::string& token, grpc::ClientContext& context) {
  context.AddMetadata(kVersionMetadata, kVersion);
  context.AddMetadata(kProtocolMetadata, absl::StrCat(kProtocol));
  context.AddMetadata(kOldestProtocolMetadata, absl::StrCat(kOldestProtocol));
  if (token.empty()) return;
  std::string value = absl::StrCat("Bearer ", token);
  std::replace_if(
      value.begin(), value.end(), [](unsigned char c) { return !absl::ascii_isprint(c); }, '?');
  context.AddMetadata("authorization", value);
}

absl::Status CheckVersion(const Protocols& caller, const std::string& version) {
  if (CommonProtocol({}, caller).has_value()) return absl::OkStatus();
  const auto range = [](unsigned oldest, unsigned newest) {
    return oldest == 0 || oldest == newest ? absl::StrCat("protocol ", newest)
                                           : absl::StrCat("protocols ", oldest, " to ", newest);
  };
  return absl::FailedPreconditionError(absl::StrCat(
      "versions do not match: this is muster ", kVersion, " (", range(kOldestProtocol, kProtocol),
      "), the caller is muster ", version, " (", range(caller.oldest, caller.newest), "); upgrade the older one"));
}

absl::Status CheckVersion(const grpc::ServerContextBase& context) {
  Protocols caller{0, 0};
  for (const auto& [name, number] :
       {std::pair(kProtocolMetadata, &caller.newest), std::pair(kOldestProtocolMetadata, &caller.oldest)}) {
    const std::string text = MetadataOf(context, name);
    if (!text.empty() && !absl::SimpleAtoi(text, number)) {
      return absl::InvalidArgumentError(absl::StrCat("metadata ", name, " is not a number: ", text));
    }
  }
  if (caller.newest == 0) return absl::OkStatus();
  return CheckVersion(caller, MetadataOf(context, kVersionMetadata));
}

void AddTime(absl::Time now, grpc::ClientContext& context) {
  context.AddMetadata(kTimeMetadata, absl::StrCat(absl::ToUnixSeconds(now)));
}

std::optional<absl::Time> TimeOf(const grpc::ServerContextBase& context) {
  int64_t seconds = 0;
  if (!absl::SimpleAtoi(MetadataOf(context, kTimeMetadata), &seconds)) return std::nullopt;
  return absl::FromUnixSeconds(seconds);
}

std::string TokenOf(const grpc::ServerContextBase& context) {
  const std::string value = MetadataOf(context, "authorization");
  absl::string_view token = value;
  return absl::ConsumePrefix(&token, "Bearer ") ? std::string(token) : std::string();
}

}  // namespace muster::rpc
