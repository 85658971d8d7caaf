// Those who use the cluster: users, who submit jobs and change their minds, an administrator, and readers of the
// stream. Their calls may get lost either way; they call again until they have an answer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/simulate/coordinator.h"
#include "coordinator/simulate/world.h"

namespace muster::simulate {

class User {
 public:
  User(World* world, std::string request, JobSpec spec)
      : world_(world), request_(std::move(request)), spec_(std::move(spec)) {}

  void Submit();
  // What users do to a job, once: nothing before it is accepted.
  void Pause();
  void Resume();
  void Cancel();
  void Delete();  // once it has ended, if it has
  // Nobody forgets a job for ever.
  void ResumeInTheEnd();

  const JobId& job() const { return job_; }

 private:
  template <typename Event>
  void Change(const char* what, std::function<void()> accepted = nullptr);

  World* const world_;
  const std::string request_;
  const JobSpec spec_;
  JobId job_;  // once it is accepted
  uint64_t tries_ = 0;
};

// Drains or undrains; again until it is answered.
void Drain(World* world, const std::string& node, bool drain);

// Follows all events, from the first, across restarts of the coordinator and its own disconnections.
class Reader {
 public:
  explicit Reader(World* world) : world_(world) {}
  void Start();
  // It loses its stream.
  void Disconnect();
  size_t position() const { return position_; }

 private:
  void Open();
  void Next();
  void Got(const std::shared_ptr<Life>& life, uint64_t opened, const server::WatchPage& page);

  World* const world_;
  std::string cursor_;
  size_t position_ = 0;  // of the history, read so far
  uint64_t opened_ = 0;
  std::shared_ptr<server::Watch> watch_;
  std::shared_ptr<Life> life_;
};

}  // namespace muster::simulate
