// One HTTP request with a JSON body to a server that the administrator names, over a connection of its own.
//
//   HttpRequest request{.url = ParseUrl("https://mlflow.example.com/api").value(), .body = "{}"};
//   const absl::StatusOr<HttpReply> reply = Send(request, stop);
//
// Thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace muster::outbound {

struct Url {
  bool encrypted = false;
  std::string host;    // of an IPv6 address without brackets
  std::string port;    // "443"
  std::string target;  // "/muster?x=1"
};

// "http://host[:port][/path][?query]", or https. InvalidArgument: it is none, or has a user, a password or a fragment.
absl::StatusOr<Url> ParseUrl(const std::string& text);

struct HttpRequest {
  Url url;
  std::string ca_file;  // PEM of who signed the server's certificate; empty: the system's
  std::string method = "POST";
  std::vector<std::pair<std::string, std::string>> fields;  // beside Host, User-Agent, Content-Type, Connection
  std::string body;
  absl::Duration timeout = absl::Seconds(10);
  size_t most_reply_bytes = 0;  // a longer reply is an error; 0: its body is not waited for
};

struct HttpReply {
  int status = 0;    // 200
  std::string body;  // empty with most_reply_bytes 0
};

// Any status is a reply; redirections are not followed. Unavailable: no connection, or no valid answer.
// DeadlineExceeded. Cancelled: `stop` was notified. Internal: the authorities cannot be read. Messages have no URL,
// since that may be a secret.
absl::StatusOr<HttpReply> Send(const HttpRequest& request, const absl::Notification& stop);

}  // namespace muster::outbound
