#include "coordinator/notify/notifier.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "common/file/durable_file.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "coordinator/notify/send.h"
#include "coordinator/server/feed.h"

namespace muster::notify {
namespace {

constexpr size_t kMostCursorBytes = 128;
constexpr absl::Duration kSaveAtLeast = absl::Seconds(5);  // where events pass that the destination does not want

std::string PlaceOf(const NotifierOptions& options, const Destination& destination) {
  return absl::StrCat(options.folder, "/", destination.name);
}

}  // namespace

// One destination's thread.
class Notifier::Courier {
 public:
  // `stored`: the place on disk; empty: there is none yet.
  Courier(const NotifierOptions& options, Destination destination, std::string stored, server::Loop* loop)
      : options_(options),
        destination_(std::move(destination)),
        path_(PlaceOf(options, destination_)),
        stored_(std::move(stored)),
        feed_(std::make_shared<server::Feed>(loop, stored_, server::Feed::Options{.reader = "notices"})),
        thread_([this] { Run(); }) {}

  // Once, before Join.
  void Stop() {
    stop_.Notify();
    feed_->Close();
  }
  void Join() { thread_.join(); }

 private:
  void Run() {
    std::optional<SteadyTime> saved;
    std::string cursor = stored_;
    while (std::optional<server::Feed::Page> page = feed_->Next()) {
      const bool first = stored_.empty();
      for (const Notice& notice : NoticesOf(*page)) {
        const bool wanted = Wants(destination_, notice);
        if (wanted && !Deliver(notice)) return Save(cursor);
        cursor = notice.cursor;
        if (wanted) Save(cursor);
      }
      cursor = page->cursor;
      const SteadyTime now = clock_.Read().steady;
      if (!first && saved.has_value() && now - *saved < kSaveAtLeast) continue;
      Save(cursor);
      saved = now;
    }
    Save(cursor);
  }

  void Save(const std::string& cursor) {
    if (cursor.empty() || cursor == stored_) return;
    if (absl::Status status = WriteDurably(path_, cursor); !status.ok()) {
      LogError("cannot save the delivery position; notices may be sent twice after a restart",
               {{"destination", destination_.name}, {"error", status}});
      return;
    }
    stored_ = cursor;
  }

  absl::Status Attempt(const Notice& notice) {
    // An exception that leaves the thread would end the coordinator.
    try {
      if (destination_.webhook.has_value()) {
        return PostNotice(*destination_.webhook, destination_.timeout, notice, stop_);
      }
      return RunCommand(destination_.command, destination_.timeout, BodyOf(notice) + "\n", stop_);
    } catch (const std::exception& error) {
      return absl::UnavailableError(absl::StrCat("cannot send: ", error.what()));
    }
  }

  // False: stopped before it was delivered or given up.
  bool Deliver(const Notice& notice) {
    const SteadyTime give_up = clock_.Read().steady + destination_.give_up_after;
    for (absl::Duration pause = options_.first_pause;; pause = std::min(2 * pause, options_.longest_pause)) {
      const absl::Status status = Attempt(notice);
      if (status.ok()) return true;
      if (stop_.HasBeenNotified()) return false;
      std::vector<LogField> fields = {
          {"destination", destination_.name}, {"notice", notice.id}, {"event", notice.event.kind()}, {"error", status}};
      if (absl::IsInvalidArgument(status)) {
        LogError("the receiver refused a notice; it will not be sent again", fields);
        return true;
      }
      if (clock_.Read().steady >= give_up) {
        fields.emplace_back("after", destination_.give_up_after);
        LogError("gave up on a notice; it will not be sent again", fields);
        return true;
      }
      fields.emplace_back("retry_in", pause);
      LogWarn("notice not delivered; retrying", fields);
      if (stop_.WaitForNotificationWithTimeout(pause)) return false;
    }
  }

  const RealClock clock_;
  const NotifierOptions options_;
  const Destination destination_;
  const std::string path_;
  std::string stored_;  // the place on disk
  const std::shared_ptr<server::Feed> feed_;
  absl::Notification stop_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Notifier>> Notifier::Start(const NotifierOptions& options, server::Loop* loop) {
  if (absl::Status status = MakePrivateFolder(options.folder); !status.ok()) return status;
  // Only a place that is not there begins anew: what is pending after one that cannot be read would be lost.
  std::vector<std::string> stored;
  for (const Destination& destination : options.destinations) {
    absl::StatusOr<std::string> place = ReadWhole(PlaceOf(options, destination), kMostCursorBytes);
    if (!place.ok() && !absl::IsNotFound(place.status())) {
      return absl::Status(place.status().code(), absl::StrCat("the delivery position of notices to ", destination.name,
                                                              ": ", place.status().message()));
    }
    stored.push_back(place.ok() ? *std::move(place) : "");
  }
  std::vector<std::unique_ptr<Courier>> couriers;
  for (size_t i = 0; i < stored.size(); ++i) {
    couriers.push_back(std::make_unique<Courier>(options, options.destinations[i], stored[i], loop));
  }
  return std::unique_ptr<Notifier>(new Notifier(std::move(couriers)));
}

Notifier::Notifier(std::vector<std::unique_ptr<Courier>> couriers) : couriers_(std::move(couriers)) {}

Notifier::~Notifier() { Stop(); }

void Notifier::Stop() {
  for (const std::unique_ptr<Courier>& courier : couriers_) courier->Stop();
  for (const std::unique_ptr<Courier>& courier : couriers_) courier->Join();
  couriers_.clear();
}

}  // namespace muster::notify
