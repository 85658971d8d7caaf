#include "coordinator/server/plan_pool.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::server {
namespace {

// Also of what else shapes the answer to a caller.
std::string KeyOf(const PlanQuestion& question) {
  return absl::StrCat(core::PlanKey(question.spec, question.on.slots), "/", question.on.hardware.name,
                      question.on.ops ? "/ops" : "");
}

size_t BytesOf(const PlanPool::Answer& answer) {
  constexpr size_t kLeast = 1024;
  if (!answer.ok()) return kLeast;
  const spec::MadePlan& plan = **answer;
  size_t names = 0;
  for (const OpNames& stage : plan.planned->op_names) names += stage.bytes();
  return kLeast + 2 * plan.reply.ByteSizeLong() + 8 * plan.planned->table.ByteSizeLong() +
         128 * plan.planned->roles.size() + names;
}

}  // namespace

PlanPool::PlanPool(const Options& options) : options_(options) {
  const uint32_t threads =
      options.threads > 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency() / 2);
  threads_.emplace_back([this] { Run(kShort); });
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(kLong); });
}

PlanPool::~PlanPool() { Stop(); }

uint64_t PlanPool::Ask(PlanQuestion question, const Asker& asker, Done done) {
  std::string key = KeyOf(question);
  absl::Status refused;
  {
    const MutexLock lock(mutex_);
    if (stopping_) {
      refused = absl::UnavailableError("the coordinator is shutting down; try again in a moment");
    } else if (const auto own = callers_of_.find(asker.user);
               !asker.core && callers_ + (own == callers_of_.end() ? 0 : own->second) >= options_.most_callers) {
      refused = absl::ResourceExhaustedError(
          own == callers_of_.end()
              ? absl::StrCat(callers_, " calls are waiting for plans; try again in a few seconds")
              : absl::StrCat(own->second, " calls of ", asker.user, " and ", callers_ - own->second,
                             " of other users are waiting for plans; try again in a few seconds"));
    } else {
      FlightPtr& flight = flights_[key];
      if (flight == nullptr) {
        flight = std::make_shared<Flight>();
        flight->key = std::move(key);
        flight->question = std::move(question);
        flight->user = asker.user;
        flight->for_core = asker.core;
        flight->known = Remembered(flight->key);
        Push(kShort, flight);
      } else {
        ++stats_.joined;
        if (asker.core && !std::exchange(flight->for_core, true)) MoveForward(flight);
      }
      const uint64_t ticket = next_ticket_++;
      flight->waiting.emplace(ticket, std::move(done));
      tickets_[ticket] = {flight, asker};
      if (!asker.core) {
        ++callers_;
        ++callers_of_[asker.user];
      }
      return ticket;
    }
  }
  done(refused);
  return 0;
}

void PlanPool::Erase(uint64_t ticket) {
  const auto found = tickets_.find(ticket);
  if (const Asker& asker = found->second.asker; !asker.core) {
    --callers_;
    const auto own = callers_of_.find(asker.user);
    if (--own->second == 0) callers_of_.erase(own);
  }
  tickets_.erase(found);
}

void PlanPool::Cancel(uint64_t ticket) {
  const MutexLock lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  const FlightPtr flight = found->second.flight;
  Erase(ticket);
  flight->waiting.erase(ticket);
  if (!flight->waiting.empty()) return;
  // Whoever asks the same from now on does not get an answer that says it was given up.
  flight->given_up = true;
  flights_.erase(flight->key);
  for (std::deque<FlightPtr>& queue : queues_)
    queue.erase(std::remove(queue.begin(), queue.end(), flight), queue.end());
  ++stats_.given_up;
}

void PlanPool::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& [key, flight] : flights_) flight->given_up = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

PlanPool::Stats PlanPool::stats() const {
  const MutexLock lock(mutex_);
  Stats stats = stats_;
  stats.waiting = tickets_.size();
  return stats;
}

// The core's questions come first; then each user's first, each user's second, and so on.
void PlanPool::Push(Lane lane, const FlightPtr& flight) {
  std::deque<FlightPtr>& queue = queues_[lane];
  flight->turn = static_cast<size_t>(std::count_if(queue.begin(), queue.end(), [&](const FlightPtr& other) {
    return !other->for_core && other->user == flight->user;
  }));
  const auto place = std::find_if(queue.begin(), queue.end(), [&](const FlightPtr& other) {
    return !other->for_core && (flight->for_core || other->turn > flight->turn);
  });
  queue.insert(place, flight);
  changed_.notify_all();
}

// From among the callers' to the core's, where it still waits for a thread.
void PlanPool::MoveForward(const FlightPtr& flight) {
  for (const Lane lane : {kShort, kLong}) {
    std::deque<FlightPtr>& queue = queues_[lane];
    const auto place = std::find(queue.begin(), queue.end(), flight);
    if (place == queue.end()) continue;
    queue.erase(place);
    Push(lane, flight);
  }
}

std::optional<PlanPool::Answer> PlanPool::Remembered(const std::string& key) {
  const auto kept = kept_by_key_.find(key);
  if (kept == kept_by_key_.end()) return std::nullopt;
  kept_.splice(kept_.begin(), kept_, kept->second);
  ++stats_.kept;
  return kept_.front().answer;
}

PlanPool::FlightPtr PlanPool::Take(Lane lane) {
  const MutexLock lock(mutex_);
  while (!stopping_ && queues_[lane].empty()) changed_.wait(mutex_);
  if (stopping_) return nullptr;
  FlightPtr flight = queues_[lane].front();
  queues_[lane].pop_front();
  return flight;
}

void PlanPool::Run(Lane lane) {
  // Of this thread alone: those that answer calls go first.
  setpriority(PRIO_PROCESS, 0, 10);
  const uint64_t all = options_.limits.work, most = lane == kLong ? all : std::min(all, options_.short_work);
  while (const FlightPtr flight = Take(lane)) {
    const Answer answer = flight->known.has_value() ? *flight->known : Make(*flight, most);
    if (!flight->known.has_value() && absl::IsResourceExhausted(answer.status()) && most < all) {
      const MutexLock lock(mutex_);
      if (!flight->given_up) Push(kLong, flight);
      continue;
    }
    Finish(flight, answer);
  }
}

PlanPool::Answer PlanPool::Make(const Flight& flight, uint64_t work) const {
  strategies::Budget budget({work, options_.limits.bytes, /*again=*/work < options_.limits.work},
                            [&] { return flight.given_up.load(); });
  absl::StatusOr<spec::MadePlan> plan = options_.maker
                                            ? options_.maker(flight.question, &budget)
                                            : spec::MakePlan(flight.question.spec, flight.question.on, &budget);
  if (!plan.ok()) return plan.status();
  return std::make_shared<const spec::MadePlan>(*std::move(plan));
}

void PlanPool::Finish(const FlightPtr& flight, const Answer& answer) {
  std::map<uint64_t, Done> waiting;
  {
    const MutexLock lock(mutex_);
    if (flight->given_up) return;
    if (!flight->known.has_value()) {
      ++stats_.made;
      stats_.refused += absl::IsResourceExhausted(answer.status()) ? 1 : 0;
      Keep(flight->key, answer);
    }
    flights_.erase(flight->key);
    waiting = std::move(flight->waiting);
    for (const auto& [ticket, done] : waiting) Erase(ticket);
  }
  for (const auto& [ticket, done] : waiting) done(answer);
}

void PlanPool::Keep(const std::string& key, const Answer& answer) {
  const size_t bytes = BytesOf(answer);
  if (bytes > options_.most_kept_bytes) return;
  kept_.push_front({key, answer, bytes});
  kept_by_key_[key] = kept_.begin();
  kept_bytes_ += bytes;
  while (kept_bytes_ > options_.most_kept_bytes) {
    kept_bytes_ -= kept_.back().bytes;
    kept_by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

}  // namespace muster::server
