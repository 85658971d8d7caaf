#include "worker/agent/credentials.h"

#include <grpcpp/client_context.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/file/durable_file.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "common/tls/probe.h"
#include "common/tls/token.h"
#include "proto/trust_service.grpc.pb.h"

namespace muster::agent {
namespace {

constexpr auto kEnrollDeadline = std::chrono::seconds(10);
constexpr absl::Duration kJoinPause = absl::Seconds(2);
constexpr char kHowToJoin[] =
    "join with --join-token and a token of `muster coordinator token create --role worker`, made on the coordinator's "
    "machine";

std::string FolderOf(const std::string& state_dir) { return state_dir + "/trust"; }

absl::Status WithPlace(const std::string& where, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

absl::StatusOr<Credentials> Check(const std::string& node, const std::string& certificate, const std::string& key,
                                  const std::string& authority) {
  Credentials credentials{{authority, {certificate, key}}, {}, {}, absl::InfinitePast()};
  absl::Status status = tls::CheckPair(credentials.security.own);
  if (status.ok()) status = tls::CheckSignedBy(certificate, authority);
  if (!status.ok()) return status;
  absl::StatusOr<tls::Certificate> own = tls::ReadCertificate(certificate);
  if (!own.ok()) return own.status();
  if (own->name != node) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate is for node ", own->name, ", and this node is ", node));
  }
  const absl::StatusOr<tls::Certificate> signer = tls::ReadCertificate(authority);
  if (!signer.ok()) return signer.status();
  credentials.certificate = *std::move(own);
  credentials.authority_sha256 = signer->sha256;
  return credentials;
}

absl::Time WrittenAt(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? absl::TimeFromTimespec(info.st_mtim) : absl::InfinitePast();
}

// Each attempt uses the same key: the coordinator treats a second request as a retry only if its key is the same.
absl::StatusOr<std::string> KeyForJoining(const std::string& folder) {
  const std::string path = folder + "/join.key";
  absl::StatusOr<std::string> kept = ReadPrivateFile(path);
  if (!absl::IsNotFound(kept.status())) return kept;
  absl::StatusOr<std::string> key = tls::MakeKey();
  if (!key.ok()) return key;
  if (absl::Status status = WriteDurably(path, *key); !status.ok()) return status;
  return key;
}

absl::StatusOr<std::string> AskToJoin(const std::string& coordinator, const std::string& authority,
                                      const std::string& token, const JoinRequest& request) {
  const std::unique_ptr<Trust::Stub> stub = Trust::NewStub(rpc::Dial(coordinator, {authority, {}}));
  grpc::ClientContext context;
  rpc::AddCallMetadata(token, context);
  rpc::AddTime(absl::Now(), context);
  context.set_deadline(std::chrono::system_clock::now() + kEnrollDeadline);
  JoinReply reply;
  const absl::Status status = rpc::FromGrpc(stub->Join(&context, request, &reply));
  if (!status.ok()) return WithPlace(absl::StrCat("the coordinator at ", coordinator), status);
  return reply.certificate();
}

}  // namespace

absl::StatusOr<Credentials> LoadCredentials(const std::string& state_dir, const std::string& node) {
  const std::string path = FolderOf(state_dir) + "/node.pem";
  const absl::StatusOr<std::string> text = ReadPrivateFile(path);
  if (!text.ok()) return text.status();
  const absl::StatusOr<std::vector<std::string>> certificates = tls::SplitCertificates(*text);
  absl::StatusOr<Credentials> credentials = absl::InvalidArgumentError("two certificates and a key are expected");
  if (certificates.ok() && certificates->size() == 2) {
    credentials = Check(node, (*certificates)[0], *text, (*certificates)[1]);
  }
  if (credentials.ok()) credentials->written = WrittenAt(path);
  if (credentials.ok()) return credentials;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", credentials.status().message(), "; remove ",
                                                 FolderOf(state_dir), " and join again with a token"));
}

absl::StatusOr<Credentials> KeepCredentials(const std::string& state_dir, const std::string& node,
                                            const std::string& certificate, const std::string& key,
                                            const std::string& authority) {
  const std::string folder = FolderOf(state_dir);
  absl::StatusOr<Credentials> credentials = Check(node, certificate, key, authority);
  if (!credentials.ok()) return WithPlace("the coordinator's answer does not fit", credentials.status());
  if (absl::Status status = MakePrivateFolder(folder); !status.ok()) return status;
  if (absl::Status status = WriteDurably(folder + "/node.pem", certificate + authority + key); !status.ok()) {
    return status;
  }
  unlink((folder + "/join.key").c_str());
  credentials->written = WrittenAt(folder + "/node.pem");
  return credentials;
}

absl::Duration LifeOf(const Credentials& credentials) {
  const auto& [begin, end] = credentials.certificate.validity;
  const bool plausible = credentials.written >= begin && credentials.written < end;
  return end - (plausible ? credentials.written : begin);
}

absl::Time RenewalTime(const Credentials& credentials) {
  return credentials.certificate.validity.end - LifeOf(credentials) / 3;
}

absl::StatusOr<Credentials> Join(const std::string& coordinator, const std::string& text, const std::string& state_dir,
                                 const std::string& node) {
  const absl::StatusOr<tls::Token> token = tls::ParseToken(text);
  if (!token.ok()) return WithPlace("the join token", token.status());
  const absl::StatusOr<std::string> authority = tls::FetchAuthority(coordinator, token->authority_sha256);
  if (!authority.ok()) return authority.status();
  if (absl::Status status = MakePrivateFolder(FolderOf(state_dir)); !status.ok()) return status;
  const absl::StatusOr<std::string> key = KeyForJoining(FolderOf(state_dir));
  if (!key.ok()) return key.status();
  const absl::StatusOr<std::string> csr = tls::MakeRequest(*key, node);
  if (!csr.ok()) return csr.status();
  JoinRequest request;
  request.set_node(node);
  request.set_certificate_request(*csr);
  const absl::StatusOr<std::string> certificate = AskToJoin(coordinator, *authority, tls::ToString(*token), request);
  if (!certificate.ok()) return certificate.status();
  return KeepCredentials(state_dir, node, *certificate, *key, *authority);
}

absl::StatusOr<Credentials> ObtainCredentials(const Membership& membership,
                                              const std::function<bool(absl::Duration)>& pause) {
  // Not NotFound, which would mean that the worker needs none.
  const absl::Status unreadable =
      membership.join_token.ok()
          ? absl::OkStatus()
          : absl::InvalidArgumentError(absl::StrCat("--join-token: ", membership.join_token.status().message()));
  if (absl::StartsWith(membership.coordinator, "unix:")) {
    return unreadable.ok() ? absl::NotFoundError("a Unix socket needs none") : unreadable;
  }
  absl::StatusOr<Credentials> credentials = LoadCredentials(membership.state_dir, membership.node);
  const bool expired = credentials.ok() && absl::Now() >= credentials->certificate.validity.end;
  if (!unreadable.ok()) return credentials.ok() && !expired ? credentials : unreadable;
  if (membership.join_token->empty()) {
    if (!expired) return credentials;
    return absl::FailedPreconditionError(absl::StrCat("the certificate of this node has expired: ", kHowToJoin));
  }
  const absl::StatusOr<tls::Token> token = tls::ParseToken(*membership.join_token);
  if (!token.ok()) return WithPlace("the join token", token.status());
  if (credentials.ok() && !expired && credentials->authority_sha256 == token->authority_sha256) return credentials;
  std::string complaint;
  do {
    credentials = Join(membership.coordinator, *membership.join_token, membership.state_dir, membership.node);
    if (credentials.ok()) {
      LogInfo("joined the coordinator; the token is no longer needed", {{"coordinator", membership.coordinator}});
      return credentials;
    }
    const absl::Status& why = credentials.status();
    if (!absl::IsUnavailable(why) && !absl::IsDeadlineExceeded(why)) return why;
    if (complaint != why.message()) {
      complaint = std::string(why.message());
      LogWarn("cannot join yet; retrying", {{"coordinator", membership.coordinator}, {"error", why}});
    }
  } while (pause(kJoinPause));
  return absl::CancelledError("asked to end before it had joined");
}

absl::Status CheckConnection(const std::string& coordinator, const rpc::Security& security) {
  if (absl::Status status = rpc::CheckSecure(coordinator, security); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(status.message(), ": ", kHowToJoin));
  }
  if (security.authority.empty()) return absl::OkStatus();
  const auto shown = tls::Probe(coordinator, {.authority = security.authority, .client = security.own});
  // Continue anyway: the ranks of an earlier daemon are adopted whatever the coordinator's certificate says.
  if (!shown.ok())
    LogError("no trusted connection to the coordinator; retrying",
             {{"coordinator", coordinator}, {"error", shown.status()}});
  return absl::OkStatus();
}

absl::Status WhyUnreachable(const std::string& coordinator, const rpc::Security& security, const absl::Status& why) {
  if (absl::StartsWith(coordinator, "unix:") || !security.authority.empty()) return why;
  // Without TLS the address is of this machine (rpc::CheckSecure), which answers at once.
  if (!tls::SpeaksTls(coordinator, absl::Seconds(1))) return why;
  return absl::UnavailableError(absl::StrCat("the coordinator at ", coordinator, " speaks TLS: ", kHowToJoin));
}

}  // namespace muster::agent
