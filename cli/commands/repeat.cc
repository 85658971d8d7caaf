#include "cli/commands/repeat.h"

#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(2);
constexpr absl::Duration kKeyPoll = absl::Milliseconds(50);
// From the first row down: some terminals keep in the scrollback what ESC [2J clears.
constexpr char kClear[] = "\x1b[H\x1b[J";
constexpr char kAway[] = "the coordinator is away; trying again ...";

// While one exists, keys arrive at once and are not echoed. Ctrl-C still interrupts.
class Keys {
 public:
  explicit Keys(bool wanted) : on_(wanted && isatty(STDIN_FILENO) != 0 && tcgetattr(STDIN_FILENO, &before_) == 0) {
    if (!on_) return;
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    on_ = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;
  ~Keys() {
    if (on_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  }

  // What was pressed in this time, an escape sequence as a whole; empty: nothing.
  std::string Next(absl::Duration at_most) {
    pollfd in = {STDIN_FILENO, POLLIN, 0};
    if (!on_ || poll(&in, 1, static_cast<int>(absl::ToInt64Milliseconds(at_most))) <= 0) {
      if (!on_) absl::SleepFor(at_most);
      return "";
    }
    char keys[16];
    const ssize_t n = read(STDIN_FILENO, keys, sizeof(keys));
    if (n <= 0) on_ = false;  // the terminal is gone
    return std::string(keys, n > 0 ? static_cast<size_t>(n) : 0);
  }

 private:
  termios before_ = {};
  bool on_;
};

bool Resized(const Screen& before) {
  const Screen now = ScreenOf(STDOUT_FILENO, /*no_colour=*/false);
  return now.width != before.width || now.height != before.height;
}

}  // namespace

absl::StatusOr<ExitCode> Repeat(const Screen& screen, bool changed,
                                const std::function<absl::StatusOr<std::string>()>& glance,
                                const std::function<bool(const std::string& key)>& on_key) {
  const InterruptScope interrupts;
  Keys keys(screen.terminal && on_key != nullptr);
  std::string last;
  bool reached = false;
  // The cursor is on the page's last line.
  const auto leave_page = [&] {
    if (screen.terminal && reached) Print("\n");
  };
  while (!Interrupted()) {
    const Screen size = ScreenOf(STDOUT_FILENO, /*no_colour=*/false);
    const absl::StatusOr<std::string> text = glance();
    if (!text.ok() && !(reached && absl::IsUnavailable(text.status()))) {
      leave_page();
      return text.status();
    }
    const bool news = text.ok() && (!changed || *text != last);
    const bool first = !std::exchange(reached, true);
    if (text.ok()) last = *text;
    if (screen.terminal) {
      const std::string page = text.ok() ? last : absl::StrCat(kAway, "\n", last);
      Print(kClear + OnScreen(page, ScreenOf(STDOUT_FILENO, /*no_colour=*/false)));
    } else if (!text.ok()) {
      Say(kAway);
    } else if (news) {
      Print(absl::StrCat(changed && !first ? "\n" : "", last));
    }
    for (const absl::Time until = absl::Now() + kPeriod; absl::Now() < until && !Interrupted();) {
      const std::string key = keys.Next(kKeyPoll);
      if (key == "q") {
        leave_page();
        return kOk;
      }
      if ((!key.empty() && on_key(key)) || (screen.terminal && Resized(size))) break;
    }
  }
  leave_page();
  return kInterrupted;
}

}  // namespace muster::cli
