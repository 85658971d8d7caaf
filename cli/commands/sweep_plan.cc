#include "cli/commands/sweep_plan.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "cli/commands/job_array.h"
#include "cli/spec/set.h"

namespace muster::cli {
namespace {

// splitmix64 (Steele et al. 2014): the same on every machine, which the library's distributions are not.
uint64_t NextRandom(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

double NextUniform(uint64_t& state) { return static_cast<double>(NextRandom(state) >> 11) * 0x1p-53; }

struct Range {
  std::string path;
  double low = 0, high = 0;
  bool log = false;
};

absl::StatusOr<Range> ParseRange(const std::string& text) {
  const size_t equals = text.find('=');
  Range range;
  absl::string_view rest = absl::string_view(text).substr(std::min(equals + 1, text.size()));
  range.path = text.substr(0, equals);
  range.log = absl::ConsumePrefix(&rest, "log:");
  const size_t dots = rest.find("..");
  const bool numbers = equals != std::string::npos && equals > 0 && dots != absl::string_view::npos &&
                       absl::SimpleAtod(rest.substr(0, dots), &range.low) &&
                       absl::SimpleAtod(rest.substr(dots + 2), &range.high);
  if (!numbers || !std::isfinite(range.low) || !std::isfinite(range.high) || range.low >= range.high ||
      (range.log && range.low <= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--random: expected PATH=LOW..HIGH or PATH=log:LOW..HIGH, got \"", text, "\""));
  }
  return range;
}

// The last value at or before the step.
std::optional<double> ValueAt(const TrialProgress& trial, uint64_t step) {
  const auto after = trial.values.upper_bound(step);
  if (after == trial.values.begin() || trial.failed) return std::nullopt;
  return std::prev(after)->second;
}

bool Reached(const TrialProgress& trial, uint64_t step) {
  return trial.ended || (!trial.values.empty() && trial.values.rbegin()->first >= step);
}

}  // namespace

absl::StatusOr<std::vector<Trial>> RandomTrials(const std::vector<std::string>& arrays,
                                                const std::vector<std::string>& texts, uint32_t count, uint64_t seed) {
  std::vector<std::vector<Trial>> choices;
  for (const std::string& array : arrays) {
    absl::StatusOr<std::vector<Trial>> values = Combinations({array});
    if (!values.ok()) return values.status();
    choices.push_back(*std::move(values));
  }
  std::vector<Range> ranges;
  for (const std::string& text : texts) {
    const absl::StatusOr<Range> range = ParseRange(text);
    if (!range.ok()) return range.status();
    ranges.push_back(*range);
  }
  std::vector<Trial> trials;
  for (uint32_t i = 0; i < count; ++i) {
    Trial& trial = trials.emplace_back();
    for (const std::vector<Trial>& values : choices) trial.push_back(values[NextRandom(seed) % values.size()][0]);
    for (const Range& range : ranges) {
      const double at = NextUniform(seed);
      const double value =
          range.log ? range.low * std::pow(range.high / range.low, at) : range.low + (range.high - range.low) * at;
      absl::StatusOr<Assignment> drawn = ParseAssignment(absl::StrFormat("%s=%.4g", range.path, value), "--random");
      if (!drawn.ok()) return drawn.status();
      trial.push_back(*std::move(drawn));
    }
  }
  return trials;
}

std::map<size_t, uint64_t> LosersOf(const Halving& halving, const std::vector<TrialProgress>& trials) {
  std::map<size_t, uint64_t> losers;
  for (const uint64_t rung : halving.rungs) {
    std::vector<size_t> left;
    for (size_t i = 0; i < trials.size(); ++i) {
      if (losers.contains(i)) continue;
      if (!Reached(trials[i], rung)) return losers;
      left.push_back(i);
    }
    // Without a value, or not a number: last.
    const auto score = [&](size_t i) {
      const double value = ValueAt(trials[i], rung).value_or(NAN);
      return std::isnan(value) ? INFINITY : halving.maximize ? -value : value;
    };
    std::stable_sort(left.begin(), left.end(), [&](size_t a, size_t b) { return score(a) < score(b); });
    const auto kept = static_cast<size_t>(std::ceil(halving.keep * static_cast<double>(left.size()) - 1e-9));
    for (size_t i = std::max<size_t>(1, kept); i < left.size(); ++i) losers[left[i]] = rung;
  }
  return losers;
}

}  // namespace muster::cli
