// Every method of the Trainer service gets messages that are valid in form and random in content, and damaged and huge
// ones: from a process that is a rank's trainer, and about ranks that it is not.
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/rpc/rpc.h"
#include "proto/trainer_service.grpc.pb.h"
#include "testing/random_message.h"
#include "testing/temporary_folder.h"
#include "worker/agent/reconcile.h"
#include "worker/agent/trainer_server.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kRandomCallDeadline = absl::Milliseconds(300), kRandomCallLate = absl::Seconds(20);
constexpr uint64_t kRandomRounds = 60;

// Answers at once, later, or never, and notes for whom.
class NotingHost final : public TrainerHost {
 public:
  void Attached(const RankId& rank, std::shared_ptr<CommandStream> commands) override {
    Note(rank);
    commands->Send(Command());
    if (attached_++ % 3 == 0) commands->Close(absl::UnavailableError("closed"));
  }
  void Detached(const RankId&, const CommandStream*) override {}  // of streams that were refused, too
  uint64_t Reported(const RankId& rank, uint64_t, uint64_t sequence) override {
    Note(rank);
    return sequence;
  }
  void Set(const SetRequest& request, ValueCallback done) override {
    Note(RankOf(request.key()));
    done("");
  }
  void Get(const GetRequest& request, ValueCallback done) override {
    Note(RankOf(request.key()));
    done(request.name().empty() ? absl::StatusOr<std::string>(absl::NotFoundError("no name")) : request.name());
  }
  std::function<void()> Wait(const WaitRequest& request, ValueCallback done) override {
    Note(RankOf(request.key()));
    const auto once = std::make_shared<ValueCallback>(std::move(done));
    return [once] {
      if (const ValueCallback last = std::exchange(*once, nullptr)) last(absl::CancelledError("the trainer has gone"));
    };
  }
  std::function<void()> Sync(const SyncRequest& request, std::function<void(absl::StatusOr<SyncReply>)> done) override {
    Note(RankOf(request.key()));
    done(SyncReply());
    return [] {};
  }

  uint64_t of_own() const { return own_; }
  uint64_t of_others() const { return others_; }

 private:
  void Note(const RankId& rank) { ++(rank == RankId{JobId("job-1"), 1, 0} ? own_ : others_); }
  uint64_t attached_ = 0;
  std::atomic<uint64_t> own_ = 0, others_ = 0;
};

TEST(RandomTrainerCalls, EndNothingAndReachNoOtherRank) {
  const TemporaryFolder folder;
  const RankId own{JobId("job-1"), 1, 0};
  const rundir::RankDir dir(folder.path(), own), other(folder.path(), {JobId("job-2"), 1, 0});
  ASSERT_TRUE(dir.Create({}).ok() && other.Create({}).ok());
  const auto self = rundir::Identify(getpid()), parent = rundir::Identify(getppid());
  ASSERT_TRUE(self.ok() && parent.ok());
  ASSERT_TRUE(dir.WriteProcesses({*parent, *self}).ok());  // this process is the rank's trainer
  ASSERT_TRUE(other.WriteProcesses({*parent, {}}).ok());
  const RealClock clock;
  const auto loop = std::make_shared<EventLoop>(&clock);
  NotingHost host;
  const auto server = TrainerServer::Start(folder.path(), /*other_users=*/false, loop.get(), &host);
  ASSERT_TRUE(server.ok()) << server.status();
  std::thread running([&] { loop->Run(); });

  const char* const text = getenv("MUSTER_FUZZ_SECONDS");
  uint64_t seconds = 0;
  ASSERT_TRUE(text == nullptr || absl::SimpleAtoi(text, &seconds)) << "MUSTER_FUZZ_SECONDS: " << text;
  const absl::Time until = absl::Now() + absl::Seconds(seconds);
  const google::protobuf::ServiceDescriptor* const service =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(Trainer::service_full_name());
  ASSERT_NE(service, nullptr);
  RankKey key = KeyOf(own);
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const auto channel = rpc::Dial("unix:" + folder.path() + "/trainer.sock");
      for (uint64_t round = 0; seconds > 0 ? absl::Now() < until : round < kRandomRounds; ++round) {
        RandomMessages random(round * 4 + thread, {"job-1", "job-2", "name", "../job-2", "step-1-g1"});
        for (int m = 0; m < service->method_count(); ++m) {
          const google::protobuf::MethodDescriptor& method = *service->method(m);
          std::string request = random.Bytes(*method.input_type());
          // Each request has the caller's rank in its first field; half of them the true one. A field that comes twice
          // is merged.
          if (random.Below(2) == 0) {
            const std::string bytes = key.SerializeAsString();
            request = "\x0a" + std::string(1, static_cast<char>(bytes.size())) + bytes;
            if (random.Below(2) == 0) request = random.Bytes(*method.input_type()) + request;
          }
          const absl::Time began = absl::Now();
          const grpc::Status status = CallAnything(channel, method, "", {request}, kRandomCallDeadline);
          EXPECT_LT(absl::Now() - began, kRandomCallDeadline + kRandomCallLate) << method.full_name();
          EXPECT_FALSE(absl::StrContains(status.error_message(), "in RPC handling")) << method.full_name() << " throws";
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // An ordinary call is answered.
  const auto stub = Trainer::NewStub(rpc::Dial("unix:" + folder.path() + "/trainer.sock"));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  rpc::AddCallMetadata("", context);
  ReportRequest report;
  *report.mutable_key() = key;
  report.set_sequence(7);
  ReportReply reply;
  const grpc::Status status = stub->Report(&context, report, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_GT(host.of_own(), kRandomRounds);
  EXPECT_EQ(host.of_others(), 0u) << "a trainer spoke for a rank that it is not";
  loop->Post([&] {
    (*server)->Shutdown();
    loop->Stop();
  });
  running.join();
}

}  // namespace
}  // namespace muster::agent
