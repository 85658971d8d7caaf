#include "common/failpoint.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/mutex.h"

namespace muster::failpoint {
namespace {

struct Rule {
  std::string name;
  bool prefix = false;
  uint64_t at = 1;  // 0: each
  int error = 0;
  bool kill = false;
  absl::Duration sleep;
};

struct Armed {
  Mutex mutex;
  std::vector<Rule> rules ABSL_GUARDED_BY(mutex);
  std::map<std::string, uint64_t> passed ABSL_GUARDED_BY(mutex);
};

Armed& TheArmed() {
  static Armed& armed = *new Armed;  // outlives every thread
  return armed;
}

constexpr std::pair<std::string_view, int> kErrors[] = {
    {"ENOSPC", ENOSPC}, {"EIO", EIO}, {"EDQUOT", EDQUOT}, {"EFBIG", EFBIG}, {"EACCES", EACCES}};

bool ParseAction(std::string_view text, Rule& rule) {
  if (text == "kill") return rule.kill = true;
  for (const auto& [name, error] : kErrors) {
    if (text == name) return rule.error = error, true;
  }
  int64_t milliseconds = 0;
  if (!text.starts_with("sleep:") || !absl::SimpleAtoi(std::string(text.substr(6)), &milliseconds)) return false;
  rule.sleep = absl::Milliseconds(milliseconds);
  return milliseconds >= 0;
}

bool ParseRule(const std::string& text, Rule& rule) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) return false;
  rule.name = text.substr(0, equals);
  rule.prefix = rule.name.back() == '*';
  if (rule.prefix) rule.name.pop_back();
  std::string action = text.substr(equals + 1);
  if (const size_t at = action.find('@'); at != std::string::npos) {
    const std::string count = action.substr(at + 1);
    if (count == "*") {
      rule.at = 0;
    } else if (!absl::SimpleAtoi(count, &rule.at) || rule.at == 0) {
      return false;
    }
    action.resize(at);
  }
  return ParseAction(action, rule);
}

absl::StatusOr<std::vector<Rule>> Parse(std::string_view text) {
  std::vector<Rule> rules;
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ';', absl::SkipEmpty());
  for (const std::string& part : parts) {
    if (ParseRule(part, rules.emplace_back())) continue;
    return absl::InvalidArgumentError(absl::StrCat("failpoints: \"", part,
                                                   "\" is not NAME=ACTION or NAME=ACTION@N, where ACTION is kill, "
                                                   "ENOSPC, EIO, EDQUOT, EFBIG, EACCES or sleep:MS"));
  }
  return rules;
}

void Read() {
  const char* const text = getenv("MUSTER_FAILPOINTS");
  const absl::Status status = Arm(text == nullptr ? "" : text);
  if (status.ok()) return;
  fprintf(stderr, "MUSTER_FAILPOINTS: %s\n", std::string(status.message()).c_str());
  _exit(2);
}

}  // namespace

int internal::Pass(std::string_view name) {
  if (state.load(std::memory_order_relaxed) == kUnread) {
    static const bool read = (Read(), true);
    (void)read;
    if (state.load(std::memory_order_relaxed) == kOff) return 0;
  }
  Armed& armed = TheArmed();
  absl::Duration sleep;
  {
    const MutexLock lock(armed.mutex);
    const uint64_t count = ++armed.passed[std::string(name)];
    for (const Rule& rule : armed.rules) {
      const bool meant = rule.prefix ? name.starts_with(rule.name) : name == rule.name;
      if (!meant || (rule.at != 0 && rule.at != count)) continue;
      if (rule.kill) {
        kill(getpid(), SIGKILL);
        while (true) pause();
      }
      if (rule.error != 0) return rule.error;
      sleep += rule.sleep;
    }
  }
  absl::SleepFor(sleep);
  return 0;
}

int internal::Pass(std::string_view prefix, std::string_view step) { return Pass(std::string(prefix).append(step)); }

absl::Status Arm(std::string_view text) {
  absl::StatusOr<std::vector<Rule>> rules = Parse(text);
  if (!rules.ok()) return rules.status();
  Armed& armed = TheArmed();
  const MutexLock lock(armed.mutex);
  internal::state = rules->empty() ? internal::kOff : internal::kArmed;
  armed.rules = *std::move(rules);
  armed.passed.clear();
  return absl::OkStatus();
}

std::map<std::string, uint64_t> Passed() {
  Armed& armed = TheArmed();
  const MutexLock lock(armed.mutex);
  return armed.passed;
}

}  // namespace muster::failpoint
