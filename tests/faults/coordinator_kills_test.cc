// SIGKILL of the coordinator, again and again, while jobs are submitted, while the ranks of a job rendezvous, while
// they publish checkpoints, and with a worker daemon killed at the same moment. No job is lost or doubled, every
// running job completes in its first generation, and a rank that trains all the time is not disturbed.
//
// 20 kills; $MUSTER_KILLS sets another number and prints the figures:
//   MUSTER_KILLS=200 bazel run //tests/faults:coordinator_kills_test
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "proto/jobs_service.grpc.pb.h"
#include "testing/wait.h"
#include "tests/cluster/cluster.h"

namespace muster::cluster {
namespace {

int Kills() {
  const char* const text = getenv("MUSTER_KILLS");
  int kills = 20;
  if (text != nullptr && (!absl::SimpleAtoi(text, &kills) || kills < 1)) ADD_FAILURE() << "MUSTER_KILLS: " << text;
  return kills;
}

// Calls the coordinator directly: a CLI process for each call would take longer than the events that the test waits
// for.
class Service {
 public:
  explicit Service(const std::string& address) : stub_(Jobs::NewStub(rpc::Dial(address))) {}

  grpc::Status Submit(const SubmitRequest& request, SubmitReply* reply) {
    return stub_->Submit(Context().get(), request, reply);
  }
  bool Serves() {
    ListJobsReply reply;
    return stub_->List(Context().get(), ListJobsRequest(), &reply).ok();
  }
  // Empty while the coordinator is away.
  std::vector<Job> List() {
    ListJobsRequest request;
    request.set_all(true);
    request.set_limit(1'000'000);
    ListJobsReply reply;
    std::vector<Job> jobs;
    if (!stub_->List(Context().get(), request, &reply).ok()) return jobs;
    for (const JobSummary& summary : reply.jobs()) jobs.push_back(summary.job());
    return jobs;
  }
  Job Get(const std::string& id) {
    GetJobRequest request;
    request.set_job(id);
    GetJobReply reply;
    return stub_->Get(Context().get(), request, &reply).ok() ? reply.job() : Job();
  }

 private:
  static std::unique_ptr<grpc::ClientContext> Context() {
    auto context = std::make_unique<grpc::ClientContext>();
    rpc::AddCallMetadata("", *context);
    context->set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
    return context;
  }
  const std::unique_ptr<Jobs::Stub> stub_;
};

// Jobs of two ranks that rendezvous, take a few steps with a checkpoint after each, and end: one after the other, so
// that at any time one of them is at the rendezvous or publishes. Jobs that do not fit stay in the queue beside them.
class Load {
 public:
  // `checkpoints`: each gang's folder is this path with the gang's number appended.
  Load(const std::string& address, const JobSpec& gang, const std::string& checkpoints)
      : address_(address), checkpoints_(checkpoints), gang_(gang) {
    queued_ = gang;
    queued_.set_name("queued");
    queued_.set_priority(0);  // after every gang
    queued_.mutable_resources()->set_ranks(64);
    queued_.mutable_train()->mutable_checkpoint()->set_path(checkpoints + "-{job}");  // a folder belongs to one job
    queued_.mutable_train()->mutable_batch()->set_sequences(128);
    submitter_ = std::thread([this] { Run(); });
  }
  ~Load() { Stop(); }
  void Stop() {
    done_ = true;
    if (submitter_.joinable()) submitter_.join();
  }
  // The running gang; empty: none yet.
  std::string newest() const {
    absl::MutexLock lock(&mutex_);
    return newest_;
  }

  void ExpectNoneLostOrDoubled(const std::vector<Job>& jobs) const {
    std::map<std::string, std::string> stored;
    for (const Job& job : jobs) {
      EXPECT_TRUE(stored.emplace(job.request_id(), job.id()).second) << job.request_id() << " twice";
    }
    absl::MutexLock lock(&mutex_);
    for (const auto& [request, job] : accepted_) EXPECT_EQ(stored[request], job) << request;
    std::printf("%zu accepted\n", accepted_.size());
  }

 private:
  void Run() {
    Service service(address_);
    for (int number = 0; !done_; ++number) {
      const std::string id = newest();
      if (id.empty() || service.Get(id).state() == JOB_STATE_COMPLETED) {
        gang_.mutable_train()->mutable_checkpoint()->set_path(absl::StrCat(checkpoints_, "-", number));
        Insist(service, gang_, absl::StrCat("gang-", number));
      }
      Insist(service, queued_, absl::StrCat("queued-", number));
      absl::SleepFor(absl::Milliseconds(50));  // keeps the queue short enough to list
    }
  }
  void Insist(Service& service, const JobSpec& spec, const std::string& request_id) {
    SubmitRequest request;
    request.set_request_id(request_id);
    *request.mutable_spec() = spec;
    SubmitReply reply;
    while (!done_) {
      const grpc::Status status = service.Submit(request, &reply);
      if (status.ok()) {
        absl::MutexLock lock(&mutex_);
        accepted_[request_id] = reply.job().id();
        if (spec.name() == gang_.name()) newest_ = reply.job().id();
        return;
      }
      EXPECT_TRUE(status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                  status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED)
          << status.error_message();
      absl::SleepFor(absl::Milliseconds(20));
    }
  }

  const std::string address_, checkpoints_;
  JobSpec gang_, queued_;
  std::atomic<bool> done_ = false;
  mutable absl::Mutex mutex_;
  std::map<std::string, std::string> accepted_;  // request id to job
  std::string newest_;
  std::thread submitter_;
};

// Returns when the newest gang is in the phase in which the coordinator is to be killed, or after a while: with the
// coordinator away there is nothing to wait for.
void WaitForPhase(int round, Service& service, const Load& load) {
  const auto newest = [&] { return service.Get(load.newest()); };
  if (round % 3 == 1) {  // the ranks rendezvous
    Eventually([&] { return newest().state() == JOB_STATE_STARTING; }, absl::Seconds(5));
  } else if (round % 3 == 2) {  // they publish
    Eventually([&] { return newest().checkpoints_size() > 0 && newest().state() == JOB_STATE_RUNNING; },
               absl::Seconds(5));
  }
}

JobSpec GangLike(const Job& job) {
  JobSpec spec = job.spec();
  spec.set_name("gang");
  spec.mutable_resources()->set_ranks(2);
  spec.mutable_resources()->clear_min_ranks();
  Train& train = *spec.mutable_train();
  train.mutable_strategy()->mutable_ddp();
  train.set_steps(12);
  train.mutable_checkpoint()->set_every_steps(1);
  return spec;
}

TEST(CoordinatorKills, NoJobIsLostAndNoRankDisturbed) {
  Cluster cluster;
  cluster.StartCoordinator();
  cluster.StartWorker(0, 1);
  const std::string steady =
      cluster.Submit({.name = "steady", .steps = 100'000'000, .checkpoint_every = 1'000'000, .priority = 10});
  ASSERT_TRUE(cluster.WaitForStep(steady, 2));
  const std::vector<pid_t> pids = cluster.Trainers();
  ASSERT_EQ(pids.size(), 1u);
  cluster.StartWorker(1, 2);
  Service service(cluster.address());
  Load load(cluster.address(), GangLike(service.Get(steady)), cluster.CheckpointPath("gang"));
  ASSERT_TRUE(Eventually([&] { return !load.newest().empty(); }, absl::Seconds(30)));

  std::mt19937 random(7);
  std::vector<double> starts;
  const int kills = Kills();
  for (int round = 0; round < kills && !testing::Test::HasFailure(); ++round) {
    WaitForPhase(round, service, load);
    absl::SleepFor(absl::Milliseconds(round % 3 == 0 ? 100 + random() % 900 : random() % 200));  // the random instant
    cluster.KillCoordinator();
    const bool both = round % 4 == 3 || round % 6 == 1;  // in every phase, and in every second one while ranks meet
    if (both) cluster.KillWorker(1);
    const absl::Time begin = absl::Now();
    cluster.StartCoordinator();
    // Each time a new client, without backoff from earlier failures.
    EXPECT_TRUE(Eventually([&] { return Service(cluster.address()).Serves(); }));
    starts.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    if (both) cluster.StartWorker(1, 2);
  }
  load.Stop();
  std::sort(starts.begin(), starts.end());
  std::printf("%d kills; serving again: median %.2f s, longest %.2f s\n", kills, starts[starts.size() / 2],
              starts.back());
  EXPECT_LT(starts[starts.size() / 2], 3);

  const auto now = cluster.Trainers();
  EXPECT_TRUE(std::binary_search(now.begin(), now.end(), pids[0])) << "the steady rank has ended";
  std::vector<Job> jobs = service.List();
  const auto unfinished = [](const Job& job) {
    return job.spec().name() == "gang" && job.state() != JOB_STATE_COMPLETED;
  };
  const bool finished = Eventually(
      [&] {
        jobs = service.List();
        return !jobs.empty() && std::none_of(jobs.begin(), jobs.end(), unfinished);
      },
      absl::Seconds(90));
  for (const Job& job : jobs) {
    if (unfinished(job)) ADD_FAILURE() << job.id() << ": " << JobState_Name(job.state()) << ": " << job.reason();
  }
  ASSERT_TRUE(finished) << cluster.Muster({"events", load.newest()}).out;
  load.ExpectNoneLostOrDoubled(jobs);
  int gangs = 0;
  for (const Job& job : jobs) {
    gangs += job.spec().name() == "gang";
    if (job.spec().name() == "queued") {
      EXPECT_EQ(job.state(), JOB_STATE_QUEUED) << job.id();
      continue;
    }
    EXPECT_EQ(job.generation(), 1u) << job.id() << ": " << job.failure().ShortDebugString();
    EXPECT_EQ(job.restarts(), 0u) << job.id();
  }
  std::printf("%d gangs completed meanwhile\n", gangs);
  EXPECT_GE(gangs, kills >= 20 ? 2 : 1);
}

}  // namespace
}  // namespace muster::cluster
