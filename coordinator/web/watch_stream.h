// What a page follows, as one stream of server-sent events. A browser opens six connections to a host at most, so a
// page opens one stream for all its kinds of items.
//
// A page reads a job's events, metrics and logs by calls of their own, each of which ends at a position of its own. The
// stream goes on from each: it is one Jobs.Watch for each kind, and the id of an event has the positions of all of
// them, so that nothing is sent twice or left out when the browser connects again.
//
//   absl::StatusOr<std::vector<Channel>> channels = ChannelsOf(request, job);
//   StreamWatches(stub, token, *channels, exchange);
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/web/http_server.h"
#include "proto/jobs_service.grpc.pb.h"

namespace muster::web {

struct Channel {
  std::string name;  // "events", "metrics", "logs"; "": the only one, of whatever its request asks for
  WatchRequest request;
};

// The watches that a request for a stream asks for, of a job, or with an empty `job` of all jobs and nodes. They begin
// after Last-Event-ID, else after `cursor` in the query: a cursor of Jobs.Watch, or "events:C,metrics:C,logs:C" with a
// cursor for each kind, where what is not named or empty begins at the beginning.
// InvalidArgument: a number is none, or a kind is unknown.
absl::StatusOr<std::vector<Channel>> ChannelsOf(const HttpRequest& request, const std::string& job);

// Sends the items of all channels until each has ended, then the event "end"; until one fails, then the event "refused"
// with its error. A coordinator that shuts down ends it without either, and the browser connects again. `closed` is
// called once, on the server's thread, when the stream has ended; also if it could not begin.
// On the server's thread.
void StreamWatches(Jobs::Stub& jobs, const std::string& token, const std::vector<Channel>& channels,
                   const std::shared_ptr<Exchange>& exchange, const std::function<void()>& closed);

}  // namespace muster::web
