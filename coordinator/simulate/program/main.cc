// muster-simulate: simulates whole clusters with faults, one per seed, and checks the invariants of
// docs/internals/reliability.md.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/flags/values.h"
#include "common/log/log.h"
#include "common/mutex.h"
#include "coordinator/simulate/simulation.h"

namespace muster::simulate {
namespace {

constexpr size_t kLastLines = 60;

// Totals of all threads.
struct Summary {
  Mutex mutex;
  std::map<std::string, uint64_t> counts ABSL_GUARDED_BY(mutex);
  absl::Duration virtual_time ABSL_GUARDED_BY(mutex);
  std::map<uint64_t, std::string> failures ABSL_GUARDED_BY(mutex);  // by seed
  uint64_t seeds ABSL_GUARDED_BY(mutex) = 0;
};

void RunSeeds(uint64_t end, std::atomic<uint64_t>& next, uint64_t most_failures, Summary& summary) {
  for (uint64_t seed = next++; seed < end; seed = next++) {
    const Outcome outcome = Simulate(seed);
    const MutexLock lock(summary.mutex);
    ++summary.seeds;
    summary.virtual_time += outcome.virtual_time;
    for (const auto& [what, count] : outcome.counts) summary.counts[what] += count;
    if (!outcome.failure.empty()) summary.failures[seed] = outcome.failure;
    if (summary.failures.size() >= most_failures) return;
  }
}

// Replays a seed and prints its last events.
void ShowFailure(uint64_t seed, const std::string& failure) {
  std::deque<std::string> last;
  Simulate(seed, [&](const std::string& line) {
    last.push_back(line);
    if (last.size() > kLastLines) last.pop_front();
  });
  for (const std::string& line : last) std::printf("  %s\n", line.c_str());
  std::printf("seed %llu: %s\n  full trace: muster-simulate --seed %llu --verbose\n",
              static_cast<unsigned long long>(seed), failure.c_str(), static_cast<unsigned long long>(seed));
}

int ShowOne(uint64_t seed) {
  const Outcome outcome = Simulate(seed, [](const std::string& line) { std::printf("%s\n", line.c_str()); });
  std::printf("seed %llu: %s; fingerprint %016llx\n", static_cast<unsigned long long>(seed),
              outcome.failure.empty() ? "every invariant held" : outcome.failure.c_str(),
              static_cast<unsigned long long>(outcome.fingerprint));
  return outcome.failure.empty() ? 0 : 1;
}

int RunMany(uint64_t first, uint64_t seeds, uint64_t most_failures, unsigned threads) {
  Summary summary;
  std::atomic<uint64_t> next{first};
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::thread> workers;
  for (unsigned i = 0; i < threads; ++i) {
    workers.emplace_back([&] { RunSeeds(first + seeds, next, most_failures, summary); });
  }
  for (std::thread& worker : workers) worker.join();
  const MutexLock lock(summary.mutex);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  for (const auto& [what, count] : summary.counts) {
    std::printf("%10llu  %s\n", static_cast<unsigned long long>(count), what.c_str());
  }
  for (const auto& [seed, failure] : summary.failures) ShowFailure(seed, failure);
  const auto done = static_cast<double>(summary.seeds);
  std::printf(
      "%llu seeds from %llu, %.0f virtual hours, %.1f s on %u threads: %.0f seeds/s, %.2f ms of a core each; "
      "%zu failed\n",
      static_cast<unsigned long long>(summary.seeds), static_cast<unsigned long long>(first),
      absl::ToDoubleHours(summary.virtual_time), took.count(), threads, done / took.count(),
      took.count() * 1000 * threads / done, summary.failures.size());
  return summary.failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace muster::simulate

int main(int argc, char** argv) {
  muster::StartLog("simulate", muster::LogLevel::kOff);
  CLI::App app{"Simulates whole clusters with faults, one from each seed, and checks every effect."};
  uint64_t first = 1, seeds = 1000, most_failures = 5;
  std::optional<uint64_t> seed;
  bool verbose = false;
  unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  app.add_option("--seeds", seeds, "number of seeds")->capture_default_str();
  app.add_option("--first", first, "the first seed")->capture_default_str();
  app.add_option("--seed", seed, "run only this seed");
  app.add_flag("--verbose", verbose, "with --seed: print every event");
  app.add_option("--max-failures", most_failures, "stop after this many failures")->capture_default_str();
  app.add_option("--threads", threads, "seeds to run in parallel")->check(muster::Between(1, 1024));
  CLI11_PARSE(app, argc, argv);
  if (seed.has_value() && verbose) return muster::simulate::ShowOne(*seed);
  if (seed.has_value()) return muster::simulate::RunMany(*seed, 1, 1, 1);
  return muster::simulate::RunMany(first, seeds, std::max<uint64_t>(1, most_failures), threads);
}
