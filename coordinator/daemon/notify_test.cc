// Notices of a real coordinator: to a real HTTP server on loopback and to a real command, over failures and restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "coordinator/web/http_server.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

class NotifyTest : public ServerFixture {
 protected:
  NotifyTest() {
    signal(SIGPIPE, SIG_IGN);
    options_.notify_file = folder_.path() + "/notify.yaml";
    Listen("127.0.0.1:0");
  }
  ~NotifyTest() override {
    server_.reset();
    receiver_->Stop();
  }

  // Answers with 503 while `failures_` are left, and not at all while `silent_`.
  void Listen(const std::string& at) {
    auto receiver = web::HttpServer::Listen({.address = at});
    ASSERT_TRUE(receiver.ok()) << receiver.status();
    receiver_ = *std::move(receiver);
    receiver_->Serve([this](const std::shared_ptr<web::Exchange>& exchange) {
      const absl::MutexLock lock(&mutex_);
      if (silent_) return waiting_.push_back(exchange);
      if (failures_ > 0) {
        --failures_;
        return exchange->Reply({503, {}, ""});
      }
      bodies_.push_back(nlohmann::json::parse(exchange->request().body));
      exchange->Reply({200, {}, ""});
    });
  }
  void Configure(const std::string& more) {
    std::ofstream(options_.notify_file) << "notify:\n- name: hook\n  webhook: {url: 'http://" << receiver_->address()
                                        << "/'}\n"
                                        << more;
  }
  void Restart() {
    server_.reset();
    Start();
  }
  void Cancel(const std::string& job) {
    CancelRequest request;
    request.set_job(job);
    CancelReply reply;
    EXPECT_TRUE(client_->jobs().Cancel(client_->Context().get(), request, &reply).ok());
  }
  std::string OwnerOf(const std::string& job) {
    GetJobRequest request;
    request.set_job(job);
    GetJobReply reply;
    EXPECT_TRUE(client_->jobs().Get(client_->Context().get(), request, &reply).ok());
    EXPECT_NE(reply.job().owner(), "");
    return reply.job().owner();
  }
  // "job.queued a-x7f2", in the order in which they came.
  std::vector<std::string> Delivered() {
    const absl::MutexLock lock(&mutex_);
    std::vector<std::string> delivered;
    for (const nlohmann::json& body : bodies_) {
      delivered.push_back(absl::StrCat(body["kind"].get<std::string>(), " ", body["job"].get<std::string>()));
    }
    return delivered;
  }
  void FailNext(int failures) {
    const absl::MutexLock lock(&mutex_);
    failures_ = failures;
  }
  // From now on: the first thread to read the stream may begin after the first jobs.
  void AwaitPlace(const std::string& name) {
    EXPECT_TRUE(Eventually([&] { return std::filesystem::exists(options_.state_dir + "/notify/" + name); }));
  }

  absl::Mutex mutex_;
  std::vector<nlohmann::json> bodies_ ABSL_GUARDED_BY(mutex_);
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;
  bool silent_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<web::Exchange>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<web::HttpServer> receiver_;
};

TEST_F(NotifyTest, EventsAreDeliveredInOrderAlsoAfterFailures) {
  Configure("  events: [job.queued, job.cancelled]\n");
  Start();
  AwaitPlace("hook");
  FailNext(1);
  const std::string a = client_->MustSubmit("a"), b = client_->MustSubmit("b");
  Cancel(a);
  const std::vector<std::string> expected = {"job.queued " + a, "job.queued " + b, "job.cancelled " + a};
  EXPECT_TRUE(Eventually([&] { return Delivered().size() >= 3; }));
  EXPECT_EQ(Delivered(), expected);
  const absl::MutexLock lock(&mutex_);
  EXPECT_EQ(bodies_[0]["user"], OwnerOf(a));
  EXPECT_EQ(bodies_[0]["project"], "default");
  EXPECT_NE(bodies_[0]["id"], bodies_[1]["id"]);
}

// What happens while the coordinator or the receiver is away is delivered later.
TEST_F(NotifyTest, NothingIsLostOverARestart) {
  Configure("  events: [job]\n");
  Start();
  AwaitPlace("hook");
  const std::string a = client_->MustSubmit("a");
  EXPECT_TRUE(Eventually([&] { return Delivered().size() == 1; }));
  FailNext(1'000'000);  // the receiver is out of order, and keeps its port
  const std::string b = client_->MustSubmit("b");
  Cancel(a);
  Restart();
  const std::string c = client_->MustSubmit("c");
  FailNext(0);
  const std::vector<std::string> expected = {"job.queued " + a, "job.queued " + b, "job.cancelled " + a,
                                             "job.queued " + c};
  EXPECT_TRUE(Eventually([&] {
    const std::vector<std::string> seen = Delivered();
    return std::set<std::string>(seen.begin(), seen.end()).size() == expected.size();
  }));
  // At least once: what was sent before the restart may come again.
  std::vector<std::string> first_times;
  for (const std::string& one : Delivered()) {
    if (std::find(first_times.begin(), first_times.end(), one) == first_times.end()) first_times.push_back(one);
  }
  EXPECT_EQ(first_times, expected);
}

TEST_F(NotifyTest, ACommandGetsThemOnItsInput) {
  const std::string out = folder_.path() + "/notices", script = folder_.path() + "/tell";
  std::ofstream(script) << "#!/bin/sh\ncat >> \"$1\"\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  Configure(absl::StrCat("  events: [project]\n- name: script\n  command: [", script, ", ", out,
                         "]\n  events: [job.queued]\n"));
  Start();
  AwaitPlace("script");
  const std::string a = client_->MustSubmit("a"), b = client_->MustSubmit("b");
  const auto received = [&] {
    std::ifstream file(out);
    std::vector<std::string> jobs;
    for (std::string line; std::getline(file, line);) jobs.push_back(nlohmann::json::parse(line)["job"]);
    return jobs;
  };
  EXPECT_TRUE(Eventually([&] { return received().size() == 2; }));
  EXPECT_EQ(received(), (std::vector<std::string>{a, b}));
  EXPECT_TRUE(Delivered().empty());
}

// A receiver that never answers holds nothing up, and a shutdown does not wait for it.
TEST_F(NotifyTest, ASlowReceiverBlocksNothing) {
  Configure("  events: [all]\n  timeout: 10m\n");
  {
    const absl::MutexLock lock(&mutex_);
    silent_ = true;
  }
  Start();
  AwaitPlace("hook");
  for (int i = 0; i < 50; ++i) client_->MustSubmit(absl::StrCat("job-", i));
  EXPECT_TRUE(Eventually([&] {
    const absl::MutexLock lock(&mutex_);
    return !waiting_.empty();
  }));
  const absl::Time begin = absl::Now();
  server_->Shutdown();
  EXPECT_LT(absl::Now() - begin, absl::Minutes(1)) << "not the ten minutes of an attempt";
  const absl::MutexLock lock(&mutex_);
  EXPECT_EQ(waiting_.size(), 1u) << "one after the other";
}

// What is pending after a place that cannot be read would be lost.
TEST_F(NotifyTest, AnUnreadablePlaceIsNoNewDestination) {
  Configure("  events: [job]\n");
  Start();
  AwaitPlace("hook");
  server_.reset();
  const std::string place = options_.state_dir + "/notify/hook";
  std::filesystem::remove(place);
  std::filesystem::create_directory(place);
  const absl::Status status = Server::Start(options_, &clock_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("the delivery position of notices to hook"));
}

TEST_F(NotifyTest, AWrongFileIsRefused) {
  std::ofstream(options_.notify_file) << "notify:\n- {name: a}\n";
  const auto server = Server::Start(options_, &clock_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(server.status().message()),
              ::testing::HasSubstr("notify.yaml: notify: a: needs one of webhook and command"));
}

}  // namespace
}  // namespace muster::server
