#include "cli/commands/repeat.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/command.h"
#include "cli/interrupt.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(2);
constexpr absl::Duration kKeyPoll = absl::Milliseconds(50);
constexpr char kClear[] = "\x1b[H\x1b[2J";

}  // namespace

absl::StatusOr<ExitCode> Repeat(const Screen& screen, bool changed,
                                const std::function<absl::StatusOr<std::string>()>& glance) {
  const InterruptScope interrupts;
  std::string last;
  bool reached = false;
  while (!Interrupted()) {
    const absl::StatusOr<std::string> text = glance();
    if (!text.ok() && !(reached && absl::IsUnavailable(text.status()))) return text.status();
    if (!text.ok()) {
      Say("the coordinator is away; trying again ...");
    } else if (screen.terminal) {
      Print(absl::StrCat(kClear, *text));
    } else if (!changed || *text != last) {
      Print(absl::StrCat(changed && reached ? "\n" : "", *text));
      last = *text;
    }
    reached |= text.ok();
    for (const absl::Time until = absl::Now() + kPeriod; absl::Now() < until && !Interrupted();) {
      absl::SleepFor(kKeyPoll);
    }
  }
  return kInterrupted;
}

}  // namespace muster::cli
