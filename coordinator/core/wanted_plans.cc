#include "coordinator/core/wanted_plans.h"

namespace muster::core {

Plans::Wanted* Plans::Find(const JobId& job, Purpose purpose) {
  const auto found = wanted_.find({job, purpose});
  return found == wanted_.end() ? nullptr : &found->second;
}

const Plans::Wanted* Plans::Find(const JobId& job, Purpose purpose) const {
  const auto found = wanted_.find({job, purpose});
  return found == wanted_.end() ? nullptr : &found->second;
}

Plans::Wanted* Plans::Ask(const JobId& job, Purpose purpose, JobSpec spec, Slots slots, scheduler::Decision decision) {
  std::string key = PlanKey(spec, slots);
  Wanted& wanted = wanted_[{job, purpose}];
  wanted = {std::move(key), std::move(spec), std::move(slots), std::move(decision), std::nullopt};
  if (offered_.has_value() && offered_->key == wanted.key) wanted.answer = offered_->plan;
  changed_ = true;
  return &wanted;
}

void Plans::Drop(const JobId& job, Purpose purpose) { changed_ |= wanted_.erase({job, purpose}) > 0; }

void Plans::DropAll(const JobId& job) {
  for (const Purpose purpose : {Purpose::kStart, Purpose::kGrowth, Purpose::kGeneration}) Drop(job, purpose);
}

std::vector<Plans::Waiting> Plans::Answer(const PlanReady& plan) {
  in_flight_.erase(plan.key);
  std::vector<Waiting> waiting;
  for (auto& [who, wanted] : wanted_) {
    if (wanted.key != plan.key || wanted.answer.has_value()) continue;
    wanted.answer = plan.plan;
    waiting.push_back(who);
  }
  return waiting;
}

Plans::Requests Plans::TakeRequests() {
  Requests requests;
  offered_.reset();
  if (!std::exchange(changed_, false)) return requests;
  std::map<std::string, const Wanted*> open;
  for (const auto& [who, wanted] : wanted_) {
    if (!wanted.answer.has_value()) open.emplace(wanted.key, &wanted);
  }
  for (auto key = in_flight_.begin(); key != in_flight_.end();) {
    if (open.contains(*key)) {
      ++key;
      continue;
    }
    requests.cancelled.push_back({*key});
    key = in_flight_.erase(key);
  }
  for (const auto& [key, wanted] : open) {
    if (in_flight_.insert(key).second) requests.requested.push_back({key, wanted->spec, wanted->slots});
  }
  return requests;
}

}  // namespace muster::core
