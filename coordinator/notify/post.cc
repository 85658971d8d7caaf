#include <openssl/evp.h>
#include <openssl/hmac.h>

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

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/file/read_file.h"
#include "common/version.h"
#include "coordinator/notify/send.h"

namespace muster::notify {
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

// One request over one connection.
template <typename Stream>
class Request {
 public:
  Request(Stream stream, asio::io_context& context, const Url& url, http::request<http::string_body> request)
      : stream_(std::move(stream)), resolver_(context), url_(url), request_(std::move(request)) {}

  void Start() {
    resolver_.async_resolve(
        url_.host, url_.port, [this](beast::error_code error, const Tcp::resolver::results_type& to) {
          if (error) return Fail("the host is not found", error);
          beast::get_lowest_layer(stream_).async_connect(to, [this](beast::error_code failed, const Tcp::endpoint&) {
            if (failed) return Fail("no connection", failed);
            Greet();
          });
        });
  }

  // None: it has not ended.
  const std::optional<absl::StatusOr<int>>& result() const { return result_; }

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
    http::async_write(stream_, request_, [this](beast::error_code error, size_t) {
      if (error) return Fail("sending failed", error);
      // The status says enough, whatever the body is and whether it comes.
      http::async_read_header(stream_, buffer_, parser_, [this](beast::error_code read, size_t) {
        if (read) return Fail("no answer", read);
        result_ = static_cast<int>(parser_.get().result_int());
      });
    });
  }

  Stream stream_;
  Tcp::resolver resolver_;
  const Url url_;
  http::request<http::string_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::empty_body> parser_;
  std::optional<absl::StatusOr<int>> result_;
};

template <typename Stream>
absl::StatusOr<int> RunRequest(asio::io_context& context, Request<Stream>& request, absl::Duration timeout,
                               const absl::Notification& stop) {
  request.Start();
  const RealClock clock;
  const SteadyTime deadline = clock.Read().steady + timeout;
  while (!request.result().has_value()) {
    if (stop.HasBeenNotified()) return absl::CancelledError("the coordinator stops");
    if (clock.Read().steady >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("no answer within ", absl::FormatDuration(timeout)));
    }
    context.run_one_for(absl::ToChronoMilliseconds(kLook));
  }
  return *request.result();
}

// Throws where the process has no descriptor left.
absl::StatusOr<int> Post(const Webhook& webhook, const http::request<http::string_body>& request,
                         absl::Duration timeout, const absl::Notification& stop) {
  if (!webhook.url.encrypted) {
    asio::io_context context;
    Request<beast::tcp_stream> plain(beast::tcp_stream(context), context, webhook.url, request);
    return RunRequest(context, plain, timeout, stop);
  }
  asio::ssl::context tls(asio::ssl::context::tls_client);
  tls.set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  beast::error_code error;
  if (webhook.ca_file.empty()) {
    tls.set_default_verify_paths(error);
  } else {
    tls.load_verify_file(webhook.ca_file, error);
  }
  if (error) return absl::InternalError(absl::StrCat("the authorities cannot be read: ", error.message()));
  tls.set_verify_mode(asio::ssl::verify_peer);
  asio::io_context context;
  beast::ssl_stream<beast::tcp_stream> stream(context, tls);
  stream.set_verify_callback(asio::ssl::host_name_verification(webhook.url.host));
  if (!SSL_set_tlsext_host_name(stream.native_handle(), webhook.url.host.c_str())) {
    return absl::InternalError("the host cannot be named in TLS");
  }
  Request<beast::ssl_stream<beast::tcp_stream>> encrypted(std::move(stream), context, webhook.url, request);
  return RunRequest(context, encrypted, timeout, stop);
}

}  // namespace

std::string SignatureOf(const std::string& secret, const std::string& id, int64_t timestamp, const std::string& body) {
  absl::string_view text = secret;
  std::string key = secret;
  if (absl::ConsumePrefix(&text, "whsec_") && !absl::Base64Unescape(text, &key)) key = secret;
  const std::string content = absl::StrCat(id, ".", timestamp, ".", body);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(content.data()),
       content.size(), digest, &size);
  return absl::StrCat("v1,", absl::Base64Escape(absl::string_view(reinterpret_cast<char*>(digest), size)));
}

absl::Status PostNotice(const Webhook& webhook, absl::Duration timeout, const Notice& notice,
                        const absl::Notification& stop) {
  http::request<http::string_body> request(http::verb::post, webhook.url.target, 11);
  request.set(http::field::host, AbsoluteHost(webhook.url));
  request.set(http::field::user_agent, absl::StrCat("muster/", kVersion));
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = BodyOf(notice);
  const int64_t timestamp = absl::ToUnixSeconds(absl::Now());
  request.set("webhook-id", notice.id);
  request.set("webhook-timestamp", absl::StrCat(timestamp));
  if (!webhook.secret_file.empty()) {
    // Read each time, so that a new secret needs no restart.
    absl::StatusOr<std::string> secret = ReadPrivateFile(webhook.secret_file);
    if (!secret.ok()) return absl::UnavailableError(secret.status().message());
    request.set("webhook-signature",
                SignatureOf(std::string(absl::StripAsciiWhitespace(*secret)), notice.id, timestamp, request.body()));
  }
  request.prepare_payload();
  absl::StatusOr<int> status = absl::UnavailableError("");
  try {
    status = Post(webhook, request, timeout, stop);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot send: ", error.what()));
  }
  if (!status.ok()) return status.status();
  if (*status / 100 == 2) return absl::OkStatus();
  const std::string message = absl::StrCat("the receiver answered with status ", *status);
  if (*status == 400 || *status == 413 || *status == 422) return absl::InvalidArgumentError(message);
  return absl::UnavailableError(message);
}

}  // namespace muster::notify
