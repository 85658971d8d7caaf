// The web page of the coordinator: its files, sign-in, and the JSON interface (api.h).
//
//   absl::StatusOr<std::unique_ptr<Web>> web = Web::Listen(options, &clock);  // takes the port, serves no one yet
//   AdminService admin(..., &(*web)->sign_ins(), ...);
//   ...
//   (*web)->Serve(server->InProcessChannel({}));
//   ...
//   (*web)->Stop();   // before the gRPC server is shut down
//
// What protects a browser's session, besides the rules of the calls themselves:
// - Pages come with a Content-Security-Policy that allows nothing but this server's own files, and may not be framed.
// - The session is a random id in a cookie that scripts cannot read and other sites do not send (HttpOnly,
//   SameSite=Strict; Secure over TLS).
// - A request that changes something needs the session's CSRF token in a field, and an Origin, if it has one, of this
//   server.
// - On a loopback address a request is refused whose Host is not a name of the loopback: a web site that lets its own
//   name point to 127.0.0.1 does not get in. Loopback alone is no identity: other users of the machine reach it too.
//
// Thread-safe.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/rpc/sign_ins.h"
#include "coordinator/web/api.h"
#include "coordinator/web/http_server.h"
#include "coordinator/web/sessions.h"

namespace muster::web {

class Web {
 public:
  struct Options {
    HttpServer::Options http;
    std::string state_dir;
    // The secret by which the web server calls as the user of the Unix socket (rpc::Gate).
    std::string local_token;
  };

  // With port 0: the port of the last time, if it is free, so that an open page finds a restarted coordinator.
  // Errors as HttpServer::Listen and Sessions::Open.
  static absl::StatusOr<std::unique_ptr<Web>> Listen(const Options& options, const Clock* clock);
  ~Web();

  rpc::SignIns& sign_ins() { return *sign_ins_; }
  // "http://127.0.0.1:7080"
  const std::string& url() const { return sign_ins_->url(); }

  // `channel`: to the coordinator's services in this process. Call once.
  void Serve(const std::shared_ptr<grpc::Channel>& channel);
  // Closes all connections and cancels their calls.
  void Stop() { server_->Stop(); }

 private:
  Web(Options options, std::unique_ptr<HttpServer> server, std::unique_ptr<Sessions> sessions, const Clock* clock);
  void Answer(const std::shared_ptr<Exchange>& exchange);
  void AnswerApi(const std::shared_ptr<Exchange>& exchange);
  void ReplyAsset(const std::shared_ptr<Exchange>& exchange, const std::string& name) const;
  void SignIn(const std::shared_ptr<Exchange>& exchange);
  void Admit(const std::shared_ptr<Exchange>& exchange, const rpc::Credential& credential);
  void SignOut(const std::shared_ptr<Exchange>& exchange);
  std::string SessionIdOf(const HttpRequest& request) const;
  std::string CookieOf(const HttpRequest& request, const std::string& id, absl::Duration life) const;
  absl::Status CheckHost(const HttpRequest& request) const;
  absl::Status CheckOrigin(const HttpRequest& request) const;

  const Options options_;
  const bool loopback_;
  const std::string cookie_;  // its name: cookies do not tell ports apart
  const std::unique_ptr<Sessions> sessions_;
  const std::unique_ptr<rpc::SignIns> sign_ins_;
  std::unique_ptr<Api> api_;  // set by Serve, before the first request
  const std::unique_ptr<HttpServer> server_;
};

}  // namespace muster::web
