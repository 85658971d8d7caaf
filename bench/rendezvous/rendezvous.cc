// How long 1,000 ranks take to learn one key: the NCCL id that rank 0 creates and the others wait for.
//
//     bazel run -c opt //bench/rendezvous
//
// The coordinator is a real process; this process simulates 125 worker daemons with 8 ranks each, every worker with its
// own connection. As in production, each rank's call goes to the coordinator through its worker. A run is a job of
// 1,000 ranks that the coordinator has placed: 999 ranks wait, then rank 0 sets the key. It reports two times: from the
// last call sent (rank 0's) to the last answer, and from the first call sent, which includes sending all calls.
#include <grpcpp/client_context.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "proto/jobs_service.grpc.pb.h"
#include "proto/workers_service.grpc.pb.h"
#include "testing/fake_worker.h"

namespace muster {
namespace {

constexpr size_t kKeyBytes = 128;  // of an NCCL id
constexpr absl::Duration kPatience = absl::Minutes(2);

struct Flags {
  int workers = 125;
  int ranks = 8;  // of each worker
  int runs = 7;
  std::string coordinator = "coordinator/muster-coordinator";
};

pid_t coordinator_pid = -1;  // at most one; killed also when this program fails

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "rendezvous: %s\n", why.c_str());
  if (coordinator_pid > 0) kill(coordinator_pid, SIGTERM);
  std::exit(1);
}

void MustBeOk(const grpc::Status& status, const std::string& what) {
  if (!status.ok()) Die(absl::StrCat(what, ": ", status.error_message()));
}

// The coordinator's process; ends with the object.
class Coordinator {
 public:
  explicit Coordinator(const std::string& program) {
    char folder[] = "/tmp/muster-bench-XXXXXX";
    if (mkdtemp(folder) == nullptr) Die("cannot make a folder in /tmp");
    folder_ = folder;
    std::vector<std::string> arguments = {program,         "--state-dir", folder_ + "/state", "--listen", address(),
                                          "--tensorboard", "off",         "--detection",      "10m",      "--log-level",
                                          "warn"};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    if (posix_spawn(&coordinator_pid, program.c_str(), nullptr, nullptr, argv.data(), environ) != 0)
      Die("cannot start " + program);
  }
  ~Coordinator() {
    kill(coordinator_pid, SIGTERM);
    waitpid(coordinator_pid, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string address() const { return "unix:" + folder_ + "/c.sock"; }

 private:
  std::string folder_;
};

// Counts the answers of one run.
struct Run {
  std::atomic<int> left{0};
  std::atomic<int> failed{0};
  absl::Time last;  // written by the thread that brings `left` to 0
  absl::Mutex mutex;
  bool over ABSL_GUARDED_BY(mutex) = false;

  void Answered(const grpc::Status& status) {
    if (!status.ok() && failed.fetch_add(1) == 0) std::fprintf(stderr, "%s\n", status.error_message().c_str());
    if (left.fetch_sub(1) > 1) return;
    absl::MutexLock lock(&mutex);
    last = absl::Now();
    over = true;
  }
};

// The calls of a worker's ranks.
class Worker {
 public:
  Worker(const std::string& address, int number, int slots)
      : daemon_(address, {.node = absl::StrCat("node-", number),
                          .incarnation = "bench",
                          .boot = absl::StrCat("node-", number),
                          .slots = static_cast<uint32_t>(slots),
                          .wait_for_ready = true,
                          .obedient = true}) {}

  // Waits until this node is to run that many ranks; which.
  std::vector<RankKey> WaitForRanks(size_t count) {
    std::vector<RankKey> keys;
    if (!daemon_.WaitForRuns(count, &keys)) Die("the coordinator has not placed the ranks");
    return keys;
  }

  void Set(const RankKey& key, Run& run) {
    struct Call {
      grpc::ClientContext context;
      RendezvousSetRequest request;
      RendezvousSetReply reply;
    };
    auto call = std::make_shared<Call>();
    rpc::AddCallMetadata("", call->context);
    *call->request.mutable_key() = key;
    call->request.set_name("nccl_id");
    call->request.set_value(std::string(kKeyBytes, 'i'));
    daemon_.stub().async()->RendezvousSet(&call->context, &call->request, &call->reply,
                                          [call, &run](const grpc::Status& status) { run.Answered(status); });
  }

  void Wait(const RankKey& key, Run& run) {
    struct Call {
      grpc::ClientContext context;
      RendezvousGetRequest request;
      RendezvousGetReply reply;
    };
    auto call = std::make_shared<Call>();
    rpc::AddCallMetadata("", call->context);
    *call->request.mutable_key() = key;
    call->request.set_name("nccl_id");
    call->request.mutable_wait()->set_seconds(60);
    daemon_.stub().async()->RendezvousGet(
        &call->context, &call->request, &call->reply, [call, &run](const grpc::Status& status) {
          run.Answered(call->reply.value().size() == kKeyBytes || !status.ok()
                           ? status
                           : grpc::Status(grpc::StatusCode::DATA_LOSS, "another value"));
        });
  }

 private:
  FakeWorker daemon_;
};

JobSpec Spec(uint32_t ranks) {
  JobSpec spec;
  spec.set_api_version("muster/v1");
  spec.set_kind("Job");
  spec.set_name("meet");
  spec.mutable_resources()->set_ranks(ranks);
  Train& train = *spec.mutable_train();
  train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  train.mutable_data()->set_tokens("/train.bin");
  train.mutable_strategy()->mutable_ddp();
  train.mutable_batch()->set_sequences(ranks);
  train.set_steps(1);
  return spec;
}

struct Times {
  absl::Duration from_first, from_last;
};

Times Meet(Jobs::Stub& jobs, std::vector<std::unique_ptr<Worker>>& workers, const Flags& flags, int number) {
  const int world = flags.workers * flags.ranks;
  const auto call = [](const auto& method, const std::string& what) {
    grpc::ClientContext context;
    rpc::AddCallMetadata("", context);
    context.set_wait_for_ready(true);
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    MustBeOk(method(&context), what);
  };
  SubmitRequest submit;
  submit.set_request_id(absl::StrCat("run-", number));
  *submit.mutable_spec() = Spec(static_cast<uint32_t>(world));
  SubmitReply submitted;
  call([&](grpc::ClientContext* context) { return jobs.Submit(context, submit, &submitted); }, "submit");
  std::vector<std::vector<RankKey>> keys;
  for (const auto& worker : workers) keys.push_back(worker->WaitForRanks(static_cast<size_t>(flags.ranks)));

  Run run;
  run.left = world;
  Times times;
  const absl::Time first = absl::Now();
  std::pair<Worker*, RankKey> leader;
  for (size_t w = 0; w < workers.size(); ++w) {
    for (const RankKey& key : keys[w]) {
      if (key.rank() == 0) {
        leader = {workers[w].get(), key};
      } else {
        workers[w]->Wait(key, run);
      }
    }
  }
  const absl::Time last = absl::Now();
  leader.first->Set(leader.second, run);
  {
    absl::MutexLock lock(&run.mutex);
    if (!run.mutex.AwaitWithTimeout(absl::Condition(&run.over), kPatience)) Die("not every rank has its answer");
    times = {run.last - first, run.last - last};
  }
  if (run.failed > 0) Die(absl::StrCat(run.failed.load(), " of ", world, " calls failed"));
  CancelRequest cancel;
  cancel.set_job(leader.second.job());
  CancelReply cancelled;
  call([&](grpc::ClientContext* context) { return jobs.Cancel(context, cancel, &cancelled); }, "cancel");
  for (const auto& worker : workers) worker->WaitForRanks(0);
  return times;
}

void Print(const char* what, std::vector<absl::Duration> times) {
  std::sort(times.begin(), times.end());
  std::printf("%s: min %.0f ms, median %.0f ms, max %.0f ms\n", what, absl::ToDoubleMilliseconds(times.front()),
              absl::ToDoubleMilliseconds(times[times.size() / 2]), absl::ToDoubleMilliseconds(times.back()));
}

int Main(const Flags& flags) {
  const Coordinator coordinator(flags.coordinator);
  const std::unique_ptr<Jobs::Stub> jobs = Jobs::NewStub(rpc::Dial(coordinator.address()));
  std::vector<std::unique_ptr<Worker>> workers;
  for (int w = 0; w < flags.workers; ++w) {
    workers.push_back(std::make_unique<Worker>(coordinator.address(), w, flags.ranks));
  }
  std::printf("%d ranks on %d workers, %d runs, %u cores\n", flags.workers * flags.ranks, flags.workers, flags.runs,
              std::thread::hardware_concurrency());
  std::vector<absl::Duration> from_first, from_last;
  for (int run = 0; run < flags.runs; ++run) {
    const Times times = Meet(*jobs, workers, flags, run);
    from_first.push_back(times.from_first);
    from_last.push_back(times.from_last);
  }
  Print("from the last call to the last answer", from_last);
  Print("from the first call to the last answer", from_first);
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  CLI::App app("Times the rendezvous of many ranks.", "rendezvous");
  muster::Flags flags;
  app.add_option("--workers", flags.workers, "worker daemons")->check(CLI::Range(1, 2000))->capture_default_str();
  app.add_option("--ranks", flags.ranks, "ranks of each")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--runs", flags.runs, "jobs, one after the other")->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--coordinator", flags.coordinator, "program; the default is right below `bazel run`")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return muster::Main(flags);
}
