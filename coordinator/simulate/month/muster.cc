// Muster's own policy: the real core, with simulated workers.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "coordinator/core/core.h"
#include "coordinator/simulate/agenda.h"
#include "coordinator/simulate/month/policies.h"

namespace muster::simulate {
namespace {

constexpr absl::Duration kCheckpoints = absl::Hours(1);

class MusterReplay {
 public:
  explicit MusterReplay(const Month& month) : month_(month), tally_(&month), jobs_(month.jobs.size()) {
    core::Options options;
    options.max_submits_of_user = 0;
    options.store_times_every = absl::InfiniteDuration();  // it is never restarted
    core_ = core::Core::Recover(options, {}, agenda_.clock()->Read()).value();
  }

  MonthFigures Go() {
    for (uint32_t node = 0; node < kMonthNodes; ++node) Join(node);
    uint32_t users = 0;
    for (const MonthProject& project : month_.projects) SetProject(project, users);
    for (size_t job = 0; job < month_.jobs.size(); ++job) {
      agenda_.After(month_.jobs[job].submitted, [this, job] { Submit(job); });
    }
    while (ended_ < jobs_.size() && agenda_.RunNext(agenda_.now() + absl::Hours(24 * 365))) {
    }
    MUSTER_CHECK(ended_ == jobs_.size(), jobs_.size() - ended_, " jobs never ended");
    return tally_.Conclude("Muster");
  }

 private:
  struct Training {
    absl::Duration trained;  // as of its last checkpoint, which is what a restart resumes from
    uint64_t generation = 0;
    bool stopping = false;
    bool runs = false;  // trains since `since`
    SteadyTime since;
  };

  absl::Duration now() const { return agenda_.since_start(); }

  void Join(uint32_t number) {
    core::NodeConnected hello;
    hello.node.set_id(absl::StrFormat("node-%02d", number));
    hello.node.set_hostname(hello.node.id());
    hello.node.set_boot_id("boot");
    hello.node.set_incarnation("1");
    for (uint32_t slot = 0; slot < kMonthSlotsOfNode; ++slot) {
      hello.node.add_slots()->set_index(slot);
      hello.node.mutable_slots(static_cast<int>(slot))->set_device(DEVICE_CUDA);
    }
    Handle(hello);
    core::NodeObserved report{NodeId(hello.node.id()), Incarnation("1"), {}};
    report.observed.set_full(true);
    Handle(report);
  }

  void SetProject(const MonthProject& of, uint32_t& users) {
    Project project;
    project.set_name(of.name);
    project.set_cohort("cluster");
    project.set_weight(of.nominal);
    for (uint32_t user = 0; user < of.users; ++user) project.add_users(month_.UserName(users++));
    DeviceQuota& quota = *project.add_quotas();
    quota.set_device(DEVICE_CUDA);
    quota.set_nominal(of.nominal);
    Handle(core::SetProject{project});
  }

  // Training counts a step a second.
  void Submit(size_t index) {
    const MonthJob& job = month_.jobs[index];
    JobSpec spec;
    spec.set_name("job");
    spec.set_max_restarts(3);
    spec.mutable_resources()->set_ranks(job.ranks);
    spec.mutable_resources()->set_device(DEVICE_CUDA);
    spec.set_time_limit(absl::StrCat(absl::ToInt64Minutes(job.time_limit), "m"));
    Train& train = *spec.mutable_train();
    train.set_steps(static_cast<uint64_t>(absl::ToInt64Seconds(job.runs)));
    train.mutable_checkpoint()->set_path("/checkpoints/{job}");
    train.mutable_checkpoint()->set_keep(2);
    tally_.Submitted(index, now());
    Handle(core::SubmitJob{absl::StrCat("request-", index), month_.UserName(job.user), spec, absl::StrCat(index)});
  }

  void Handle(const core::Event& event) {
    const core::Outcome outcome = core_->Handle(event, agenda_.clock()->Read());
    MUSTER_CHECK(outcome.status.ok(), core::NameOf(event), ": ", outcome.status.ToString());
    for (const core::RowChange& row : outcome.rows) {
      if (!row.value.has_value()) continue;
      if (absl::StartsWith(row.key, "generation/")) GenerationChanged(*row.value);
      if (absl::StartsWith(row.key, "job/")) JobChanged(*row.value);
    }
    for (const core::Action& action : outcome.actions) {
      const auto* const request = std::get_if<core::RequestPlan>(&action);
      if (request == nullptr) continue;
      agenda_.After(absl::ZeroDuration(), [this, request = *request] {
        Handle(core::PlanReady{request.key, Plan(request)});
      });
    }
    const std::optional<SteadyTime> tick = core_->NextTick();
    if (!tick.has_value() || (tick_.has_value() && *tick_ <= *tick)) return;
    tick_ = tick;
    agenda_.At(*tick, [this, tick = *tick] {
      if (tick_ != tick) return;  // an earlier one came in between
      tick_.reset();
      Handle(core::Tick{});
    });
  }

  static core::PlannedPtr Plan(const core::RequestPlan& request) {
    auto planned = std::make_shared<core::Planned>();
    planned->table_sha256 = "table";
    planned->digests = {"digest"};
    planned->op_names.emplace_back();
    for (uint32_t rank = 0; rank < request.slots.ranks.size(); ++rank) planned->roles.emplace_back().set_rank(rank);
    return planned;
  }

  static size_t IndexOf(const std::string& id) {
    size_t index = 0;
    MUSTER_CHECK(absl::SimpleAtoi(id.substr(id.find('-') + 1), &index), "an unknown job ", id);
    return index;
  }

  void GenerationChanged(const std::string& bytes) {
    Generation generation;
    MUSTER_CHECK(generation.ParseFromString(bytes), "a generation does not parse");
    const size_t index = IndexOf(generation.job());
    Training& job = jobs_[index];
    if (generation.number() > job.generation) {
      // It may be stopped and start again with one event.
      if (job.generation > 0 && over_[index] != job.generation) tally_.Preempted(index, now());
      job = {.trained = job.trained, .generation = generation.number()};
      tally_.Started(index, now());
      agenda_.After(kMonthStart, [this, index, generation] { Begin(index, generation); });
    } else if (generation.state() == GENERATION_STATE_STOPPING && !job.stopping) {
      job.stopping = true;
      agenda_.After(kMonthStop, [this, index, generation] { Stop(index, generation); });
    }
  }

  // It has ended, or waits again.
  void JobChanged(const std::string& bytes) {
    Job row;
    MUSTER_CHECK(row.ParseFromString(bytes), "a job does not parse");
    const size_t index = IndexOf(row.id());
    Training& job = jobs_[index];
    if (row.generation() == 0 || row.generation() != job.generation || over_[index] == job.generation) return;
    const bool ended =
        row.state() == JOB_STATE_COMPLETED || row.state() == JOB_STATE_FAILED || row.state() == JOB_STATE_CANCELLED;
    ended_ += ended;
    if (ended) tally_.Ended(index, now(), row.state() == JOB_STATE_COMPLETED);
    if (row.state() == JOB_STATE_QUEUED) tally_.Preempted(index, now());
    if (ended || row.state() == JOB_STATE_QUEUED) over_[index] = job.generation;
  }

  bool IsCurrent(size_t index, const Generation& generation) const {
    return jobs_[index].generation == generation.number() && !jobs_[index].stopping;
  }

  void Begin(size_t index, const Generation& generation) {
    if (!IsCurrent(index, generation)) return;
    Training& job = jobs_[index];
    job.runs = true;
    job.since = agenda_.now();
    Report(generation, RANK_STATE_RUNNING, RankExit::CAUSE_UNSPECIFIED);
    agenda_.After(month_.jobs[index].runs - job.trained, [this, index, generation] { Finish(index, generation); });
    agenda_.After(kCheckpoints, [this, index, generation] { Checkpoint(index, generation); });
  }

  void Checkpoint(size_t index, const Generation& generation) {
    if (!IsCurrent(index, generation)) return;
    Save(index, generation);
    agenda_.After(kCheckpoints, [this, index, generation] { Checkpoint(index, generation); });
  }

  void Save(size_t index, const Generation& generation) {
    Training& job = jobs_[index];
    const SteadyTime until = agenda_.now();
    job.trained += until - job.since;
    job.since = until;
    core::RankRecord event{{JobId(generation.job()), generation.number(), 0}, {}};
    const int64_t step = absl::ToInt64Seconds(job.trained);
    event.record.mutable_checkpoint()->set_step(static_cast<uint64_t>(step));
    event.record.mutable_checkpoint()->set_directory(absl::StrCat("step-", step));
    Handle(event);
  }

  // It trains until its stop begins; then it writes its checkpoint.
  void Stop(size_t index, const Generation& generation) {
    Training& job = jobs_[index];
    if (job.generation != generation.number()) return;
    if (job.runs) {
      job.since = job.since + kMonthStop;  // that time is no training
      Save(index, generation);
    }
    Report(generation, RANK_STATE_EXITED, RankExit::STOPPED);
  }

  void Finish(size_t index, const Generation& generation) {
    if (!IsCurrent(index, generation)) return;
    jobs_[index].stopping = true;
    for (const RankPlacement& rank : generation.ranks()) {
      core::RankRecord event{{JobId(generation.job()), generation.number(), rank.rank()}, {}};
      event.record.mutable_finished()->set_step(static_cast<uint64_t>(absl::ToInt64Seconds(month_.jobs[index].runs)));
      Handle(event);
    }
    Report(generation, RANK_STATE_EXITED, RankExit::COMPLETED);
  }

  // One report of each node.
  void Report(const Generation& generation, RankState state, RankExit::Cause cause) {
    std::map<std::string, Observed> by_node;
    for (const RankPlacement& placed : generation.ranks()) {
      ObservedRank& rank = *by_node[placed.node()].add_ranks();
      rank.mutable_key()->set_job(generation.job());
      rank.mutable_key()->set_generation(generation.number());
      rank.mutable_key()->set_rank(placed.rank());
      rank.set_state(state);
      if (state == RANK_STATE_EXITED) rank.mutable_exit()->set_cause(cause);
    }
    for (const auto& [node, observed] : by_node) Handle(core::NodeObserved{NodeId(node), Incarnation("1"), observed});
  }

  const Month& month_;
  Tally tally_;
  Agenda agenda_;
  std::unique_ptr<core::Core> core_;
  std::vector<Training> jobs_;
  std::map<size_t, uint64_t> over_;  // by job: its last generation that has ended
  std::optional<SteadyTime> tick_;
  size_t ended_ = 0;
};

}  // namespace

MonthFigures ReplayMuster(const Month& month) { return MusterReplay(month).Go(); }

}  // namespace muster::simulate
