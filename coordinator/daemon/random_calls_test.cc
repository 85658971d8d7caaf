// Every method of every service, from every kind of caller, gets messages that are valid in form and random in content,
// and damaged and huge ones, while honest calls go on beside. A second for each thousand calls; MUSTER_FUZZ_SECONDS:
// for so long, with other seeds (bench/fuzz.sh).
#include <gtest/gtest.h>
#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/version.h"
#include "coordinator/daemon/all_methods_test.h"
#include "coordinator/daemon/trust_fixture_test.h"
#include "testing/random_message.h"

namespace muster::server {
namespace {

using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

constexpr absl::Duration kCallDeadline = absl::Milliseconds(500), kLate = absl::Seconds(20);
constexpr uint64_t kRounds = 12;       // of every method by every caller
constexpr char kJoined[] = "zq-node";  // no message names it, so it is not revoked
constexpr uint64_t kMostGrowth = uint64_t{400} << 20;

// Resident memory of this process: the server and its callers.
uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

WorkerMessage HelloOf(const std::string& node) {
  WorkerMessage message;
  Hello& hello = *message.mutable_hello();
  hello.set_protocol(kProtocol), hello.set_oldest_protocol(kOldestProtocol);
  hello.mutable_node()->set_id(node), hello.mutable_node()->set_incarnation("i"),
      hello.mutable_node()->set_boot_id("b");
  for (uint32_t i = 0; i < 4; ++i) {
    Slot& slot = *hello.mutable_node()->add_slots();
    slot.set_index(i), slot.set_device(DEVICE_CPU);
  }
  return message;
}

class RandomCalls : public TrustFixture {
 protected:
  struct Caller {
    std::string name;
    std::string token;
    std::shared_ptr<grpc::Channel> channel;
  };

  static void SetUpTestSuite() { StartLog("random calls", LogLevel::kOff); }
  static void TearDownTestSuite() { StartLog("tests", LogLevel::kInfo); }

  void SetUp() override {
    options_.core.timeouts = Derive(absl::Seconds(2));
    Start();
    const auto submit = [&](const std::string& name) { return client_->MustSubmit(name); };
    honest_ = submit("zq-honest");
    PauseRequest pause;
    pause.set_job(honest_);
    PauseReply paused;
    ASSERT_TRUE(client_->jobs().Pause(client_->Context().get(), pause, &paused).ok());
    words_ = {"node-1",
              "node-2",
              "default",
              folder_.path() + "/backup.db",
              folder_.path() + "/ckpt/{job}",
              "/data/train.bin",
              "step-0000000010-g1",
              "h100"};
    for (const char* name : {"a", "b", "c"}) words_.push_back(submit(name));
    const rpc::Security node = MustJoin(kJoined);
    const std::string& tls = tls_address();
    const auto add = [&](const std::string& name, const std::string& address, const std::string& token,
                         const rpc::Security& security) {
      callers_.push_back({name, token, rpc::Dial(address, security)});
    };
    add("operator", address(), "", {});
    add("stranger", tls, "", Plain());
    add("wrong token", tls, "wrong-token-12345", Plain());
    add("viewer", tls, MakeToken(TOKEN_ROLE_VIEWER, "vera"), Plain());
    add("submitter", tls, MakeToken(TOKEN_ROLE_SUBMITTER, "sam"), Plain());
    add("admin", tls, MakeToken(TOKEN_ROLE_ADMIN, "adam"), Plain());
    add("joiner", tls, MakeToken(TOKEN_ROLE_WORKER, ""), Plain());
    add("node", tls, "", node);
    honest_token_ = MakeToken(TOKEN_ROLE_SUBMITTER, "honest");
    AddSamples();
  }

  void AddSamples() {
    const auto add = [&](const auto& sample) {
      using Type = std::decay_t<decltype(sample)>;
      samples_[Type::descriptor()->full_name()].push_back(std::make_unique<Type>(sample));
    };
    SubmitRequest submit;
    submit.set_request_id("r");
    *submit.mutable_spec() = SmallSpec("random");
    add(submit);
    PlanRequest plan;
    *plan.mutable_spec() = SmallSpec("random");
    add(plan);
    add(HelloOf("node-1"));
    WorkerMessage message;
    for (size_t i = words_.size() - 3; i < words_.size(); ++i) {
      ObservedRank& rank = *message.mutable_observed()->add_ranks();
      rank.mutable_key()->set_job(words_[i]), rank.mutable_key()->set_generation(1);
      rank.set_state(RANK_STATE_RUNNING);
    }
    message.mutable_observed()->set_full(true);
    add(message);
    RankKey key = message.observed().ranks(0).key();
    *message.mutable_records()->mutable_key() = key;
    for (uint64_t i = 1; i < 4; ++i) {
      Record& record = *message.mutable_records()->add_records();
      record.set_sequence(i);
      if (i == 1) record.mutable_running()->set_resumed_step(0);
      if (i == 2) record.mutable_metrics()->set_step(1);
      if (i == 3) record.mutable_checkpoint()->set_step(1), record.mutable_checkpoint()->set_directory("step-1-g1");
    }
    add(message);
    *message.mutable_logs()->mutable_key() = key;
    message.mutable_logs()->mutable_chunk()->set_text("a line\n");
    add(message);
    JoinRequest join;
    join.set_node("node-2"), join.set_certificate_request(tls::MakeRequest(tls::MakeKey().value(), "node-2").value());
    add(join);
    CreateTokenRequest token;
    token.set_role(TOKEN_ROLE_VIEWER), token.set_user("somebody"), token.set_request_id("t");
    add(token);
    RendezvousSetRequest set;
    *set.mutable_key() = key;
    set.set_name("name"), set.set_value("value");
    add(set);
  }

  void CallOnce(RandomMessages& random, const Caller& caller, const MethodDescriptor& method) {
    const auto sample = samples_.find(method.input_type()->full_name());
    std::vector<std::string> messages;
    for (uint64_t n = method.client_streaming() ? 1 + random.Below(5) : 1; n > 0; --n) {
      const Message* like = nullptr;
      if (sample != samples_.end()) like = sample->second[random.Below(sample->second.size())].get();
      // A worker stream gets anywhere only with a Hello.
      const bool hello = method.client_streaming() && messages.empty() && random.Below(4) != 0;
      const std::string node = caller.name == "node" ? kJoined : "node-1";
      messages.push_back(hello ? HelloOf(node).SerializeAsString() : random.Bytes(*method.input_type(), like));
    }
    const absl::Time began = absl::Now();
    const grpc::Status status = CallAnything(caller.channel, method, caller.token, messages, kCallDeadline);
    EXPECT_LT(absl::Now() - began, kCallDeadline + kLate) << caller.name << " calls " << method.full_name();
    const bool stranger = caller.name == "stranger" || caller.name == "wrong token";
    // Out of room, or refused before the token was looked at, but never served.
    EXPECT_FALSE(stranger && status.ok()) << method.full_name();
    EXPECT_FALSE(absl::StrContains(status.error_message(), "in RPC handling")) << method.full_name() << " throws";
    ++calls_;
    ++outcomes_[status.ok() ? 0 : 1];
  }

  // As a user beside, whose calls all are answered.
  void BeHonest(const std::atomic<bool>& over) {
    Client client(tls_address(), honest_token_, Plain());
    for (uint64_t n = 0; !over; ++n) {
      GetJobReply got;
      const grpc::Status status = client.Get(honest_, &got);
      EXPECT_TRUE(status.ok()) << status.error_message();
      if (n % 50 == 0) {
        SubmitReply submitted;
        const grpc::Status accepted = client.Submit(absl::StrCat("honest-", n), SmallSpec("zq-beside"), &submitted);
        EXPECT_TRUE(accepted.ok()) << accepted.error_message();
      }
      honest_calls_ += status.ok() ? 1 : 0;
      absl::SleepFor(absl::Milliseconds(10));  // as many calls as a user makes
    }
  }

  Job HonestJob() {
    GetJobReply reply;
    const grpc::Status status = client_->Get(honest_, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    reply.mutable_job()->clear_time_breakdown();  // it has been paused for longer
    return reply.job();
  }

  std::string honest_, honest_token_;
  std::vector<std::string> words_;
  std::vector<Caller> callers_;
  std::map<std::string, std::vector<std::unique_ptr<Message>>> samples_;  // by type
  std::atomic<uint64_t> calls_ = 0, honest_calls_ = 0;
  std::atomic<uint64_t> outcomes_[2] = {0, 0};  // OK, refused
};

// A request over its method's limit is refused before it is parsed, and once was never freed: anyone who could connect
// filled the memory that gRPC may use, and then no call was served.
TEST_F(RandomCalls, ARequestOverItsLimitIsNotKept) {
  const auto& methods = AllMethods();
  const auto method = std::find_if(methods.begin(), methods.end(), [](const MethodDescriptor* m) {
    return m->input_type()->full_name() == GetJobRequest::descriptor()->full_name();
  });
  ASSERT_NE(method, methods.end());
  GetJobRequest request;
  request.set_job(std::string(1 << 20, 'x'));
  const std::string bytes = request.SerializeAsString();
  const uint64_t before = ResidentBytes();
  for (const Caller& caller : callers_) {
    if (caller.name != "stranger" && caller.name != "viewer") continue;
    for (int i = 0; i < 400; ++i) {
      const grpc::Status status = CallAnything(caller.channel, **method, caller.token, {bytes}, absl::Seconds(20));
      ASSERT_FALSE(status.ok());
    }
  }
  malloc_trim(0);
  EXPECT_LT(ResidentBytes(), before + (uint64_t{200} << 20)) << "800 MiB were sent";
}

TEST_F(RandomCalls, EndNothingAndChangeNothingOfOthers) {
  const char* const text = getenv("MUSTER_FUZZ_SECONDS");
  uint64_t seconds = 0;
  ASSERT_TRUE(text == nullptr || absl::SimpleAtoi(text, &seconds)) << "MUSTER_FUZZ_SECONDS: " << text;
  const Job before = HonestJob();
  const uint64_t memory = ResidentBytes();
  std::atomic<bool> over = false;
  std::thread honest([&] { BeHonest(over); });
  const absl::Time until = absl::Now() + absl::Seconds(seconds);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < callers_.size(); ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t round = 0; seconds > 0 ? absl::Now() < until : round < kRounds; ++round) {
        RandomMessages random(round * callers_.size() + i, words_);
        for (const MethodDescriptor* method : AllMethods()) CallOnce(random, callers_[i], *method);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  over = true;
  honest.join();
  malloc_trim(0);  // what gRPC has freed
  std::printf("%llu calls, %llu of them OK; %llu honest calls beside; %llu MiB more\n",
              static_cast<unsigned long long>(calls_), static_cast<unsigned long long>(outcomes_[0]),
              static_cast<unsigned long long>(honest_calls_),
              static_cast<unsigned long long>((ResidentBytes() - std::min(memory, ResidentBytes())) >> 20));
  EXPECT_GE(calls_, AllMethods().size() * callers_.size());
  EXPECT_GT(outcomes_[0], calls_ / 100) << "hardly any message was accepted, so they reach nothing";
  EXPECT_GT(honest_calls_, 10u);
  EXPECT_LT(ResidentBytes(), memory + kMostGrowth);
  EXPECT_EQ(HonestJob().SerializeAsString(), before.SerializeAsString());
  // What was stored can be read again.
  callers_.clear();
  server_.reset();
  Start();
  ASSERT_NE(server_, nullptr);
  Job after = HonestJob();
  EXPECT_EQ(after.state(), JOB_STATE_PAUSED);
  EXPECT_EQ(after.spec().SerializeAsString(), before.spec().SerializeAsString());
}

}  // namespace
}  // namespace muster::server
