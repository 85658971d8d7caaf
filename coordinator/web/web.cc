#include "coordinator/web/web.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "common/rpc/rpc.h"
#include "common/sha256.h"
#include "common/tls/endpoint.h"
#include "coordinator/web/assets.h"

namespace muster::web {
namespace {

constexpr char kAssetFolder[] = "/assets/";
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'none'; "
    "frame-ancestors 'none'; base-uri 'none'";

bool Changes(const HttpRequest& request) { return request.method != "GET" && request.method != "HEAD"; }

// The host of a Host field, without its port; empty: malformed.
std::string HostOf(const std::string& field) {
  if (absl::StartsWith(field, "[")) {
    const size_t end = field.find(']');
    return end == std::string::npos ? "" : field.substr(1, end - 1);
  }
  return field.substr(0, field.find(':'));
}

void AddProtection(Exchange& exchange) {
  exchange.AddField("Content-Security-Policy", kPolicy);
  exchange.AddField("X-Content-Type-Options", "nosniff");
  exchange.AddField("X-Frame-Options", "DENY");
  exchange.AddField("Referrer-Policy", "no-referrer");
  exchange.AddField("Cross-Origin-Opener-Policy", "same-origin");
  exchange.AddField("Cross-Origin-Resource-Policy", "same-origin");
}

// The text member `name` of a JSON object; empty: there is none.
std::string Member(const google::protobuf::Struct& object, const char* name) {
  const auto found = object.fields().find(name);
  return found == object.fields().end() ? "" : found->second.string_value();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Web>> Web::Listen(const Options& options, const Clock* clock) {
  const std::string port_file = options.state_dir + "/web_port";
  absl::StatusOr<std::unique_ptr<HttpServer>> server = absl::UnavailableError("");
  const absl::StatusOr<tls::Endpoint> endpoint = tls::ParseEndpoint(options.http.address);
  const bool any_port = endpoint.ok() && endpoint->port == "0";
  if (any_port) {
    uint32_t port = 0;
    const absl::StatusOr<std::string> last = ReadWhole(port_file, 16);
    if (last.ok() && absl::SimpleAtoi(*last, &port) && port > 0 && port < 65536) {
      HttpServer::Options again = options.http;
      again.address = absl::StrCat(again.address.substr(0, again.address.rfind(':') + 1), port);
      server = HttpServer::Listen(again);
    }
  }
  if (!server.ok()) server = HttpServer::Listen(options.http);
  if (!server.ok()) return server.status();
  if (any_port) {
    const std::string& address = (*server)->address();
    if (absl::Status saved = WriteDurably(port_file, address.substr(address.rfind(':') + 1)); !saved.ok()) return saved;
  }
  absl::StatusOr<std::unique_ptr<Sessions>> sessions = Sessions::Open(options.state_dir + "/web_sessions.pb", clock);
  if (!sessions.ok()) return sessions.status();
  return std::unique_ptr<Web>(new Web(options, *std::move(server), *std::move(sessions), clock));
}

Web::Web(Options options, std::unique_ptr<HttpServer> server, std::unique_ptr<Sessions> sessions, const Clock* clock)
    : options_(std::move(options)),
      loopback_(tls::IsLoopback(HostOf(server->address()))),
      cookie_(absl::StrCat("muster-session-", server->address().substr(server->address().rfind(':') + 1))),
      sessions_(std::move(sessions)),
      sign_ins_(std::make_unique<rpc::SignIns>(
          absl::StrCat(options_.http.certificate_file.empty() ? "http://" : "https://", server->address()), clock)),
      server_(std::move(server)) {}

Web::~Web() { Stop(); }

void Web::Serve(const std::shared_ptr<grpc::Channel>& channel) {
  rpc::KeepCallbackThreads();
  api_ = std::make_unique<Api>(channel, options_.local_token);
  server_->Serve([this](const std::shared_ptr<Exchange>& exchange) { Answer(exchange); });
}

void Web::Answer(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  AddProtection(*exchange);
  if (absl::Status host = CheckHost(request); !host.ok()) return exchange->Reply(ErrorResponse(host));
  if (absl::StartsWith(request.path, "/api/")) return AnswerApi(exchange);
  if (Changes(request)) {
    HttpResponse response = ErrorResponse(absl::InvalidArgumentError("pages take GET"));
    response.status = 405;
    response.fields.emplace_back("Allow", "GET, HEAD");
    return exchange->Reply(std::move(response));
  }
  if (absl::StartsWith(request.path, kAssetFolder)) {
    return ReplyAsset(exchange, request.path.substr(sizeof(kAssetFolder) - 1));
  }
  // Every view has a path of its own, and the page finds out which: docs/web.md.
  ReplyAsset(exchange, "index.html");
}

void Web::ReplyAsset(const std::shared_ptr<Exchange>& exchange, const std::string& name) const {
  const Asset* asset = FindAsset(name);
  if (asset == nullptr) return exchange->Reply(ErrorResponse(absl::NotFoundError("no such file")));
  HttpResponse response;
  response.fields = {
      {"Content-Type", std::string(asset->type)}, {"ETag", std::string(asset->etag)}, {"Cache-Control", "no-cache"}};
  if (exchange->request().Field("if-none-match") == asset->etag) {
    response.status = 304;
  } else {
    response.body = std::string(asset->bytes);
  }
  exchange->Reply(std::move(response));
}

void Web::AnswerApi(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  if (absl::Status origin = CheckOrigin(request); !origin.ok()) return exchange->Reply(ErrorResponse(origin));
  if (request.path == "/api/openapi.json") return ReplyAsset(exchange, "openapi.json");
  if (request.path == "/api/v1/sign-in") return SignIn(exchange);
  absl::string_view bearer = "";
  const std::string authorization = request.Field("authorization");
  bearer = authorization;
  if (absl::ConsumePrefix(&bearer, "Bearer ")) return api_->Serve(std::string(bearer), exchange);
  const std::optional<Session> session = sessions_->Find(SessionIdOf(request));
  if (!session.has_value()) {
    return exchange->Reply(ErrorResponse(absl::UnauthenticatedError(
        "sign in first: `muster ui`, or a token at this address; programs send Authorization: Bearer TOKEN")));
  }
  exchange->SetKnown();
  if (Changes(request) && Sha256Hex(request.Field("x-muster-csrf")) != Sha256Hex(session->csrf)) {
    return exchange->Reply(ErrorResponse(
        absl::PermissionDeniedError("the field X-Muster-CSRF does not match the session: load the page again")));
  }
  if (request.path == "/api/v1/sign-out") return SignOut(exchange);
  if (request.path == "/api/v1/session") {
    return exchange->Reply(JsonResponse(absl::StrCat("{\"user\":", JsonText(session->credential.user),
                                                     ",\"role\":", JsonText(session->credential.role),
                                                     ",\"csrf\":", JsonText(session->csrf), "}")));
  }
  api_->Serve(session->credential.local ? options_.local_token : session->credential.token, exchange);
}

void Web::SignIn(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  google::protobuf::Struct body;
  const bool json = absl::StartsWith(request.Field("content-type"), "application/json");
  if (request.method != "POST" || !json || !google::protobuf::util::JsonStringToMessage(request.body, &body).ok()) {
    return exchange->Reply(ErrorResponse(
        absl::InvalidArgumentError("expected a POST of {\"token\": ...} or {\"code\": ...} as application/json")));
  }
  if (const std::string code = Member(body, "code"); !code.empty()) {
    const std::optional<rpc::Credential> credential = sign_ins_->Redeem(code);
    if (credential.has_value()) return Admit(exchange, *credential);
    return exchange->Reply(ErrorResponse(
        absl::UnauthenticatedError("this link was used, or is older than a minute: run `muster ui` again")));
  }
  const std::string token = Member(body, "token");
  // The secret of this process is no token of a user.
  const bool ours = Sha256Hex(token) == Sha256Hex(options_.local_token);
  api_->SignIn(ours ? "" : token, request.peer, [this, exchange](const absl::StatusOr<SignInReply>& reply) {
    if (!reply.ok()) return exchange->Reply(ErrorResponse(reply.status()));
    const std::optional<rpc::Credential> credential = sign_ins_->Redeem(reply->code());
    if (!credential.has_value()) return exchange->Reply(ErrorResponse(absl::InternalError("the code was lost")));
    Admit(exchange, *credential);
  });
}

void Web::Admit(const std::shared_ptr<Exchange>& exchange, const rpc::Credential& credential) {
  sessions_->End(SessionIdOf(exchange->request()));
  const absl::StatusOr<std::string> id = sessions_->Create(credential);
  if (!id.ok()) return exchange->Reply(ErrorResponse(id.status()));
  LogInfo("signed in to the web page", {{"user", credential.user}, {"role", credential.role}});
  HttpResponse response =
      JsonResponse(absl::StrCat("{\"user\":", JsonText(credential.user), ",\"role\":", JsonText(credential.role), "}"));
  response.fields.emplace_back("Set-Cookie", CookieOf(exchange->request(), *id, Sessions::kLife));
  exchange->Reply(std::move(response));
}

void Web::SignOut(const std::shared_ptr<Exchange>& exchange) {
  if (exchange->request().method != "POST") {
    return exchange->Reply(ErrorResponse(absl::InvalidArgumentError("expected a POST")));
  }
  sessions_->End(SessionIdOf(exchange->request()));
  HttpResponse response = JsonResponse("{}");
  response.fields.emplace_back("Set-Cookie", CookieOf(exchange->request(), "", absl::ZeroDuration()));
  exchange->Reply(std::move(response));
}

std::string Web::SessionIdOf(const HttpRequest& request) const {
  const std::string field = request.Field("cookie");
  for (absl::string_view part : absl::StrSplit(field, ';')) {
    part = absl::StripAsciiWhitespace(part);
    if (absl::ConsumePrefix(&part, cookie_) && absl::ConsumePrefix(&part, "=")) return std::string(part);
  }
  return "";
}

std::string Web::CookieOf(const HttpRequest& request, const std::string& id, absl::Duration life) const {
  return absl::StrCat(cookie_, "=", id, "; Path=/; HttpOnly; SameSite=Strict; Max-Age=", absl::ToInt64Seconds(life),
                      request.encrypted ? "; Secure" : "");
}

absl::Status Web::CheckHost(const HttpRequest& request) const {
  const std::string host = HostOf(request.Field("host"));
  if (host.empty()) return absl::InvalidArgumentError("the request has no Host");
  if (!loopback_ || tls::IsLoopback(host)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "this page is served on a loopback address: open it as 127.0.0.1 or localhost, also through a tunnel");
}

absl::Status Web::CheckOrigin(const HttpRequest& request) const {
  if (absl::StartsWith(request.Field("sec-fetch-site"), "cross-site")) {
    return absl::PermissionDeniedError("another web site may not call this one");
  }
  const std::string origin = request.Field("origin");
  if (origin.empty()) return absl::OkStatus();
  if (origin == absl::StrCat(request.encrypted ? "https://" : "http://", request.Field("host")))
    return absl::OkStatus();
  return absl::PermissionDeniedError("another web site may not call this one");
}

}  // namespace muster::web
