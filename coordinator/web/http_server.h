// An HTTP/1.1 server with bounds, over TCP or TLS. It knows nothing of Muster: a handler gets each request and answers
// when it likes, with one response or with a stream of server-sent events.
//
//   absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Listen({.address = "127.0.0.1:0"});
//   (*server)->Serve([](std::shared_ptr<Exchange> exchange) { exchange->Reply({200, {}, "hello\n"}); });
//   ...
//   (*server)->Stop();
//
// Bounded: connections (further ones are closed at once; of strangers, the oldest one for a further one), the request's
// header and body, the time to send a request, the time to take a response, streams. A connection has one request at a
// time.
//
// Thread-safe. One thread of its own runs the connections and calls the handler, which does not block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster::web {

struct HttpRequest {
  std::string method;                         // "GET"
  std::string path;                           // as sent, without the query: "/api/v1/jobs/a%20b"
  std::map<std::string, std::string> query;   // decoded; of a repeated name the last
  std::map<std::string, std::string> fields;  // names in lower case; of a repeated name all, with ", "
  std::string body;
  bool encrypted = false;
  std::string peer;  // "10.0.0.7:52114"

  // Empty: it is not there.
  std::string Field(const std::string& name) const;
  std::string Query(const std::string& name) const;
};

struct HttpResponse {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> fields;
  std::string body;
};

// A request that waits for its answer. Thread-safe. When the connection breaks, what is sent is dropped.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  // Fields that the response will have besides its own. Before Reply or Begin.
  virtual void AddField(std::string name, std::string value) = 0;
  // The sender is known, so its connection is none of a stranger any more.
  virtual void SetKnown() = 0;
  // Once, unless Begin is called.
  virtual void Reply(HttpResponse response) = 0;
  // On the server's thread: begins a stream of text/event-stream. False: too many streams are open; 503 was replied.
  // `closed` is called once, on the server's thread, when the connection has ended for whatever reason.
  virtual bool Begin(std::function<void()> closed) = 0;
  // `done(true)` when the text is sent and more may follow; `done(false)` when it is dropped, at once after Stop,
  // because whoever waits for it keeps what it holds until then. Texts are sent in the order of their calls; whoever
  // streams waits for `done` before the next one, or it would fill the memory. REQUIRES: Begin returned true.
  virtual void Write(std::string text, std::function<void(bool ok)> done) = 0;
  // Ends the stream and the connection.
  virtual void End() = 0;
};

// "a%2Fb" -> "a/b"; false: not such a text, or a NUL in it. `plus`: a plus is a space, as in queries.
bool PercentDecode(std::string_view text, bool plus, std::string& out);

class HttpServer {
 public:
  struct Options {
    std::string address;  // "127.0.0.1:7080", "[::1]:0", "0.0.0.0:7080"
    // PEM files; empty: plain HTTP. Read again after `reload`, for new connections.
    std::string certificate_file;
    std::string key_file;
    absl::Duration reload = absl::Minutes(1);
    size_t connections = 256;
    size_t strangers = 128;  // connections without a request of a known sender
    size_t streams = 128;
    uint32_t header_bytes = 16 << 10;
    uint64_t body_bytes = 256 << 10;
    absl::Duration request_patience = absl::Seconds(15);  // to send a whole request, and between two
    absl::Duration write_patience = absl::Seconds(30);    // to take a response, or a part of a stream
    absl::Duration heartbeat = absl::Seconds(15);         // a comment in a stream that is idle
  };
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;

  // InvalidArgument: the address or the certificate. Unavailable: the port is in use.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const Options& options);
  ~HttpServer();

  // Accepts connections from now on. Call once.
  void Serve(Handler handler);
  // Closes all connections. The handler is not called any more.
  void Stop();

  // With the actual port: "127.0.0.1:43127".
  const std::string& address() const;
  size_t connections() const;

  class Impl;

 private:
  explicit HttpServer(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl> impl_;
};

}  // namespace muster::web
