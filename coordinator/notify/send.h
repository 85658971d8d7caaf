// One attempt to deliver one notice, by HTTP or by a command. Both end early when `stop` is notified.
//
// Requests are signed as Standard Webhooks says (github.com/standard-webhooks/standard-webhooks, 1.0.0): `webhook-id`,
// `webhook-timestamp`, and `webhook-signature`, "v1," and the base64 of HMAC-SHA256 over "ID.TIMESTAMP.BODY".
//
// Thread-safe.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "coordinator/notify/config.h"

namespace muster::notify {

// {"id": ..., "time": ..., "kind": "job.failed", "message": ..., "job": ..., "user": ..., ...}, in one line.
std::string BodyOf(const Notice& notice);

// `secret`: "whsec_" and base64, else as it is.
std::string SignatureOf(const std::string& secret, const std::string& id, int64_t timestamp, const std::string& body);

// OK: a status of 2xx, whatever becomes of the body. InvalidArgument: the receiver will never take it (400, 413, 422).
// Unavailable, DeadlineExceeded, Internal: another attempt may succeed. Redirections are not followed. Messages have no
// URL, since that may be a secret.
absl::Status PostNotice(const Webhook& webhook, absl::Duration timeout, const Notice& notice,
                        const absl::Notification& stop);

// Runs the program with the body as its standard input, in a process group of its own, as the coordinator's user. OK:
// it exited with 0. Internal: it did not, with the end of what it printed. DeadlineExceeded: its process group was
// killed.
absl::Status RunCommand(const std::vector<std::string>& command, absl::Duration timeout, const std::string& body,
                        const absl::Notification& stop);

}  // namespace muster::notify
