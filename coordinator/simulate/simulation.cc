#include "coordinator/simulate/simulation.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/simulate/coordinator.h"
#include "coordinator/simulate/faults.h"
#include "coordinator/simulate/gang.h"
#include "coordinator/simulate/racks.h"
#include "coordinator/simulate/users.h"
#include "coordinator/simulate/worker_node.h"
#include "coordinator/simulate/world.h"
#include "coordinator/spec/resolve.h"

namespace muster::simulate {
namespace {

constexpr absl::Duration kCalm = absl::Minutes(6);  // no fault starts after it; all are repaired
constexpr absl::Duration kAtLeast = absl::Minutes(10);
constexpr absl::Duration kAtMost = absl::Minutes(40);  // by then every job has ended

constexpr std::array kOwners = {"ann", "bob", "somebody"};

constexpr uint64_t kRunTwice = 16;  // each such seed is run again without jumps of the wall clock

// Whether it runs on a multiple of a number of ranks.
bool InGroups(const JobSpec& spec) {
  return spec.train().parallel().tensor() > 1 || spec.train().parallel().context() > 1;
}

JobSpec MakeSpec(Random& random, uint64_t number, int64_t slots) {
  JobSpec spec;
  spec.set_name(absl::StrCat("job", number));
  spec.set_priority(static_cast<int32_t>(random.Between(-1, 1)));
  spec.set_max_restarts(static_cast<uint32_t>(random.Between(2, 8)));
  // Sometimes a job that needs most of the cluster.
  const int64_t most = random.Percent(15) ? slots * 2 / 3 : 8;
  spec.mutable_resources()->set_ranks(static_cast<uint32_t>(random.Between(1, most)));
  spec.mutable_resources()->set_device(DEVICE_AUTO);
  if (random.Percent(40)) {
    // Sometimes a job that takes all free slots, and grows when there are more.
    const bool all = random.Percent(12);
    if (all) spec.mutable_resources()->set_ranks(static_cast<uint32_t>(slots));
    spec.mutable_resources()->set_min_ranks(
        static_cast<uint32_t>(random.Between(1, all ? int64_t{8} : int64_t{spec.resources().ranks()})));
  }
  Train& train = *spec.mutable_train();
  Resources& resources = *spec.mutable_resources();
  if ((number == 2 || number == 3) && resources.ranks() <= 8) {
    if (number == 2) train.mutable_parallel()->set_tensor(2);   // pairs of ranks that must be on one node
    if (number == 3) train.mutable_parallel()->set_context(2);  // pairs on any nodes
    resources.set_ranks(resources.ranks() + resources.ranks() % 2);
    if (resources.has_min_ranks()) resources.set_min_ranks(resources.min_ranks() + resources.min_ranks() % 2);
  }
  train.set_steps(static_cast<uint64_t>(random.Between(5, 40)));
  // Some users give their jobs the same folder: one has it, the others are refused and put {job} in.
  train.mutable_checkpoint()->set_path(number < 4 ? "/checkpoints/{job}" : "/checkpoints/shared");
  train.mutable_checkpoint()->set_every_steps(static_cast<uint64_t>(random.Between(2, 8)));
  train.mutable_checkpoint()->set_keep(static_cast<uint32_t>(random.Between(1, 3)));
  return spec;
}

// What the planner needs of a job beside that.
void MakePlannable(Random& random, JobSpec& spec) {
  spec.set_api_version("muster/v1");
  spec.set_kind("Job");
  Train& train = *spec.mutable_train();
  train.mutable_data()->set_tokens("/data/train.bin");
  Gpt2& model = *train.mutable_model()->mutable_gpt2();
  model.set_layers(static_cast<uint32_t>(random.Between(1, 4)));
  model.set_width(64), model.set_heads(2), model.set_vocabulary(256), model.set_context(32);
  // Often one that only some numbers of ranks divide.
  train.mutable_batch()->set_sequences(spec.resources().ranks() * static_cast<uint32_t>(random.Between(1, 4)));
  Strategy& strategy = *train.mutable_strategy();
  switch (random.Below(4)) {
    case 0:
      strategy.mutable_auto_();
      train.mutable_parallel();  // of strategies alone
      break;
    case 1:
      strategy.mutable_ddp();
      break;
    case 2:
      strategy.mutable_zero()->set_stage(static_cast<uint32_t>(random.Between(1, 3)));
      break;
    default:
      strategy.mutable_fsdp();
  }
}

// Of their own random numbers, so that the other seeds stay what they were.
void DrawRareFaults(Random random, Settings& settings) {
  settings.restores = random.Percent(12) ? 1 + random.Below(2) : 0;
  settings.long_outages = random.Percent(12);
  settings.state_disk_fills = random.Percent(12);
  settings.real_plans = random.Percent(6);
  settings.outbox_shrinks = random.Percent(50);
  if (!settings.long_outages) return;
  settings.orphan_grace = random.Between(absl::Seconds(40), absl::Minutes(2));
  const bool never = random.Percent(30);
  if (never || settings.only_coordinator_fails) {
    settings.outage_grace = absl::InfiniteDuration();
  } else if (random.Percent(40)) {
    settings.outage_grace = settings.orphan_grace + random.Between(absl::Seconds(5), absl::Minutes(1));
  }
}

// Of their own random numbers, too.
void DrawSharing(Random random, Settings& settings) {
  settings.shared = random.Percent(12);
  if (!settings.shared) return;
  settings.core.preempt_lower_priority = random.Percent(50);
  settings.core.preemption_min_run = random.Between(absl::Seconds(5), absl::Seconds(40));
  settings.core.fair_share_half_life = random.Between(absl::Minutes(1), absl::Hours(1));
}

// Likewise.
void DrawOrderAndPlaces(Random random, Settings& settings) {
  settings.chained = random.Percent(25);
  settings.placed = random.Percent(20);
}

// Likewise. Windows last minutes, so the wall clock jumps by less.
void DrawReservations(Random random, Settings& settings) {
  settings.reserved = random.Percent(12);
  if (settings.reserved) settings.longest_wall_jump = absl::Seconds(20);
}

// Likewise. The planner would need a model.
void DrawReplicas(Random random, Settings& settings) {
  settings.replicated = random.Percent(10) && !settings.real_plans;
}

// Likewise.
void DrawDamage(Random random, Settings& settings) { settings.checkpoints_rot = random.Percent(12); }

JobSpec MakeReplicated(Random& random) {
  JobSpec spec;
  spec.set_name("run");
  spec.set_max_restarts(static_cast<uint32_t>(random.Between(2, 8)));
  spec.mutable_resources()->set_ranks(static_cast<uint32_t>(random.Between(1, 3)));
  spec.mutable_resources()->set_device(DEVICE_AUTO);
  Train& train = *spec.mutable_train();
  train.set_steps(static_cast<uint64_t>(random.Between(20, 60)));
  train.mutable_checkpoint()->set_path("/checkpoints/{job}");
  train.mutable_checkpoint()->set_every_steps(static_cast<uint64_t>(random.Between(2, 8)));
  train.mutable_checkpoint()->set_keep(2);
  Sync& sync = *train.mutable_sync();
  sync.set_replicas(static_cast<uint32_t>(random.Between(2, 4)));
  sync.set_fragments(static_cast<uint32_t>(random.Between(1, 2)));
  sync.set_every(static_cast<uint32_t>(random.Between(2, 6)));
  // Often so much that a replica that restarts is waited for.
  sync.set_patience_seconds(static_cast<uint32_t>(random.Percent(50) ? random.Between(5, 20) : random.Between(30, 90)));
  return spec;
}

void DrawSettings(World& world) {
  Random& random = world.random;
  core::Options& core = world.settings.core;
  core.grow_after = random.Between(absl::Seconds(10), absl::Minutes(1));
  core.grow_settle = random.Between(absl::Seconds(5), absl::Seconds(30));
  Timeouts& timeouts = core.timeouts;
  timeouts = Derive(world.settings.detection);
  timeouts.node_grace = random.Between(absl::Seconds(2), absl::Seconds(15));
  timeouts.start = random.Between(absl::Minutes(1), absl::Minutes(3));
  timeouts.stop = random.Between(absl::Seconds(10), absl::Seconds(30));
  if (random.Percent(30)) world.settings.orphan_grace = random.Between(absl::Seconds(40), absl::Minutes(3));
  world.settings.lost_calls_percent = random.Percent(50) ? 10 : 0;
  world.settings.repeated_messages_percent = random.Percent(50) ? 5 : 0;
  if (!random.Percent(10)) return;
  world.settings.only_coordinator_fails = true;
  timeouts.start = absl::Minutes(20);
  world.settings.orphan_grace = absl::Minutes(30);
}

class Run {
 public:
  Run(uint64_t seed, const std::function<void(const std::string&)>& trace)
      : world_(seed),
        jumps_(seed ^ 0x5bd1e995),
        sharing_(seed ^ 0x9e3779b9),
        chains_(seed ^ 0x85ebca6b),
        places_(seed ^ 0xc2b2ae35),
        reservations_(seed ^ 0x27d4eb2f),
        replicas_(seed ^ 0x165667b1) {
    DrawSettings(world_);
    DrawRareFaults(Random(~seed), world_.settings);
    DrawSharing(Random(seed * 3 + 1), world_.settings);
    DrawOrderAndPlaces(Random(seed * 5 + 2), world_.settings);
    DrawReservations(Random(seed * 7 + 3), world_.settings);
    DrawReplicas(Random(seed * 11 + 4), world_.settings);
    DrawDamage(Random(seed * 13 + 5), world_.settings);
    world_.judge.Expect(world_.settings.core.preemption_min_run, world_.settings.core.preempt_lower_priority);
    if (trace == nullptr) return;
    world_.trace = [this, trace](const std::string& line) {
      trace(absl::StrFormat("%10.3f %s", absl::ToDoubleSeconds(world_.agenda.since_start()), line));
    };
  }

  // Whether what it decides depends on the wall clock.
  bool reads_wall_clock() const { return world_.settings.reserved; }

  // `jumps`: the wall clock jumps now and then. That takes none of the seed's random numbers, so it changes nothing
  // else.
  Outcome Go(bool jumps, bool count_decisions) {
    world_.settings.wall_clock_never_jumps = !jumps;
    if (count_decisions) world_.judge.CountDecisions();
    if (jumps) JumpLater();
    Begin();
    const SteadyTime start = world_.agenda.now();
    const auto run_until = [&](absl::Duration when) {
      while (!world_.judge.failed() && world_.agenda.RunNext(start + when)) {
      }
    };
    run_until(kCalm);
    Calm();
    run_until(kAtLeast);
    for (absl::Duration more = kAtLeast; more < kAtMost && !AtRest(); more += absl::Minutes(1)) run_until(more);
    Conclude();
    Outcome outcome;
    outcome.failure = world_.judge.failure();
    outcome.fingerprint = world_.judge.fingerprint();
    outcome.decisions = world_.judge.decisions();
    outcome.virtual_time = world_.agenda.since_start();
    outcome.counts = world_.counts;
    return outcome;
  }

 private:
  void JumpLater() {
    world_.agenda.After(jumps_.Between(absl::Seconds(1), absl::Minutes(1)), [this] {
      world_.JumpWall(jumps_.Between(absl::Hours(-48), absl::Hours(48)));
      JumpLater();
    });
  }

  void Begin() {
    Random& random = world_.random;
    world_.coordinator = std::make_unique<Coordinator>(&world_);
    world_.gangs = std::make_unique<Gangs>(&world_);
    world_.coordinator->Start();
    const int64_t nodes = random.Between(20, 26);
    int64_t slots = 0;
    std::vector<int64_t> slots_of;
    for (int64_t i = 0; i < nodes; ++i) {
      const auto here = static_cast<uint32_t>(random.Between(1, 4));
      slots += here;
      slots_of.push_back(here);
      world_.nodes.push_back(std::make_unique<WorkerNode>(&world_, absl::StrFormat("node-%02d", i), here));
      world_.agenda.After(random.Between(absl::ZeroDuration(), absl::Seconds(5)),
                          [node = world_.nodes.back().get()] { node->StartDaemon(); });
    }
    std::map<std::string, int64_t> most;  // ranks of a job, by owner
    const int64_t jobs = random.Between(3, 7);
    for (int64_t i = 0; i < jobs; ++i) {
      JobSpec spec = MakeSpec(random, static_cast<uint64_t>(i), slots);
      if (world_.settings.real_plans) {
        MakePlannable(random, spec);
        const std::vector<SpecError> errors = spec::Resolve({}, spec);
        if (!errors.empty()) world_.judge.Fail("a valid job is accepted", errors[0].ShortDebugString());
      }
      const bool owners = world_.settings.shared || world_.settings.reserved;
      const std::string owner = owners ? kOwners[static_cast<size_t>(i) % kOwners.size()] : "somebody";
      if (world_.settings.shared) {
        Crowd(spec, slots);
        if (sharing_.Percent(30)) spec.set_time_limit(absl::StrCat(sharing_.Between(60, 600), "s"));
        spec.set_preemptible(sharing_.Percent(30));
        if (sharing_.Percent(30) && int64_t{spec.resources().ranks()} <= slots / 2) {
          spec.mutable_resources()->add_node_selector(
              absl::StrFormat("node!=node-%02d", sharing_.Between(0, nodes - 1)));
        }
        most[owner] = std::max(most[owner], int64_t{spec.resources().ranks()});
      }
      if (world_.settings.placed) Place(spec, slots_of);
      if (world_.settings.reserved) UseReservation(owner, spec);
      users_.push_back(std::make_unique<User>(&world_, absl::StrCat("request", i), std::move(spec), owner));
      if (world_.settings.chained && i > 0 && chains_.Percent(60)) users_.back()->ComeAfter(JobsBefore());
      world_.agenda.After(random.Between(absl::ZeroDuration(), absl::Seconds(i < 3 ? 20 : 300)),
                          [user = users_.back().get()] { user->Submit(); });
    }
    if (world_.settings.replicated) {
      users_.push_back(std::make_unique<User>(&world_, "replicas", MakeReplicated(replicas_)));
      world_.agenda.After(replicas_.Between(absl::ZeroDuration(), absl::Seconds(20)),
                          [user = users_.back().get()] { user->Submit(); });
    }
    if (world_.settings.shared) SetProjects(slots, most);
    if (world_.settings.reserved) Reserve(nodes);
    for (int i = 0; i < 2; ++i) {
      readers_.push_back(std::make_unique<Reader>(&world_));
      readers_.back()->Start();
    }
    faults_ = std::make_unique<Faults>(&world_, &users_, &readers_);
    faults_->Plan(kCalm);
  }

  // One or two of the users before the last one.
  std::vector<const User*> JobsBefore() {
    std::vector<const User*> before;
    for (const auto& user : users_) before.push_back(user.get());
    before.pop_back();
    const size_t first = chains_.Below(before.size()), second = chains_.Below(before.size());
    if (first == second || chains_.Percent(50)) return {before[first]};
    return {before[first], before[second]};
  }

  // A rack is required only by a job that fits into either, whichever nodes never return.
  void Place(JobSpec& spec, const std::vector<int64_t>& slots_of) {
    constexpr int64_t kGone = 16;  // slots of at most three nodes, and of one that the job avoids
    Resources& resources = *spec.mutable_resources();
    const int64_t together = std::max(1u, spec.train().parallel().tensor());
    std::array<int64_t, kRacks> racks = {};
    for (size_t i = 0; i < slots_of.size(); ++i) racks[i % kRacks] += slots_of[i] - slots_of[i] % together;
    const int64_t most = *std::min_element(racks.begin(), racks.end()) - kGone;
    if (places_.Percent(30)) resources.set_placement(NODE_PLACEMENT_SPREAD);
    if (places_.Percent(60) && int64_t{resources.ranks()} <= most) {
      resources.mutable_topology()->set_required("rack");
    } else if (places_.Percent(50)) {
      resources.mutable_topology()->add_preferred("rack");
    }
  }

  // A larger job that runs for longer, so that jobs are in each other's way.
  void Crowd(JobSpec& spec, int64_t slots) {
    Train& train = *spec.mutable_train();
    if (world_.settings.real_plans || InGroups(spec) || !sharing_.Percent(70)) return;
    Resources& resources = *spec.mutable_resources();
    resources.set_ranks(static_cast<uint32_t>(sharing_.Between(slots / 4, slots / 2)));
    if (resources.has_min_ranks()) {
      resources.set_min_ranks(static_cast<uint32_t>(sharing_.Between(1, int64_t{resources.ranks()})));
    }
    train.set_steps(train.steps() * 3);
  }

  // The first two owners have a project each, in one cohort that owns the cluster. Each may borrow enough for its
  // largest job, or whatever is idle.
  void SetProjects(int64_t slots, const std::map<std::string, int64_t>& most) {
    const int64_t first = sharing_.Between(0, slots);
    for (size_t i = 0; i < 2; ++i) {
      const std::string owner = kOwners[i];
      const auto its = most.find(owner);
      const int64_t nominal = i == 0 ? first : slots - first, largest = its == most.end() ? 0 : its->second;
      Project project;
      project.set_name(absl::StrCat("of-", owner));
      project.set_cohort("all");
      project.add_users(owner);
      project.set_weight(static_cast<double>(sharing_.Between(1, 4)));
      DeviceQuota& quota = *project.add_quotas();
      quota.set_device(DEVICE_CPU);
      quota.set_nominal(static_cast<uint32_t>(nominal));
      if (sharing_.Percent(60)) {
        quota.set_borrowing_limit(
            static_cast<uint32_t>(std::max<int64_t>(0, largest - nominal) + sharing_.Between(0, 4)));
      }
      projects_.push_back(project);
      world_.agenda.After(sharing_.Between(absl::ZeroDuration(), absl::Seconds(60)),
                          [this, project] { SetProject(&world_, project); });
    }
  }

  // One for maintenance, and one for each of the first two owners.
  static std::string ReservationOf(size_t owner) { return absl::StrCat("of-", kOwners[owner]); }
  void UseReservation(const std::string& owner, JobSpec& spec) {
    if (reservations_.Percent(40)) spec.set_time_limit(absl::StrCat(reservations_.Between(60, 300), "s"));
    for (size_t i = 0; i < 2; ++i) {
      if (owner != kOwners[i] || !reservations_.Percent(50)) continue;
      Resources& resources = *spec.mutable_resources();
      resources.set_reservation(ReservationOf(i));
      resources.clear_topology();
      if (world_.settings.real_plans || InGroups(spec)) continue;
      resources.set_ranks(std::min(resources.ranks(), 4u));
      if (resources.has_min_ranks()) resources.set_min_ranks(1);
    }
  }
  void Reserve(int64_t nodes) {
    std::vector<Reservation> all(3);
    all[0].set_name("maintenance");
    for (size_t i = 0; i < 2; ++i) {
      all[i + 1].set_name(ReservationOf(i));
      all[i + 1].add_users(kOwners[i]);
    }
    for (const Reservation& of : all) {
      const int64_t times = reservations_.Between(1, 3);  // the later ones replace it
      for (int64_t i = 0; i < times; ++i) {
        Reservation reservation = of;
        for (int64_t node = reservations_.Below(4); node < nodes; node += reservations_.Between(1, 8)) {
          reservation.add_nodes(absl::StrFormat("node-%02d", node));
        }
        const absl::Duration begins_in = reservations_.Between(absl::Seconds(-5), absl::Minutes(2));
        const absl::Duration lasts = reservations_.Between(absl::Seconds(10), absl::Minutes(3));
        world_.agenda.After(reservations_.Between(absl::Seconds(5), absl::Minutes(5)),
                            [=, this] { SetReservation(&world_, reservation, begins_in, lasts); });
      }
      if (!reservations_.Percent(30)) continue;
      world_.agenda.After(reservations_.Between(absl::Minutes(1), absl::Minutes(6)),
                          [=, this] { DeleteReservation(&world_, of.name()); });
    }
  }

  void Calm() {
    if (world_.judge.failed()) return;
    world_.Trace([] { return "faults are over"; });
    world_.calm = true;
    faults_->HealAll();
    ResumeInTheEnd(&world_);
    for (const Project& project : projects_) SetProject(&world_, project);  // a restored store may not know it
  }

  bool AtRest() const {
    if (world_.judge.failed()) return true;
    // A user whose job was refused in a reservation tries again for a while.
    const auto has_job = [](const auto& user) { return !user->job().empty(); };
    if (!std::all_of(users_.begin(), users_.end(), has_job)) return false;
    return std::all_of(world_.judge.jobs().begin(), world_.judge.jobs().end(), [](const auto& job) {
      const JobState state = job.second.state;
      return job.second.deleted || state == JOB_STATE_COMPLETED || state == JOB_STATE_FAILED ||
             state == JOB_STATE_CANCELLED;
    });
  }

  void Conclude() {
    if (world_.judge.failed()) return;
    // Waits for acknowledgements in transit, and processes that are being killed.
    const SteadyTime until = world_.agenda.now() + absl::Minutes(1);
    while (!world_.judge.failed() && world_.agenda.RunNext(until)) {
    }
    for (const auto& user : users_) {
      if (user->job().empty()) world_.judge.Fail("every job is accepted", "one never was");
    }
    for (const auto& node : world_.nodes) {
      if (node->destroyed()) continue;
      if (node->living() > 0 || node->unfinished() > 0) {
        world_.judge.Fail("no orphans", absl::StrCat(node->living(), " processes and ", node->unfinished(),
                                                     " unfinished ranks on ", node->id()));
      }
    }
    for (const auto& reader : readers_) world_.judge.Conclude(reader->position());
    if (world_.settings.only_coordinator_fails) world_.judge.ConcludeUndisturbed();
    if (world_.settings.replicated) {
      world_.counts["coordinator restarted in an exchange"] += world_.judge.restarts_in_exchanges();
      world_.counts["replica left out of an exchange"] += world_.judge.EventsOf("sync.left_out");
      world_.counts["run went on from an older exchange"] += world_.judge.EventsOf("sync.rolled_back");
    }
    if (world_.settings.reserved) {
      world_.counts["generation in its reservation"] += world_.judge.started_in_reservations();
      world_.counts["generation that ends before a reservation"] += world_.judge.started_before_reservations();
    }
    for (const auto& [id, account] : world_.judge.jobs()) {
      for (const auto& [number, generation] : account.generations) {
        world_.Count(absl::StrCat("generation ended: ", EndReason_Name(generation.reason()).substr(11)));
      }
      if (account.hung_generation > 0) world_.Count("job with a hang");
    }
  }

  World world_;
  Random jumps_, sharing_, chains_, places_, reservations_, replicas_;
  std::vector<std::unique_ptr<User>> users_;
  std::vector<Project> projects_;
  std::vector<std::unique_ptr<Reader>> readers_;
  std::unique_ptr<Faults> faults_;
};

}  // namespace

Outcome Simulate(uint64_t seed, const std::function<void(const std::string&)>& trace) {
  const bool twice = seed % kRunTwice == 0;
  Run run(seed, trace);
  Outcome outcome = run.Go(/*jumps=*/true, /*count_decisions=*/twice);
  if (!twice || !outcome.failure.empty() || run.reads_wall_clock()) return outcome;
  const Outcome steady = Run(seed, nullptr).Go(/*jumps=*/false, /*count_decisions=*/true);
  ++outcome.counts["run again without jumps of the wall clock"];
  if (steady.decisions != outcome.decisions) {
    outcome.failure = "a jump of the wall clock changes no decision: without jumps, this seed decides otherwise";
  }
  return outcome;
}

}  // namespace muster::simulate
