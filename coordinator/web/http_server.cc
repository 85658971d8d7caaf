#include "coordinator/web/http_server.h"

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <deque>
#include <optional>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log/log.h"
#include "common/mutex.h"
#include "common/tls/endpoint.h"

namespace muster::web {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
namespace ssl = asio::ssl;
using tcp = asio::ip::tcp;
using PlainStream = beast::tcp_stream;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

auto Chrono(absl::Duration duration) { return absl::ToChronoMilliseconds(duration); }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

absl::StatusOr<std::unique_ptr<ssl::context>> LoadContext(const HttpServer::Options& options) {
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  beast::error_code error;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                           ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1,
                       error);
  if (!error) context->use_certificate_chain_file(options.certificate_file, error);
  if (!error) context->use_private_key_file(options.key_file, ssl::context::pem, error);
  if (!error) return context;
  return absl::InvalidArgumentError(
      absl::StrCat("cannot use the certificate ", options.certificate_file, ": ", error.message()));
}

bool ParseTarget(std::string_view target, HttpRequest& out) {
  const size_t mark = target.find('?');
  out.path = std::string(target.substr(0, mark));
  if (out.path.empty() || out.path[0] != '/') return false;
  if (mark == std::string_view::npos) return true;
  for (const absl::string_view pair :
       absl::StrSplit(absl::string_view(target.data() + mark + 1, target.size() - mark - 1), '&', absl::SkipEmpty())) {
    const size_t equals = std::min(pair.find('='), pair.size());
    std::string name, value;
    if (!PercentDecode({pair.data(), equals}, true, name)) return false;
    const absl::string_view rest = equals < pair.size() ? pair.substr(equals + 1) : "";
    if (!PercentDecode({rest.data(), rest.size()}, true, value)) return false;
    out.query[name] = std::move(value);
  }
  return true;
}

}  // namespace

bool PercentDecode(std::string_view text, bool plus, std::string& out) {
  out.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (plus && c == '+') {
      c = ' ';
    }
    if (c == '\0') return false;
    out += c;
  }
  return true;
}

std::string HttpRequest::Field(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

std::string HttpRequest::Query(const std::string& name) const {
  const auto found = query.find(name);
  return found == query.end() ? "" : found->second;
}

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  explicit Impl(const Options& options) : options_(options), context_(1), acceptor_(context_) {}

  absl::Status Open() {
    const absl::StatusOr<tls::Endpoint> endpoint = tls::ParseEndpoint(options_.address);
    uint32_t port = 0;
    beast::error_code error;
    asio::ip::address host;
    if (endpoint.ok())
      host = asio::ip::make_address(endpoint->host == "localhost" ? "127.0.0.1" : endpoint->host, error);
    if (!endpoint.ok() || error || !absl::SimpleAtoi(endpoint->port, &port)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", options_.address, "\" is not an address for the web page: expected 127.0.0.1:PORT, or ",
                       "0.0.0.0:PORT after `muster coordinator init`"));
    }
    if (encrypted()) {
      absl::StatusOr<std::unique_ptr<ssl::context>> loaded = LoadContext(options_);
      if (!loaded.ok()) return loaded.status();
      tls_ = *std::move(loaded);
      loaded_at_ = absl::Now();
    }
    const tcp::endpoint at(host, static_cast<uint16_t>(port));
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("cannot serve the web page at ", options_.address, ": ",
                                                 error.message(), "; is the port taken? `ss -ltnp` shows the process"));
    }
    const tcp::endpoint bound = acceptor_.local_endpoint();
    const std::string text = bound.address().to_string();
    address_ = absl::StrCat(bound.address().is_v6() ? absl::StrCat("[", text, "]") : text, ":", bound.port());
    return absl::OkStatus();
  }

  void Serve(Handler handler) {
    handler_ = std::move(handler);
    Accept();
    thread_ = std::thread([this] { context_.run(); });
  }

  void Stop();

  // Runs `work` on the thread. False: after Stop, it is dropped, or it would keep what it holds for ever.
  template <typename Work>
  bool Post(Work work) {
    const MutexLock lock(mutex_);
    if (!stopped_) asio::post(context_, std::move(work));
    return !stopped_;
  }

  bool encrypted() const { return !options_.certificate_file.empty(); }
  const std::string& address() const { return address_; }
  const Options& options() const { return options_; }
  asio::io_context& context() { return context_; }
  const Handler& handler() const { return handler_; }

  class Closable {
   public:
    virtual ~Closable() = default;
    virtual void Close() = 0;
  };
  std::map<Closable*, std::shared_ptr<Closable>> open_;  // the thread's
  std::atomic<size_t> connections_ = 0;
  size_t streams_ = 0;                       // the thread's
  std::map<uint64_t, Closable*> strangers_;  // the thread's; by age
  uint64_t arrived_ = 0;                     // the thread's

 private:
  void Accept();
  void Reload();

  const Options options_;
  asio::io_context context_;
  tcp::acceptor acceptor_;
  std::shared_ptr<ssl::context> tls_;
  absl::Time loaded_at_;
  std::string address_;
  Handler handler_;
  std::thread thread_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

namespace {

// One connection. Its pending handlers, and whoever answers its request, keep it alive.
template <typename Stream>
class Connection final : public Exchange,
                         public HttpServer::Impl::Closable,
                         public std::enable_shared_from_this<Connection<Stream>> {
 public:
  Connection(std::shared_ptr<HttpServer::Impl> server, Stream stream, std::shared_ptr<ssl::context> tls)
      : server_(std::move(server)), tls_(std::move(tls)), stream_(std::move(stream)), timer_(server_->context()) {
    ++server_->connections_;
  }
  ~Connection() override { --server_->connections_; }

  void Start() {
    server_->open_[this] = this->shared_from_this();
    server_->strangers_[number_ = ++server_->arrived_] = this;
    if (server_->strangers_.size() > server_->options().strangers) server_->strangers_.begin()->second->Close();
    if (!open()) return;  // not even one stranger may come
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      beast::get_lowest_layer(stream_).expires_after(Chrono(server_->options().request_patience));
      stream_.async_handshake(ssl::stream_base::server, [self = this->shared_from_this()](beast::error_code error) {
        if (error) return self->Close();
        self->Read();
      });
    } else {
      Read();
    }
  }

  // ---- Exchange ----
  const HttpRequest& request() const override { return request_; }

  void AddField(std::string name, std::string value) override {
    added_.emplace_back(std::move(name), std::move(value));
  }

  void SetKnown() override {
    server_->Post([self = this->shared_from_this()] { self->server_->strangers_.erase(self->number_); });
  }

  void Reply(HttpResponse response) override {
    server_->Post([self = this->shared_from_this(), response = std::move(response)]() mutable {
      self->Send(std::move(response));
    });
  }

  bool Begin(std::function<void()> closed) override {
    if (server_->streams_ >= server_->options().streams) {
      Send({503, {{"Content-Type", "text/plain; charset=utf-8"}}, "too many streams are open\n"});
      return false;
    }
    ++server_->streams_;
    streaming_ = true;
    closed_ = std::move(closed);
    std::string head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n";
    for (const auto& [name, value] : added_) absl::StrAppend(&head, name, ": ", value, "\r\n");
    absl::StrAppend(&head, "\r\n");
    beast::get_lowest_layer(stream_).expires_never();
    WriteText(std::move(head), nullptr);
    WatchForEnd();
    Tick();
    return true;
  }

  void Write(std::string text, std::function<void(bool)> done) override {
    const bool posted = server_->Post([self = this->shared_from_this(), text = std::move(text), done]() mutable {
      self->WriteText(std::move(text), std::move(done));
    });
    if (!posted && done != nullptr) done(false);
  }

  void End() override {
    server_->Post([self = this->shared_from_this()] { self->ending_ = true, self->Next(); });
  }

  // ---- Closable; on the thread ----
  void Close() override {
    const auto self = this->shared_from_this();
    if (server_->open_.erase(this) == 0) return;
    server_->strangers_.erase(number_);
    timer_.cancel();
    beast::error_code ignored;
    beast::get_lowest_layer(stream_).socket().shutdown(tcp::socket::shutdown_both, ignored);
    beast::get_lowest_layer(stream_).close();
    if (streaming_) --server_->streams_;
    std::deque<Part> parts = std::move(parts_);
    parts_.clear();
    for (Part& part : parts) {
      if (part.done != nullptr) part.done(false);
    }
    if (closed_ != nullptr) std::exchange(closed_, nullptr)();
  }

 private:
  struct Part {
    std::string text;
    std::function<void(bool)> done;
  };

  bool open() const { return server_->open_.contains(const_cast<Connection*>(this)); }

  void Read() {
    parser_.emplace();
    parser_->header_limit(server_->options().header_bytes);
    parser_->body_limit(server_->options().body_bytes);
    added_.clear();
    beast::get_lowest_layer(stream_).expires_after(Chrono(server_->options().request_patience));
    http::async_read(stream_, buffer_, *parser_,
                     [self = this->shared_from_this()](beast::error_code error, size_t) { self->OnRequest(error); });
  }

  void OnRequest(beast::error_code error) {
    if (!open()) return;
    if (error == http::error::header_limit) return Refuse(431, "the header is too large");
    if (error == http::error::body_limit) return Refuse(413, "the body is too large");
    if (error == http::error::end_of_stream || error == beast::error::timeout ||
        error == asio::error::operation_aborted || error == asio::error::connection_reset ||
        error == asio::error::eof) {
      return Close();
    }
    if (error) return Refuse(400, "this is not an HTTP/1.1 request");
    const auto& message = parser_->get();
    keep_alive_ = message.keep_alive();
    version_ = message.version();
    request_ = {};
    request_.encrypted = server_->encrypted();
    beast::error_code gone;
    const tcp::endpoint peer = beast::get_lowest_layer(stream_).socket().remote_endpoint(gone);
    if (!gone) request_.peer = absl::StrCat(peer.address().to_string(), ":", peer.port());
    request_.method = std::string(message.method_string());
    for (const auto& field : message) {
      std::string& value = request_.fields[absl::AsciiStrToLower(std::string(field.name_string()))];
      absl::StrAppend(&value, value.empty() ? "" : ", ", std::string(field.value()));
    }
    request_.body = message.body();
    const std::string target(message.target());
    if (!ParseTarget(target, request_)) return Refuse(400, "the target of the request is malformed");
    beast::get_lowest_layer(stream_).expires_never();
    server_->handler()(this->shared_from_this());
  }

  void Refuse(int status, std::string why) {
    keep_alive_ = false;
    Send({status, {{"Content-Type", "text/plain; charset=utf-8"}}, std::move(why) + "\n"});
  }

  void Send(HttpResponse from) {
    if (!open()) return;
    response_ = {};
    response_.version(version_);
    response_.result(static_cast<unsigned>(from.status));
    for (const auto& [name, value] : from.fields) response_.insert(name, value);
    for (const auto& [name, value] : added_) response_.insert(name, value);
    response_.keep_alive(keep_alive_);
    response_.body() = std::move(from.body);
    response_.prepare_payload();
    if (request_.method == "HEAD") response_.body().clear();
    beast::get_lowest_layer(stream_).expires_after(Chrono(server_->options().write_patience));
    http::async_write(stream_, response_, [self = this->shared_from_this()](beast::error_code error, size_t) {
      if (error || !self->keep_alive_) return self->Close();
      if (self->open()) self->Read();
    });
  }

  void WriteText(std::string text, std::function<void(bool)> done) {
    if (!open() || ending_) {
      if (done != nullptr) done(false);
      return;
    }
    parts_.push_back({std::move(text), std::move(done)});
    Next();
  }

  void Next() {
    if (writing_ || !open()) return;
    if (parts_.empty()) {
      if (ending_) Close();
      return;
    }
    writing_ = true;
    progress_ = absl::Now();
    current_ = std::move(parts_.front());
    parts_.pop_front();
    asio::async_write(stream_, asio::buffer(current_.text),
                      [self = this->shared_from_this()](beast::error_code error, size_t) {
                        self->writing_ = false;
                        self->progress_ = absl::Now();
                        if (error) self->Close();
                        const auto done = std::move(self->current_.done);
                        self->current_ = {};
                        if (done != nullptr) done(!error && self->open());
                        self->Next();
                      });
  }

  // A reader of a stream sends nothing more; the end of the connection arrives as an error.
  void WatchForEnd() {
    stream_.async_read_some(asio::buffer(ignored_), [self = this->shared_from_this()](beast::error_code error, size_t) {
      if (error || ++self->unasked_ > 16) return self->Close();
      if (self->open()) self->WatchForEnd();
    });
  }

  void Tick() {
    const absl::Duration patience = server_->options().write_patience, beat = server_->options().heartbeat;
    timer_.expires_after(Chrono(std::min(patience, beat) / 2));
    timer_.async_wait([self = this->shared_from_this(), patience, beat](beast::error_code error) {
      if (error || !self->open()) return;
      const absl::Duration since = absl::Now() - self->progress_;
      if (self->writing_ && since > patience) return self->Close();
      if (!self->writing_ && since > beat) self->WriteText(":\n\n", nullptr);
      self->Tick();
    });
  }

  const std::shared_ptr<HttpServer::Impl> server_;
  const std::shared_ptr<ssl::context> tls_;  // of a connection that began before a reload
  Stream stream_;
  asio::steady_timer timer_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> response_;
  HttpRequest request_;
  std::vector<std::pair<std::string, std::string>> added_;
  bool keep_alive_ = false;
  unsigned version_ = 11;
  uint64_t number_ = 0;
  // Of a stream.
  bool streaming_ = false, writing_ = false, ending_ = false;
  std::function<void()> closed_;
  std::deque<Part> parts_;
  Part current_;
  absl::Time progress_ = absl::Now();
  char ignored_[256] = {};
  int unasked_ = 0;
};

}  // namespace

void HttpServer::Impl::Reload() {
  if (!encrypted() || absl::Now() - loaded_at_ < options_.reload) return;
  loaded_at_ = absl::Now();
  absl::StatusOr<std::unique_ptr<ssl::context>> loaded = LoadContext(options_);
  if (loaded.ok()) {
    tls_ = *std::move(loaded);
  } else {
    LogWarn("the web page goes on with its earlier certificate", {{"error", loaded.status()}});
  }
}

void HttpServer::Impl::Accept() {
  acceptor_.async_accept([this, self = shared_from_this()](beast::error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
    if (error) {
      // Out of descriptors, mostly: the next attempt would fail at once.
      auto timer = std::make_shared<asio::steady_timer>(context_, std::chrono::milliseconds(100));
      timer->async_wait([this, self, timer](beast::error_code) {
        if (acceptor_.is_open()) Accept();
      });
      return;
    }
    if (connections_ < options_.connections) {
      beast::error_code ignored;
      socket.set_option(tcp::no_delay(true), ignored);
      if (encrypted()) {
        Reload();
        std::make_shared<Connection<TlsStream>>(self, TlsStream(std::move(socket), *tls_), tls_)->Start();
      } else {
        std::make_shared<Connection<PlainStream>>(self, PlainStream(std::move(socket)), nullptr)->Start();
      }
    }
    Accept();
  });
}

void HttpServer::Impl::Stop() {
  {
    const MutexLock lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    asio::post(context_, [this] {
      beast::error_code ignored;
      acceptor_.close(ignored);
      const std::map<Closable*, std::shared_ptr<Closable>> open = open_;
      for (const auto& [session, keeper] : open) session->Close();
    });
  }
  // Without connections nothing is left to do, and run() returns.
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const Options& options) {
  auto impl = std::make_shared<Impl>(options);
  if (absl::Status status = impl->Open(); !status.ok()) return status;
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { impl_->Stop(); }
void HttpServer::Serve(Handler handler) { impl_->Serve(std::move(handler)); }
void HttpServer::Stop() { impl_->Stop(); }
const std::string& HttpServer::address() const { return impl_->address(); }
size_t HttpServer::connections() const { return impl_->connections_; }

}  // namespace muster::web
