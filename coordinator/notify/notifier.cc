#include "coordinator/notify/notifier.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/file/durable_file.h"
#include "common/file/private_folder.h"
#include "common/file/read_file.h"
#include "common/log/log.h"
#include "coordinator/notify/feed.h"
#include "coordinator/notify/send.h"

namespace muster::notify {
namespace {

constexpr size_t kMostCursorBytes = 128;
constexpr absl::Duration kSaveAtLeast = absl::Seconds(5);  // where events pass that the destination does not want

}  // namespace

// One destination's thread.
class Notifier::Courier {
 public:
  Courier(const NotifierOptions& options, Destination destination, server::Loop* loop)
      : options_(options),
        destination_(std::move(destination)),
        path_(absl::StrCat(options.folder, "/", destination_.name)),
        stored_(ReadWhole(path_, kMostCursorBytes).value_or("")),
        feed_(std::make_shared<Feed>(loop, stored_)),
        thread_([this] { Run(); }) {}

  void Stop() {
    if (!thread_.joinable()) return;
    stop_.Notify();
    feed_->Close();
    thread_.join();
  }

 private:
  void Run() {
    absl::Time saved = absl::InfinitePast();
    std::string cursor = stored_;
    while (std::optional<Feed::Page> page = feed_->Next()) {
      bool delivered = stored_.empty();
      for (const Notice& notice : page->notices) {
        if (Wants(destination_, notice)) {
          if (!Deliver(notice)) return Save(cursor);
          delivered = true;
        }
        cursor = notice.cursor;
      }
      cursor = page->cursor;
      if (!delivered && absl::Now() - saved < kSaveAtLeast) continue;
      Save(cursor);
      saved = absl::Now();
    }
    Save(cursor);
  }

  void Save(const std::string& cursor) {
    if (cursor.empty() || cursor == stored_) return;
    if (absl::Status status = WriteDurably(path_, cursor); !status.ok()) {
      LogError("the place of notices cannot be stored: some may be delivered again",
               {{"destination", destination_.name}, {"error", status}});
      return;
    }
    stored_ = cursor;
  }

  absl::Status Attempt(const Notice& notice) {
    if (destination_.webhook.has_value()) {
      return PostNotice(*destination_.webhook, destination_.timeout, notice, stop_);
    }
    return RunCommand(destination_.command, destination_.timeout, BodyOf(notice) + "\n", stop_);
  }

  // False: stopped before it was delivered or given up.
  bool Deliver(const Notice& notice) {
    const absl::Time give_up = absl::Now() + destination_.give_up_after;
    for (absl::Duration pause = options_.first_pause;; pause = std::min(2 * pause, options_.longest_pause)) {
      const absl::Status status = Attempt(notice);
      if (status.ok()) return true;
      if (stop_.HasBeenNotified()) return false;
      const bool last = absl::IsInvalidArgument(status) || absl::Now() >= give_up;
      const std::vector<LogField> fields = {
          {"destination", destination_.name}, {"notice", notice.id}, {"event", notice.event.kind()}, {"error", status}};
      if (last) {
        LogError("a notice is given up", fields);
        return true;
      }
      LogWarn("a notice is not delivered yet", fields);
      if (stop_.WaitForNotificationWithTimeout(pause)) return false;
    }
  }

  const NotifierOptions options_;
  const Destination destination_;
  const std::string path_;
  std::string stored_;  // the place on disk
  const std::shared_ptr<Feed> feed_;
  absl::Notification stop_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Notifier>> Notifier::Start(const NotifierOptions& options, server::Loop* loop) {
  if (absl::Status status = MakePrivateFolder(options.folder); !status.ok()) return status;
  std::vector<std::unique_ptr<Courier>> couriers;
  for (const Destination& destination : options.destinations) {
    couriers.push_back(std::make_unique<Courier>(options, destination, loop));
  }
  return std::unique_ptr<Notifier>(new Notifier(std::move(couriers)));
}

Notifier::Notifier(std::vector<std::unique_ptr<Courier>> couriers) : couriers_(std::move(couriers)) {}

Notifier::~Notifier() { Stop(); }

void Notifier::Stop() {
  for (const std::unique_ptr<Courier>& courier : couriers_) courier->Stop();
  couriers_.clear();
}

}  // namespace muster::notify
