#include "coordinator/outbound/http.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/version.h"

namespace muster::outbound {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

constexpr absl::Duration kLook = absl::Milliseconds(50);  // for `stop`

std::string AbsoluteHost(const Url& url) {
  const std::string host = absl::StrContains(url.host, ":") ? absl::StrCat("[", url.host, "]") : url.host;
  return url.port == (url.encrypted ? "443" : "80") ? host : absl::StrCat(host, ":", url.port);
}

// One exchange over one connection.
template <typename Stream>
class Exchange {
 public:
  Exchange(Stream stream, asio::io_context& context, const HttpRequest& request,
           http::request<http::string_body> message)
      : stream_(std::move(stream)), resolver_(context), request_(request), message_(std::move(message)) {}

  void Start() {
    resolver_.async_resolve(
        request_.url.host, request_.url.port, [this](beast::error_code error, const Tcp::resolver::results_type& to) {
          if (error) return Fail("the host is not found", error);
          beast::get_lowest_layer(stream_).async_connect(to, [this](beast::error_code failed, const Tcp::endpoint&) {
            if (failed) return Fail("no connection", failed);
            Greet();
          });
        });
  }

  // None: it has not ended.
  const std::optional<absl::StatusOr<HttpReply>>& result() const { return result_; }

 private:
  void Fail(const char* what, beast::error_code error) {
    result_ = absl::UnavailableError(absl::StrCat(what, ": ", error.message()));
  }

  void Greet() {
    if constexpr (std::is_same_v<Stream, beast::tcp_stream>) {
      Write();
    } else {
      stream_.async_handshake(asio::ssl::stream_base::client, [this](beast::error_code error) {
        if (error) return Fail("the TLS handshake failed", error);
        Write();
      });
    }
  }

  void Write() {
    http::async_write(stream_, message_, [this](beast::error_code error, size_t) {
      if (error) return Fail("sending failed", error);
      if (request_.most_reply_bytes == 0) {
        parser_.body_limit(boost::none);
        http::async_read_header(stream_, buffer_, parser_, [this](beast::error_code read, size_t) { Finish(read); });
      } else {
        parser_.body_limit(request_.most_reply_bytes);
        http::async_read(stream_, buffer_, parser_, [this](beast::error_code read, size_t) { Finish(read); });
      }
    });
  }

  void Finish(beast::error_code error) {
    if (error) return Fail("no answer", error);
    result_ = HttpReply{static_cast<int>(parser_.get().result_int()), std::move(parser_.get().body())};
  }

  Stream stream_;
  Tcp::resolver resolver_;
  const HttpRequest& request_;
  http::request<http::string_body> message_;
  beast::flat_buffer buffer_;
  http::response_parser<http::string_body> parser_;
  std::optional<absl::StatusOr<HttpReply>> result_;
};

template <typename Stream>
absl::StatusOr<HttpReply> RunExchange(asio::io_context& context, Exchange<Stream>& exchange, absl::Duration timeout,
                                      const absl::Notification& stop) {
  exchange.Start();
  const RealClock clock;
  const SteadyTime deadline = clock.Read().steady + timeout;
  while (!exchange.result().has_value()) {
    if (stop.HasBeenNotified()) return absl::CancelledError("the coordinator stops");
    if (clock.Read().steady >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("no answer within ", absl::FormatDuration(timeout)));
    }
    context.run_one_for(absl::ToChronoMilliseconds(kLook));
  }
  return *exchange.result();
}

// Throws where the process has no descriptor left.
absl::StatusOr<HttpReply> Attempt(const HttpRequest& request, const http::request<http::string_body>& message,
                                  const absl::Notification& stop) {
  if (!request.url.encrypted) {
    asio::io_context context;
    Exchange<beast::tcp_stream> plain(beast::tcp_stream(context), context, request, message);
    return RunExchange(context, plain, request.timeout, stop);
  }
  asio::ssl::context tls(asio::ssl::context::tls_client);
  tls.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  beast::error_code error;
  if (request.ca_file.empty()) {
    tls.set_default_verify_paths(error);
  } else {
    tls.load_verify_file(request.ca_file, error);
  }
  if (error) return absl::InternalError(absl::StrCat("the authorities cannot be read: ", error.message()));
  tls.set_verify_mode(asio::ssl::verify_peer);
  asio::io_context context;
  beast::ssl_stream<beast::tcp_stream> stream(context, tls);
  stream.set_verify_callback(asio::ssl::host_name_verification(request.url.host));
  if (!SSL_set_tlsext_host_name(stream.native_handle(), request.url.host.c_str())) {
    return absl::InternalError("the host cannot be named in TLS");
  }
  Exchange<beast::ssl_stream<beast::tcp_stream>> encrypted(std::move(stream), context, request, message);
  return RunExchange(context, encrypted, request.timeout, stop);
}

}  // namespace

absl::StatusOr<Url> ParseUrl(const std::string& text) {
  absl::string_view rest = text;
  Url url;
  url.encrypted = absl::ConsumePrefix(&rest, "https://");
  if (!url.encrypted && !absl::ConsumePrefix(&rest, "http://")) {
    return absl::InvalidArgumentError("expected http://HOST[:PORT][/PATH], or https");
  }
  const bool plain = std::all_of(rest.begin(), rest.end(), [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (!plain || absl::StrContains(rest, "#")) {
    return absl::InvalidArgumentError("the URL has a fragment, a space or a non-ASCII character");
  }
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  absl::string_view place = rest.substr(0, end);
  url.target = std::string(rest.substr(end));
  if (url.target.empty() || url.target[0] == '?') url.target.insert(0, "/");
  if (absl::StrContains(place, "@")) {
    return absl::InvalidArgumentError("a user or a password in a URL is shown in too many places: use secret_file");
  }
  size_t colon = place.rfind(':');
  if (absl::StartsWith(place, "[")) {
    const size_t close = place.find(']');
    if (close == absl::string_view::npos) return absl::InvalidArgumentError("the host has no ]");
    url.host = std::string(place.substr(1, close - 1));
    colon = close + 1 < place.size() ? close + 1 : absl::string_view::npos;
    if (colon != absl::string_view::npos && place[colon] != ':')
      return absl::InvalidArgumentError("expected [HOST]:PORT");
  } else {
    url.host = std::string(place.substr(0, colon));
  }
  url.port = colon == absl::string_view::npos ? (url.encrypted ? "443" : "80") : std::string(place.substr(colon + 1));
  uint32_t port = 0;
  if (url.host.empty() || !absl::SimpleAtoi(url.port, &port) || port == 0 || port > 65535) {
    return absl::InvalidArgumentError("expected http://HOST[:PORT][/PATH], or https");
  }
  return url;
}

absl::StatusOr<HttpReply> Send(const HttpRequest& request, const absl::Notification& stop) {
  http::request<http::string_body> message(http::string_to_verb(request.method), request.url.target, 11);
  message.set(http::field::host, AbsoluteHost(request.url));
  message.set(http::field::user_agent, absl::StrCat("muster/", kVersion));
  message.set(http::field::content_type, "application/json");
  message.set(http::field::connection, "close");
  for (const auto& [name, value] : request.fields) message.set(name, value);
  message.body() = request.body;
  message.prepare_payload();
  try {
    return Attempt(request, message, stop);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot send: ", error.what()));
  }
}

}  // namespace muster::outbound
