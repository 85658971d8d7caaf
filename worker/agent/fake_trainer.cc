// For tests: a trainer that trains nothing. It attaches as the real one does, writes records, and does what the name in
// its spec says. As `preflight` it finds no problem.
//   count      one step every 10 ms, up to train.steps (0: without end); Finished; stops on request, with a checkpoint
//   table      prints how many shards and bytes its partition table has, then as count
//   deaf       ignores commands and SIGTERM
//   mute       never attaches; prints, writes records without end, exits with 0 on SIGTERM
//   still      as count, but first stalls at op 9 of step 5 until there is a file `go` in its folder
//   litter     as count, with a child in a session of its own, whose pid it prints
//   silent     writes no record; stops on request
//   fail       prints two lines and exits with code 3
//   damage     writes records, damages its outbox, exits with code 0
//   rendezvous sets key "a", waits for key "b", prints it, ends as finished
//   gather     every rank sets a key and waits for those of all others, then runs and ends as finished; the last rank
//              begins when there is a file <checkpoint.path>.go
#include <grpcpp/client_context.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"
#include "common/version.h"
#include "proto/trainer_service.grpc.pb.h"
#include "worker/rundir/outbox.h"
#include "worker/rundir/progress.h"

namespace muster {
namespace {

std::atomic<bool> stop_requested = false;
std::atomic<bool> checkpoint_first = true;
std::atomic<bool> assigned = false;
Assignment assignment;  // written once, before `assigned`

void OnTerm(int) { stop_requested = true; }

void Attach(Trainer::Stub& stub, const RankKey& key, bool obey) {
  while (true) {
    grpc::ClientContext context;
    AttachRequest request;
    *request.mutable_key() = key;
    request.set_protocol(kProtocol);
    request.set_version(kVersion);
    auto stream = stub.Attach(&context, request);
    for (Command command; stream->Read(&command);) {
      if (command.has_assignment() && !assigned) {
        assignment = command.assignment();
        assigned = true;
      }
      if (command.has_stop() && obey) {
        checkpoint_first = command.stop().stop().checkpoint_first();
        stop_requested = true;
      }
    }
    const grpc::Status status = stream->Finish();
    std::fprintf(stderr, "attach ended: %d %s\n", status.error_code(), status.error_message().c_str());
    absl::SleepFor(absl::Milliseconds(100));
  }
}

class Life {
 public:
  Life(Trainer::Stub* stub, RankKey key, const std::string& rank_dir)
      : stub_(stub), key_(std::move(key)), outbox_(rundir::OutboxWriter::Open(rank_dir).value()) {}

  void Begin() {
    Record record;
    record.mutable_running();
    Append(std::move(record));
  }

  void Step(uint64_t step) {
    Record record;
    record.mutable_metrics()->set_step(step);
    Append(std::move(record));
    std::printf("step %llu\n", static_cast<unsigned long long>(step));
    std::fflush(stdout);
  }

  void Checkpoint(uint64_t step) {
    Record record;
    record.mutable_checkpoint()->set_step(step);
    record.mutable_checkpoint()->set_directory(absl::StrCat("step-", step));
    Append(std::move(record));
  }

  void Finish(uint64_t step) {
    Record record;
    record.mutable_finished()->set_step(step);
    Append(std::move(record));
  }

  int Count(uint64_t steps) {
    Begin();
    uint64_t step = 0;
    while (steps == 0 || step < steps) {
      if (stop_requested) {
        if (checkpoint_first) Checkpoint(step);
        std::printf("stopped\n");
        return 0;
      }
      Step(++step);
      absl::SleepFor(absl::Milliseconds(10));
    }
    Finish(step);
    return 0;
  }

  // At op 9 of step 5, until there is a file `go`.
  void Stall(const std::string& rank_dir) {
    const auto page = rundir::ProgressPage::Create(rank_dir).value();
    (*page)->step = 4;
    (*page)->op_issued = 9;
    (*page)->op_completed = 8;
    (*page)->op_exchanges = 3;
    while (!stop_requested && access((rank_dir + "/go").c_str(), F_OK) != 0) {
      ++(*page)->heartbeat;
      absl::SleepFor(absl::Milliseconds(10));
    }
    (*page)->step = 5;
  }

  int Rendezvous() {
    Begin();
    SetRequest set;
    *set.mutable_key() = key_;
    set.set_name("a");
    set.set_value(std::string("one\0two", 7));
    while (true) {
      grpc::ClientContext context;
      SetReply reply;
      if (stub_->Set(&context, set, &reply).ok()) break;
      absl::SleepFor(absl::Milliseconds(50));
    }
    GetRequest get;
    *get.mutable_key() = key_;
    get.set_name("a");
    grpc::ClientContext get_context;
    GetReply got;
    std::printf("a is whole: %d\n", stub_->Get(&get_context, get, &got).ok() && got.value() == set.value());
    get.set_name("absent");
    grpc::ClientContext missing_context;
    std::printf("missing gives %d\n", stub_->Get(&missing_context, get, &got).error_code());
    WaitRequest wait;
    *wait.mutable_key() = key_;
    wait.set_name("b");
    wait.mutable_timeout()->set_seconds(60);
    std::printf("waiting\n");
    std::fflush(stdout);
    GetReply reply;
    grpc::Status status;
    do {  // through an absence of the daemon too
      grpc::ClientContext context;
      status = stub_->Wait(&context, wait, &reply);
      if (!status.ok()) absl::SleepFor(absl::Milliseconds(50));
    } while (status.error_code() == grpc::StatusCode::UNAVAILABLE && !stop_requested);
    std::printf("b is %s (%d)\n", reply.value().c_str(), status.error_code());
    Finish(1);
    return 0;
  }

  // The exit code.
  int Gather(uint32_t world) {
    const std::string go = assignment.spec().train().checkpoint().path() + ".go";
    while (key_.rank() + 1 == world && access(go.c_str(), F_OK) != 0) {
      if (stop_requested) return 0;
      absl::SleepFor(absl::Milliseconds(20));
    }
    SetRequest set;
    *set.mutable_key() = key_;
    set.set_name(absl::StrCat("rank-", key_.rank()));
    set.set_value(absl::StrCat("address of ", key_.rank()));
    grpc::ClientContext set_context;
    SetReply reply;
    if (const grpc::Status status = stub_->Set(&set_context, set, &reply); !status.ok()) {
      std::printf("set: %d %s\n", status.error_code(), status.error_message().c_str());
      return 4;
    }
    std::printf("waiting\n");
    std::fflush(stdout);
    for (uint32_t other = 0; other < world; ++other) {
      WaitRequest wait;
      *wait.mutable_key() = key_;
      wait.set_name(absl::StrCat("rank-", other));
      wait.mutable_timeout()->set_seconds(60);
      grpc::ClientContext context;
      GetReply got;
      const grpc::Status status = stub_->Wait(&context, wait, &got);
      if (!status.ok() || got.value() != absl::StrCat("address of ", other)) {
        std::printf("wait for %u: %d %s\n", other, status.error_code(), status.error_message().c_str());
        return 5;
      }
    }
    std::printf("all %u are here\n", world);
    Begin();
    Finish(assignment.spec().train().steps());
    return 0;
  }

 private:
  void Append(Record record) {
    const absl::StatusOr<uint64_t> sequence = outbox_->Append(std::move(record), false);
    if (!sequence.ok()) std::exit(9);
    ReportRequest request;
    *request.mutable_key() = key_;
    request.set_sequence(*sequence);
    if (stub_ == nullptr) return;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
    ReportReply reply;
    stub_->Report(&context, request, &reply);
  }

  Trainer::Stub* const stub_;
  const RankKey key_;
  const std::unique_ptr<rundir::OutboxWriter> outbox_;
};

int Run(std::map<std::string, std::string> flags) {
  RankKey key;
  key.set_job(flags["--job"]);
  key.set_generation(std::stoull(flags["--generation"]));
  key.set_rank(static_cast<uint32_t>(std::stoul(flags["--rank"])));
  // Jobs of this name do not even attach, so their behaviour is in the id.
  const bool mute = key.job().starts_with("mute");
  signal(SIGTERM, OnTerm);
  const std::unique_ptr<Trainer::Stub> stub = Trainer::NewStub(rpc::Dial("unix:" + flags["--socket"]));
  if (mute) return Life(nullptr, key, flags["--rank-dir"]).Count(0);
  std::thread(Attach, std::ref(*stub), key, !key.job().starts_with("deaf")).detach();
  while (!assigned) absl::SleepFor(absl::Milliseconds(2));
  const std::string& behaviour = assignment.spec().name();
  std::printf("assigned %s world %u cores %u OMP_NUM_THREADS %s\n", behaviour.c_str(), assignment.world(),
              assignment.cores(), std::getenv("OMP_NUM_THREADS"));
  std::fflush(stdout);
  Life life(stub.get(), key, flags["--rank-dir"]);
  if (behaviour == "table") {
    std::printf("table of %u shards, %zu bytes\n", assignment.table().shards(), assignment.table().ByteSizeLong());
    std::fflush(stdout);
  }
  if (behaviour == "fail") {
    std::printf("about to fail\nbecause of this\n");
    return 3;
  }
  if (behaviour == "silent") {
    while (!stop_requested) absl::SleepFor(absl::Milliseconds(5));
    return 0;
  }
  if (behaviour == "rendezvous") return life.Rendezvous();
  if (behaviour == "gather") return life.Gather(assignment.world());
  if (behaviour == "still") life.Stall(flags["--rank-dir"]);
  if (behaviour == "litter") {
    const pid_t child = fork();  // only calls that are safe beside other threads until it execs
    if (child == 0) {
      setsid();
      execl("/bin/sleep", "sleep", "1000", nullptr);
      _exit(1);
    }
    std::printf("child %d.\n", child);
    std::fflush(stdout);
  }
  if (behaviour == "deaf") {
    signal(SIGTERM, SIG_IGN);
    return life.Count(0);
  }
  if (behaviour == "damage") {
    life.Begin();
    std::ofstream(flags["--rank-dir"] + "/outbox.000000", std::ios::app) << std::string(100, 'x');
    life.Step(1);
    return 0;
  }
  return life.Count(assignment.spec().train().steps());
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "preflight") {
    std::printf("begin\tcpu\npass\tcpu\tnot measured\t0\n");
    return 0;
  }
  std::map<std::string, std::string> flags;
  for (int i = 2; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
  const int code = muster::Run(std::move(flags));
  std::fflush(stdout);
  _exit(code);  // the attaching thread runs until here
}
