#include "worker/engine/collectives_under_way.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "worker/engine/failed.h"

namespace muster::engine {

void CollectivesUnderWay::Start(const char* name, std::unique_ptr<collectives::Work> work) {
  started_.push_back({name, std::chrono::steady_clock::now(), std::move(work)});
}

void CollectivesUnderWay::Finish(size_t count) {
  if (started_.empty()) return;
  if (progress_ != nullptr) progress_->Exchange();
  std::vector<Started> started = std::exchange(started_, {});
  std::move(started.begin() + static_cast<std::ptrdiff_t>(count), started.end(), std::back_inserter(started_));
  started.erase(started.begin() + static_cast<std::ptrdiff_t>(count), started.end());
  const SteadyPoint begin = std::chrono::steady_clock::now();
  recorder_.Begin();
  for (const Started& one : started) ThrowIfBad(one.work->Wait());
  if (recorder_.on()) recorder_.End("Wait", Stream::kCompute, /*exchange=*/true);
  const SteadyPoint end = std::chrono::steady_clock::now();
  waited_ += end - begin;
  if (!recorder_.on() || recorder_.by_device()) return;
  for (const Started& one : started) {
    const SteadyPoint done = std::min(end, one.work->done_at().value_or(end));
    // The wait for it lies within it, though this thread goes on only a little later than it is done.
    recorder_.Add({one.name, Stream::kCompute, one.at, done > begin ? end : std::max(one.at, done), true});
  }
}

double CollectivesUnderWay::TakeWaitedSeconds() { return std::exchange(waited_, {}).count(); }

}  // namespace muster::engine
