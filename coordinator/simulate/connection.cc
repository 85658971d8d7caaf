#include "coordinator/simulate/connection.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/simulate/coordinator.h"
#include "coordinator/simulate/worker_node.h"

namespace muster::simulate {

SteadyTime Connection::ArrivalAfter(SteadyTime last) {
  absl::Duration delay = world_->random.Between(absl::Milliseconds(1), absl::Milliseconds(20));
  if (world_->slow_network > absl::ZeroDuration()) {
    delay += world_->random.Between(absl::ZeroDuration(), world_->slow_network);
  }
  return std::max(last, world_->agenda.now() + delay);
}

void Connection::PumpAt(SteadyTime when) {
  world_->agenda.At(when, [self = shared_from_this()] { self->Pump(); });
}

void Connection::SendUp(WorkerMessage message) {
  if (worker_gone_) return;
  const bool repeatable = message.has_observed() || message.has_records();
  const bool repeated = repeatable && world_->random.Percent(world_->settings.repeated_messages_percent);
  last_up_ = ArrivalAfter(last_up_);
  if (repeated) {
    world_->Count("message repeated");
    up_.push_back({last_up_, message});
  }
  up_.push_back({last_up_, std::move(message)});
  PumpAt(last_up_);
}

void Connection::Break() {
  if (std::exchange(worker_gone_, true)) return;
  last_up_ = ArrivalAfter(last_up_);
  up_.push_back({last_up_, std::nullopt});
  PumpAt(last_up_);
}

// Into a field that only a worker fills, and virtual workers do not: so a rank keeps the name that its generation had
// when it was sent.
void Connection::NameGenerations(Desired& desired) const {
  for (DesiredRank& rank : *desired.mutable_ranks()) {
    if (!rank.has_run()) continue;
    const uint64_t name = world_->judge.NameOf(JobId(rank.key().job()), rank.key().generation());
    rank.mutable_run()->set_host(absl::StrCat(name));
  }
}

void Connection::Send(CoordinatorMessage message) {
  if (server_gone_ || !server_->alive()) return;
  if (message.has_desired()) {
    world_->judge.DesiredSent(message.desired(), last_revision_);
    NameGenerations(*message.mutable_desired());
  }
  if (message.has_welcome()) {
    for (const auto& [job, generation] : generations_) world_->judge.ReportedGeneration(JobId(job), generation);
  }
  last_down_ = ArrivalAfter(last_down_);
  down_.push_back({last_down_, std::move(message), world_->judge.restores()});
  PumpAt(last_down_);
}

void Connection::Close(const absl::Status& status) {
  if (server_gone_ || (server_ != nullptr && !server_->alive())) return;
  server_gone_ = true;
  last_down_ = ArrivalAfter(last_down_);
  down_.push_back({last_down_, status, 0});
  PumpAt(last_down_);
}

void Connection::Reset() {
  if (std::exchange(server_gone_, true)) return;
  last_down_ = ArrivalAfter(last_down_);
  down_.push_back({last_down_, absl::UnavailableError("connection reset"), 0});
  PumpAt(last_down_);
}

void Connection::Pump() {
  while (DeliverUp()) {
  }
  while (DeliverDown()) {
  }
}

// Returns true if there may be more to deliver.
bool Connection::DeliverUp() {
  if (up_.empty() || !route_->up || reading_ || up_.front().at > world_->agenda.now()) return false;
  Coordinator& coordinator = *world_->coordinator;
  if (!coordinator.up()) {
    if (!coordinator.refuses()) return false;  // no process answers
    up_.clear();
    Reset();
    return false;
  }
  if (server_ == nullptr) server_ = coordinator.life();
  if (server_ != coordinator.life()) {  // a stream to an earlier run
    up_.clear();
    Reset();
    return false;
  }
  Up next = std::move(up_.front());
  up_.pop_front();
  if (!next.message.has_value()) {
    coordinator.Post([self = shared_from_this()](server::Turn& turn) { turn.workers().Gone(turn, self.get()); });
    return false;
  }
  if (server_gone_) return true;
  if (next.message->has_hello()) {
    generations_ = {next.message->hello().generations().begin(), next.message->hello().generations().end()};
  }
  reading_ = true;
  coordinator.Post([self = shared_from_this(), message = *std::move(next.message)](server::Turn& turn) {
    turn.workers().Receive(turn, self, message);
    turn.AfterCommit([self] {
      if (!self->server_->alive()) return;
      self->reading_ = false;
      if (!self->up_.empty()) self->PumpAt(std::max(self->up_.front().at, self->world_->agenda.now()));
    });
  });
  return false;
}

bool Connection::DeliverDown() {
  if (down_.empty() || !route_->down || down_.front().at > world_->agenda.now()) return false;
  if (worker_gone_) {
    down_.clear();
    return false;
  }
  if (!node_->Listens()) return false;
  Down next = std::move(down_.front());
  down_.pop_front();
  if (const auto* end = std::get_if<absl::Status>(&next.message)) {
    worker_gone_ = true;
    // As gRPC does, if the coordinator has not closed the stream itself.
    if (!server_gone_) up_.push_back({world_->agenda.now(), std::nullopt});
    node_->Ended(this, *end);
    return false;
  }
  node_->Received(this, std::get<CoordinatorMessage>(next.message), next.restores);
  return true;
}

}  // namespace muster::simulate
