#include "common/metrics/endpoint.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;

constexpr auto kPatience = std::chrono::seconds(10);  // for the request, and for sending the response
constexpr int kMaxConnections = 16;
constexpr uint32_t kMaxHeaderBytes = 16 << 10;
constexpr uint64_t kMaxPageBytes = 64 << 20;

absl::StatusOr<tcp::endpoint> Parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  uint32_t port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not an address for metrics: expected 127.0.0.1:PORT or [::1]:PORT"));
  }
  if (host == "localhost") host = "127.0.0.1";
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  beast::error_code error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not an address for metrics: expected 127.0.0.1:PORT or [::1]:PORT"));
  }
  return tcp::endpoint(address, static_cast<uint16_t>(port));
}

}  // namespace

class MetricsEndpoint::Server {
 public:
  Server(std::unique_ptr<asio::io_context> context, tcp::acceptor acceptor, Page page)
      : context_(std::move(context)), acceptor_(std::move(acceptor)), page_(std::move(page)) {
    const tcp::endpoint bound = acceptor_.local_endpoint();
    const std::string host = bound.address().to_string();
    address_ = absl::StrCat(bound.address().is_v6() ? absl::StrCat("[", host, "]") : host, ":", bound.port());
    Accept();
    thread_ = std::thread([this] { context_->run(); });
  }

  ~Server() {
    context_->stop();
    thread_.join();
  }

  const std::string& address() const { return address_; }

 private:
  // One connection: one request and its response at a time. The pending handler keeps it alive.
  class Session : public std::enable_shared_from_this<Session> {
   public:
    Session(tcp::socket socket, Server* server) : stream_(std::move(socket)), server_(server) {
      ++server_->connections_;
    }
    ~Session() { --server_->connections_; }

    void Read() {
      parser_.emplace();
      parser_->header_limit(kMaxHeaderBytes);
      parser_->body_limit(0);
      stream_.expires_after(kPatience);
      http::async_read(stream_, buffer_, *parser_, [self = shared_from_this()](beast::error_code error, size_t) {
        if (!error) self->Answer();
      });
    }

   private:
    void Answer() {
      const auto& request = parser_->get();
      const bool get = request.method() == http::verb::get || request.method() == http::verb::head;
      response_ = {};
      response_.version(request.version());
      response_.keep_alive(request.keep_alive());
      response_.set(http::field::content_type, "text/plain; charset=utf-8");
      if (!get) {
        response_.result(http::status::method_not_allowed);
        response_.set(http::field::allow, "GET, HEAD");
        response_.body() = "only GET\n";
      } else if (request.target() != "/metrics") {
        response_.result(http::status::not_found);
        response_.body() = "only /metrics is here\n";
      } else if (absl::StatusOr<std::string> page = server_->page_(); page.ok()) {
        response_.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
        response_.body() = *std::move(page);
      } else {
        response_.result(http::status::service_unavailable);
        response_.body() = absl::StrCat(page.status().message(), "\n");
      }
      response_.prepare_payload();
      if (request.method() == http::verb::head) response_.body().clear();
      stream_.expires_after(kPatience);
      http::async_write(stream_, response_, [self = shared_from_this()](beast::error_code error, size_t) {
        if (!error && self->response_.keep_alive()) self->Read();
      });
    }

    beast::tcp_stream stream_;
    Server* const server_;
    beast::flat_buffer buffer_;
    std::optional<http::request_parser<http::empty_body>> parser_;
    http::response<http::string_body> response_;
  };

  void Accept() {
    acceptor_.async_accept([this](beast::error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (!error && connections_ < kMaxConnections) std::make_shared<Session>(std::move(socket), this)->Read();
      Accept();
    });
  }

  int connections_ = 0;  // used by the thread; outlives the sessions that the context still holds
  const std::unique_ptr<asio::io_context> context_;
  tcp::acceptor acceptor_;
  const Page page_;
  std::string address_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Start(const std::string& address, Reach reach,
                                                                        Page page) {
  const absl::StatusOr<tcp::endpoint> endpoint = Parse(address);
  if (!endpoint.ok()) return endpoint.status();
  if (reach == Reach::kThisMachine && !endpoint->address().is_loopback()) {
    return absl::FailedPreconditionError(
        absl::StrCat("metrics at ", address,
                     " would be open to the network without TLS or a password: use a loopback address, or accept that "
                     "with --allow-remote-metrics"));
  }
  auto context = std::make_unique<asio::io_context>(1);
  tcp::acceptor acceptor(*context);
  beast::error_code error;
  acceptor.open(endpoint->protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(*endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot serve metrics at ", address, ": ", error.message(),
                                               "; is the port taken? `ss -ltnp` shows the process"));
  }
  return std::unique_ptr<MetricsEndpoint>(
      new MetricsEndpoint(std::make_unique<Server>(std::move(context), std::move(acceptor), std::move(page))));
}

MetricsEndpoint::MetricsEndpoint(std::unique_ptr<Server> server) : server_(std::move(server)) {}

MetricsEndpoint::~MetricsEndpoint() = default;

const std::string& MetricsEndpoint::address() const { return server_->address(); }

absl::StatusOr<std::string> FetchMetrics(const std::string& address, absl::Duration timeout) {
  absl::StatusOr<tcp::endpoint> endpoint = Parse(address);
  if (!endpoint.ok()) return endpoint.status();
  if (endpoint->address().is_unspecified()) {
    endpoint->address(endpoint->address().is_v6() ? asio::ip::address(asio::ip::address_v6::loopback())
                                                  : asio::ip::address(asio::ip::address_v4::loopback()));
  }
  asio::io_context context(1);
  beast::tcp_stream stream(context);
  stream.expires_after(absl::ToChronoNanoseconds(timeout));
  http::request<http::empty_body> request(http::verb::get, "/metrics", 11);
  request.set(http::field::host, address);
  request.set(http::field::connection, "close");
  http::response_parser<http::string_body> response;
  response.body_limit(kMaxPageBytes);
  beast::flat_buffer buffer;
  beast::error_code error;
  stream.async_connect(*endpoint, [&](beast::error_code connected) {
    if ((error = connected)) return;
    http::async_write(stream, request, [&](beast::error_code written, size_t) {
      if ((error = written)) return;
      http::async_read(stream, buffer, response, [&](beast::error_code read, size_t) { error = read; });
    });
  });
  context.run();
  if (error)
    return absl::UnavailableError(absl::StrCat("no daemon serves metrics at ", address, ": ", error.message()));
  if (response.get().result() != http::status::ok) {
    return absl::UnavailableError(absl::StrCat("the daemon at ", address, " answers ", response.get().result_int(),
                                               ": ", absl::StripAsciiWhitespace(response.get().body())));
  }
  return response.get().body();
}

}  // namespace muster
