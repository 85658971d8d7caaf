#include "coordinator/web/watch_stream.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/mutex.h"
#include "coordinator/web/api.h"
#include "coordinator/web/watch_call.h"

namespace muster::web {
namespace {

constexpr absl::string_view kEvents = "events", kMetrics = "metrics", kLogs = "logs";

void Select(absl::string_view kind, WatchRequest& request) {
  if (kind == kEvents) request.set_events(true);
  if (kind == kMetrics) request.set_metrics(true);
  if (kind == kLogs) request.set_logs(true);
}

const char* KindOf(const WatchItem& item) {
  return item.has_event()      ? "state"
         : item.has_metrics()  ? "metrics"
         : item.has_log()      ? "log"
         : item.has_snapshot() ? "snapshot"
                               : "gap";
}

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(const std::vector<Channel>& channels, std::shared_ptr<Exchange> exchange)
      : exchange_(std::move(exchange)), open_(channels.size()) {
    for (const Channel& channel : channels) positions_[channel.name] = channel.request.cursor();
  }

  // On the server's thread.
  void Start(Jobs::Stub& jobs, const std::string& token, const std::vector<Channel>& channels) {
    for (const Channel& channel : channels) {
      calls_.push_back(StartWatch(
          jobs, token, channel.request, absl::InfiniteDuration(),
          [self = shared_from_this(), name = channel.name](const WatchItem& item, NextItem next) {
            self->Send(name, item, std::move(next));
          },
          [self = shared_from_this()](const absl::Status& status) { self->Ended(status); }));
    }
  }
  void Cancel() {
    for (const std::shared_ptr<WatchCall>& call : std::exchange(calls_, {})) call->Cancel();
  }

 private:
  void Send(const std::string& channel, const WatchItem& item, NextItem next) {
    const std::string body = absl::StrCat("event: ", KindOf(item), "\ndata: ", JsonOf(item), "\n\n");
    if (!Write(channel, item, body, next)) next(true);
  }

  // Whether it is written, and `next` taken. Each watch begins with the job as it is: the first of these that comes is
  // written, and so before all else that any watch has.
  bool Write(const std::string& channel, const WatchItem& item, const std::string& body, NextItem& next) {
    // Until it is written, so that what an id says was sent before it.
    const MutexLock lock(mutex_);
    if (item.has_snapshot() && std::exchange(has_snapshot_, true)) return false;
    if (!std::exchange(known_, true)) exchange_->SetKnown();
    std::string id;
    if (!item.cursor().empty()) {
      positions_[channel] = item.cursor();
      for (const auto& [name, position] : positions_) {
        absl::StrAppend(&id, id.empty() ? "id: " : ",", name, name.empty() ? "" : ":", position);
      }
      id += "\n";
    }
    exchange_->Write(id + body, std::move(next));
    return true;
  }

  void Ended(const absl::Status& status) {
    const MutexLock lock(mutex_);
    if (ended_ || (--open_ > 0 && status.ok())) return;
    ended_ = true;
    // Shutting down, or a broken connection: the browser connects again by itself.
    const bool again = absl::IsUnavailable(status) || absl::IsCancelled(status);
    if (!again) {
      exchange_->Write(status.ok() ? "event: end\ndata: {}\n\n"
                                   : absl::StrCat("event: refused\ndata: ", ErrorResponse(status).body, "\n\n"),
                       [](bool) {});
    }
    exchange_->End();
  }

  const std::shared_ptr<Exchange> exchange_;
  std::vector<std::shared_ptr<WatchCall>> calls_;  // the server's thread's
  Mutex mutex_;
  std::map<std::string, std::string> positions_ ABSL_GUARDED_BY(mutex_);  // by channel
  size_t open_ ABSL_GUARDED_BY(mutex_);                                   // channels that have not ended
  bool known_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_snapshot_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::vector<Channel>> ChannelsOf(const HttpRequest& from, const std::string& job) {
  WatchRequest base;
  base.set_job(job);
  base.set_follow(true);
  const absl::StatusOr<uint32_t> rank = NumberOf(from, "rank", 0), tail = NumberOf(from, "tail", 0);
  if (!rank.ok()) return rank.status();
  if (!tail.ok()) return tail.status();
  if (!from.Query("rank").empty()) base.set_rank(*rank);
  const std::string last = from.Field("last-event-id"), after = last.empty() ? from.Query("cursor") : last;
  std::vector<Channel> channels;
  if (!absl::StrContains(after, ":")) {
    Channel& channel = channels.emplace_back(Channel{"", base});
    for (const absl::string_view kind : {kEvents, kMetrics, kLogs}) {
      if (from.Query(std::string(kind)) == "1" || (job.empty() && kind == kEvents)) Select(kind, channel.request);
    }
    channel.request.set_cursor(after);
    if (after.empty() && !from.Query("tail").empty()) channel.request.set_tail(*tail);
    return channels;
  }
  std::map<std::string, std::string> positions;
  for (const absl::string_view part : absl::StrSplit(after, ',')) {
    const std::pair<std::string, std::string> position = absl::StrSplit(part, absl::MaxSplits(':', 1));
    if (position.first != kEvents && position.first != kMetrics && position.first != kLogs) {
      return absl::InvalidArgumentError(absl::StrCat(
          "cursor: \"", position.first, "\" is none of events, metrics and logs: expected events:C,metrics:C,logs:C"));
    }
    positions.insert(position);
  }
  for (const absl::string_view kind : {kEvents, kMetrics, kLogs}) {
    if (from.Query(std::string(kind)) != "1") continue;
    Channel& channel = channels.emplace_back(Channel{std::string(kind), base});
    Select(kind, channel.request);
    channel.request.set_cursor(positions[channel.name]);
  }
  if (!channels.empty()) return channels;
  return absl::InvalidArgumentError("cursor: expected events=1, metrics=1 or logs=1 beside a cursor for each of them");
}

void StreamWatches(Jobs::Stub& jobs, const std::string& token, const std::vector<Channel>& channels,
                   const std::shared_ptr<Exchange>& exchange, const std::function<void()>& closed) {
  const auto stream = std::make_shared<Stream>(channels, exchange);
  const auto end = [stream, closed] {
    closed();
    stream->Cancel();
  };
  if (!exchange->Begin(end)) return closed();
  exchange->Write("retry: 1000\n\n", [](bool) {});
  stream->Start(jobs, token, channels);
}

}  // namespace muster::web
