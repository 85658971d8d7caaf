// The file of `muster-coordinator --notify`: which events go where.
//
//   notify:
//   - name: ops
//     webhook: {url: "https://hooks.example.com/muster", secret_file: /etc/muster/ops.secret}
//     events: [job.failed, node, slot.stuck]
//   - name: mail
//     command: [/etc/muster/mail, ops@example.com]
//     events: [job.failed]
//     users: [ann]
//     projects: [nlp]
//
// Thread-safe after construction.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/outbound/http.h"
#include "coordinator/server/feed.h"
#include "proto/job.pb.h"

namespace muster::notify {

using outbound::ParseUrl;
using outbound::Url;

struct Webhook {
  Url url;
  std::string secret_file;  // empty: requests are not signed
  std::string ca_file;      // PEM of who signed the server's certificate; empty: the system's
};

struct Destination {
  std::string name;
  // One of the two.
  std::optional<Webhook> webhook;
  std::vector<std::string> command;
  absl::Duration timeout = absl::Seconds(10);      // of one attempt
  absl::Duration give_up_after = absl::Hours(24);  // of one notice; later ones wait for it
  std::vector<std::string> events;                 // "job.failed", or "job": all that begin so; "all"
  std::vector<std::string> users, projects;        // not empty: only events of jobs of these
};

// What is known of an event.
struct Notice {
  std::string id;      // unique, and the same when it is sent again
  std::string cursor;  // the place after it in the stream
  StateEvent event;
  std::string user, project;  // of its job
  std::vector<std::string> labels;
};

// The events of a page, in order.
std::vector<Notice> NoticesOf(const server::Feed::Page& page);

bool Wants(const Destination& destination, const Notice& notice);

// InvalidArgument: the message names the line, or the entry and its key.
absl::StatusOr<std::vector<Destination>> ParseConfig(const std::string& text);
// Checks the files that it names, too. NotFound; PermissionDenied: a secret that others may read, a program that cannot
// be run, or this file or a program that others may write to; InvalidArgument: also a secret that is none.
absl::StatusOr<std::vector<Destination>> LoadConfig(const std::string& path);

}  // namespace muster::notify
