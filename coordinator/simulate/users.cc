#include "coordinator/simulate/users.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "coordinator/simulate/worker_node.h"

namespace muster::simulate {
namespace {

constexpr absl::Duration kUserRetry = absl::Seconds(1), kDiskRetry = absl::Seconds(10);

}  // namespace

// The same request again names the same jobs, also where one of them was deleted and submitted again.
bool User::NameJobsBefore() {
  const auto is_known = [this](const std::string& job) { return !job.empty() && !world_->judge.IsLost(JobId(job)); };
  const auto& named = spec_.after();
  if (named.size() == static_cast<int>(after_.size()) && std::all_of(named.begin(), named.end(), is_known)) return true;
  spec_.clear_after();
  for (const User* before : after_) spec_.add_after(before->job().value());
  return std::all_of(named.begin(), named.end(), is_known);
}

void User::Submit() {
  if (!NameJobsBefore()) return world_->agenda.After(kUserRetry, [this] { Submit(); });
  World* const world = world_;
  const auto accepted = std::make_shared<JobId>();
  // Each attempt has a new random suffix, as in coordinator/rpc.
  core::SubmitJob submit{request_, name_, spec_, absl::StrCat(request_, ".", ++tries_)};
  world->coordinator->Call(
      [world, submit, accepted](server::Turn& turn, const Coordinator::Reply& reply) {
        // As rpc::CheckFreeSpace.
        if (world->disk.full()) return reply(absl::ResourceExhaustedError("no new jobs: the disk is full"));
        const core::Outcome& outcome = turn.Handle(submit);
        turn.AfterCommit([&outcome, accepted, reply] {
          *accepted = outcome.job;
          reply(outcome.status);
        });
      },
      /*reachable=*/true,
      [this, world, accepted, request = submit.request_id,
       restores = world->judge.restores()](const absl::Status& status) {
        if (!status.ok() && restores != world->judge.restores()) return Submit();
        if (absl::IsUnavailable(status)) return world->agenda.After(kUserRetry, [this] { Submit(); });
        if (absl::IsResourceExhausted(status)) return world->agenda.After(kDiskRetry, [this] { Submit(); });
        if (absl::IsFailedPrecondition(status) && request != request_) return;  // a later attempt replaced it
        if (absl::IsNotFound(status) && request != request_) return;
        if (absl::StartsWith(status.message(), "resources.reservation: ")) return SubmitLaterOrOutside();
        if (absl::StartsWith(status.message(), "after: ")) {
          if (std::all_of(spec_.after().begin(), spec_.after().end(),
                          [&](const std::string& job) { return world->judge.CanComplete(JobId(job)); })) {
            return world->judge.Fail("a valid job is accepted", status.ToString());
          }
          world->Count("job after one that cannot complete refused");
          after_.clear();
          request_ += "-alone";
          return Submit();
        }
        if (absl::IsAlreadyExists(status) && spec_.train().has_sync()) {
          return world->Count("run submitted again without its first replica");
        }
        if (absl::IsAlreadyExists(status) && world->judge.restores() > 0 && !after_.empty()) {
          world->Count("request of a restored copy that names other jobs");
          request_ += "-again";
          return Submit();
        }
        const std::string path = spec_.train().checkpoint().path();
        if (absl::IsFailedPrecondition(status) && world->judge.WasTaken(path)) {
          world->Count("checkpoint.path of another job refused");
          request_ += "-own";
          spec_.mutable_train()->mutable_checkpoint()->set_path(path + "/{job}");
          return Submit();
        }
        if (!status.ok()) return world->judge.Fail("a valid job is accepted", status.ToString());
        world->Trace([&] { return absl::StrCat("accepted ", request, " as ", accepted->value()); });
        job_ = *accepted;
        world->judge.Accepted(name_, request, job_);
        SubmitIfLost();  // the reply came from a coordinator whose disk is gone
      });
}

void User::SubmitLaterOrOutside() {
  constexpr uint64_t kTries = 60;
  world_->Count("job refused in a reservation");
  if (tries_ % kTries != 0) return world_->agenda.After(kUserRetry, [this] { Submit(); });
  request_ += "-outside";
  spec_.mutable_resources()->clear_reservation();
  Submit();
}

template <typename Event>
void User::Change(const char* what, std::function<void()> accepted) {
  if (job_.empty()) return;
  World* const world = world_;
  world->Count(what);
  world->Trace([&] { return absl::StrCat(what, " ", job_.value()); });
  world->coordinator->Call(
      [job = job_](server::Turn& turn, const Coordinator::Reply& reply) {
        const absl::Status status = turn.Handle(Event{job}).status;
        turn.AfterCommit([status, reply] { reply(status); });
      },
      /*reachable=*/true,
      [this, world, what, accepted](const absl::Status& status) {
        if (absl::IsUnavailable(status)) {
          return world->agenda.After(kUserRetry, [this, what, accepted] { Change<Event>(what, accepted); });
        }
        if (status.ok() && accepted != nullptr) accepted();
      });
}

void User::Pause() { Change<core::PauseJob>("user pauses"); }
void User::Resume() { Change<core::ResumeJob>("user resumes"); }
void User::Cancel() {
  Change<core::CancelJob>("user cancels", [this, restores = world_->judge.restores()] {
    if (restores == world_->judge.restores()) world_->judge.CancelAccepted(job_);
  });
}

void User::SubmitIfLost() {
  if (!world_->judge.IsLost(job_)) return;
  world_->Count("job lost with the disk, and submitted again");
  job_ = JobId();
  Submit();
}

void User::Delete() {
  if (job_.empty()) return;
  world_->judge.MayBeDeleted(job_);
  Change<core::DeleteJob>("user deletes");
}

void ResumeInTheEnd(World* world) {
  for (const auto& [id, account] : world->judge.jobs()) {
    if (account.deleted) continue;
    world->Count("user resumes");
    world->coordinator->Call(
        [job = id](server::Turn& turn, const Coordinator::Reply& reply) {
          const absl::Status status = turn.Handle(core::ResumeJob{job}).status;
          turn.AfterCommit([status, reply] { reply(status); });
        },
        /*reachable=*/true, [](const absl::Status&) {});
  }
  world->agenda.After(absl::Seconds(30), [world] { ResumeInTheEnd(world); });
}

void Drain(World* world, const std::string& node, bool drain) {
  world->Count(drain ? "node drained" : "node undrained");
  world->Trace([&] { return absl::StrCat(drain ? "drain " : "undrain ", node); });
  world->coordinator->Call(
      [=](server::Turn& turn, const Coordinator::Reply& reply) {
        const NodeId id(node);
        const absl::Status status =
            turn.Handle(drain ? core::Event(core::DrainNode{id}) : core::UndrainNode{id}).status;
        turn.AfterCommit([status, reply] { reply(status); });
      },
      /*reachable=*/true,
      [=](const absl::Status& status) {
        if (absl::IsUnavailable(status)) world->agenda.After(kUserRetry, [=] { Drain(world, node, drain); });
      });
}

void SetProject(World* world, const Project& project) {
  world->Count("project set");
  world->coordinator->Call(
      [=](server::Turn& turn, const Coordinator::Reply& reply) {
        const absl::Status status = turn.Handle(core::SetProject{project}).status;
        turn.AfterCommit([status, reply] { reply(status); });
      },
      /*reachable=*/true,
      [=](const absl::Status& status) {
        if (absl::IsUnavailable(status)) return world->agenda.After(kUserRetry, [=] { SetProject(world, project); });
        if (!status.ok()) world->judge.Fail("a valid project is accepted", status.ToString());
      });
}

namespace {

void ChangeReservation(World* world, const char* what, const std::function<core::Event()>& event) {
  world->coordinator->Call(
      [=](server::Turn& turn, const Coordinator::Reply& reply) {
        const absl::Status status = turn.Handle(event()).status;
        turn.AfterCommit([status, reply] { reply(status); });
      },
      /*reachable=*/true,
      [=](const absl::Status& status) {
        if (absl::IsUnavailable(status)) {
          return world->agenda.After(kUserRetry, [=] { ChangeReservation(world, what, event); });
        }
        world->Count(absl::StrCat(what, status.ok() ? "" : " refused"));
        world->Trace([&] { return absl::StrCat(what, ": ", status.ToString()); });
      });
}

}  // namespace

void SetReservation(World* world, Reservation reservation, absl::Duration begins_in, absl::Duration lasts) {
  const absl::Time start = world->agenda.clock()->Read().wall + begins_in;
  *reservation.mutable_start() = ToProto(start);
  *reservation.mutable_end() = ToProto(start + lasts);
  ChangeReservation(world, "reservation set", [=]() -> core::Event { return core::SetReservation{reservation}; });
}

void DeleteReservation(World* world, const std::string& name) {
  ChangeReservation(world, "reservation deleted", [=]() -> core::Event { return core::DeleteReservation{name}; });
}

void Reader::Start() {
  // As a client notices that its connection has ended.
  if (life_ == nullptr || !life_->alive()) Open();
  world_->agenda.After(kUserRetry, [this] { Start(); });
}

void Reader::Open() {
  const uint64_t opened = ++opened_;
  Coordinator& coordinator = *world_->coordinator;
  if (!coordinator.up()) return;
  life_ = coordinator.life();
  coordinator.Post([this, opened, life = life_](server::Turn& turn) {
    turn.AfterCommit([this, opened, life, &turn] {
      if (opened != opened_) return;
      WatchRequest request;
      request.set_follow(true);
      request.set_events(true);
      request.set_cursor(cursor_);
      auto watch = turn.watches().Open(turn.core(), request, JobId());
      if (!watch.ok()) {
        if (life->alive()) world_->judge.Fail("streams are the history", watch.status().ToString());
        return;
      }
      watch_ = *watch;
      turn.watches().Next(watch_, [this, life, opened](const server::WatchPage& page) { Got(life, opened, page); });
    });
  });
}

void Reader::Got(const std::shared_ptr<Life>& life, uint64_t opened, const server::WatchPage& page) {
  if (!life->alive() || opened != opened_) return;
  for (const WatchItem& item : page.items) {
    if (item.has_event()) world_->judge.Read(item.event(), position_);
    cursor_ = item.cursor();
  }
  Next();
}

void Reader::Next() {
  world_->agenda.After(absl::Milliseconds(100), [this, opened = opened_, life = life_] {
    if (opened != opened_) return;
    if (!life->alive()) return;
    world_->coordinator->Post([this, opened, life](server::Turn& turn) {
      turn.AfterCommit([this, opened, life, &turn] {
        if (opened != opened_) return turn.watches().Close(watch_);
        turn.watches().Next(watch_, [this, life, opened](const server::WatchPage& page) { Got(life, opened, page); });
      });
    });
  });
}

void Reader::StartOver() {
  cursor_.clear();
  position_ = 0;
  ++opened_;
  life_ = nullptr;
}

void Reader::Disconnect() {
  world_->Count("reader disconnected");
  Open();
}

}  // namespace muster::simulate
