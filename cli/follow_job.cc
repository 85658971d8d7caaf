#include "cli/follow_job.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/follower.h"
#include "cli/interrupt.h"
#include "cli/output/format.h"
#include "common/message/tree.h"

namespace muster::cli {
namespace {

// How long a read whose stream broke may take to reconnect.
constexpr absl::Duration kFirstPatience = absl::Milliseconds(500);
constexpr absl::Duration kPatience = absl::Seconds(8);  // the same as for every other call (client.cc)
constexpr absl::Duration kPause = absl::Milliseconds(200);
// How long the coordinator may be away while its jobs continue.
constexpr absl::Duration kGiveUpAfter = absl::Minutes(10);
constexpr absl::Duration kIdle = absl::Milliseconds(200);
// Redrawing more often does not look smoother.
constexpr absl::Duration kRedraw = absl::Milliseconds(100);

// The status line at the bottom of a terminal, which redraws itself.
class BottomLine {
 public:
  explicit BottomLine(bool on) : on_(on) {}
  ~BottomLine() { Clear(); }

  void Clear() {
    if (drawn_) Print("\r\x1b[J");
    drawn_ = false;
  }
  void Draw(const std::string& line, absl::Time now) {
    if (!on_ || (drawn_ && now - last_ < kRedraw)) return;
    // The cursor waits at the line's beginning: a terminal that becomes narrower wraps the line below it, and the next
    // redraw clears all of that. Not wrapped while it is printed, in case the terminal has just become narrower.
    Print(absl::StrCat("\r\x1b[J\x1b[?7l", line, "\x1b[?7h\r"));
    drawn_ = true;
    last_ = now;
  }
  void PrintAbove(const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    Clear();
    for (const std::string& line : lines) Print(line + "\n");
  }

 private:
  const bool on_;
  bool drawn_ = false;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace

nlohmann::ordered_json ItemTree(const v1::WatchItem& item) { return MessageTree(item); }

absl::Status ReadItems(Client& client, const v1::WatchRequest& request,
                       const std::function<void(const v1::WatchItem&)>& take) {
  v1::WatchRequest rest = request;
  absl::Time last_contact = absl::Now();
  // Before the first item the coordinator may not exist at all, which must be reported at once.
  absl::Duration patience = kFirstPatience;
  while (true) {
    const std::unique_ptr<WatchCall> call = client.Watch(rest);
    v1::WatchItem item;
    while (call->Read(item)) {
      take(item);
      last_contact = absl::Now();
      patience = kPatience;
      if (item.cursor().empty()) continue;
      rest.set_cursor(item.cursor());
      rest.clear_tail();  // belongs to the first call
    }
    const absl::Status status = call->Finish();
    if (!absl::IsUnavailable(status) || absl::Now() - last_contact > patience) return status;
    absl::SleepFor(kPause);
  }
}

namespace {

std::string StateAfterTimeout(Client& client, const std::string& job) {
  const absl::StatusOr<v1::GetJobReply> got = client.GetJob(job);
  if (!got.ok()) return "the job continues";
  const v1::JobState state = got->job().state();
  return absl::StrCat("the job is ", state >= v1::JOB_STATE_COMPLETED ? "now " : "still ", StateName(state));
}

}  // namespace

absl::StatusOr<ExitCode> FollowItems(Client& client, const v1::WatchRequest& request, const Following& following) {
  const InterruptScope interrupts;
  const absl::Time deadline =
      following.timeout > absl::ZeroDuration() ? absl::Now() + following.timeout : absl::InfiniteFuture();
  Follower follower(client, request, kGiveUpAfter);
  while (true) {
    const Followed next = follower.Next(kIdle);
    switch (next.kind) {
      case Followed::Kind::kItem:
        if (!following.take(next.item)) return kOk;
        break;
      case Followed::Kind::kNothing:
        break;
      case Followed::Kind::kLost:
        following.idle();
        following.say("lost the coordinator; the job continues without it. Reconnecting ...");
        break;
      case Followed::Kind::kBack:
        following.say("connected again");
        break;
      case Followed::Kind::kEnded:
        if (!next.status.ok()) return next.status;
        return kOk;
      case Followed::Kind::kInterrupted:
        following.say(following.detached);
        return kInterrupted;
    }
    if (absl::Now() > deadline) {
      const std::string after =
          following.after_timeout.empty() ? StateAfterTimeout(client, request.job()) : following.after_timeout;
      return absl::DeadlineExceededError(
          absl::StrCat("timed out after ", absl::FormatDuration(following.timeout), "; ", after));
    }
    following.idle();
  }
}

absl::StatusOr<ExitCode> FollowJob(Client& client, const std::string& job, const FollowOptions& options,
                                   const Screen& out) {
  absl::StatusOr<v1::GetJobReply> got = client.GetJob(job);
  if (!got.ok()) return got.status();
  const std::string id = got->job().id();
  const bool json = options.format == Format::kJson;
  JobView view(out);
  view.SetJob(got->job());
  v1::WatchRequest request;
  request.set_job(id);
  request.set_follow(true);
  request.set_events(true);
  request.set_metrics(true);
  request.set_logs(options.logs);
  BottomLine bottom(out.terminal && !json);
  int columns = out.width;
  // Before whatever fits its lines to the terminal, which may have been resized.
  const auto resize = [&] {
    if (!out.terminal) return;
    columns = ScreenOf(STDOUT_FILENO, /*no_colour=*/false).width;
    view.Resize(columns);
  };
  const auto take = [&](const v1::WatchItem& item) {
    if (json) {
      PrintLine(ItemTree(item));
      return true;
    }
    resize();
    bottom.PrintAbove(view.Apply(item, absl::Now()));
    return true;
  };
  const auto idle = [&] {
    const absl::Time now = absl::Now();
    bottom.PrintAbove(view.Tick(now));
    resize();
    bottom.Draw(view.LiveLine(now), now);
  };
  Following following{.take = take,
                      .timeout = options.timeout,
                      .detached = absl::StrCat("detached; ", id, " continues.   follow it again: muster watch ", id,
                                               "   cancel it: muster cancel ", id)};
  if (!json) following.idle = idle;
  following.say = [&](const std::string& line) {
    bottom.Clear();
    Say(line);
  };
  const absl::StatusOr<ExitCode> followed = FollowItems(client, request, following);
  bottom.PrintAbove(view.Tick(absl::InfiniteFuture()));
  bottom.Clear();
  if (!followed.ok() || *followed != kOk) return followed;
  // The stream's last event and the job's record agree, and the record also has the failure.
  got = client.GetJob(id);
  if (!got.ok()) return got.status();
  view.SetJob(got->job());
  if (!json) {
    resize();
    Print(Wrapped(view.Summary(absl::Now()), columns));
    if (const std::string failure = view.FailureText(); !failure.empty()) Say(failure);
  }
  return ExitCodeOf(got->job().state());
}

}  // namespace muster::cli
