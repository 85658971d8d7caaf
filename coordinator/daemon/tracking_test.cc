// What a real coordinator does about tracking servers that refuse, fail or never answer. The server here answers as
// MLflow's interface says; tests/tracking has a real one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/testing.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "coordinator/web/http_server.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class TrackingTest : public ServerFixture {
 protected:
  TrackingTest() {
    signal(SIGPIPE, SIG_IGN);
    options_.tracking_file = folder_.path() + "/tracking.yaml";
    options_.metrics_address = "127.0.0.1:0";
    auto receiver = web::HttpServer::Listen({.address = "127.0.0.1:0"});
    EXPECT_TRUE(receiver.ok()) << receiver.status();
    receiver_ = *std::move(receiver);
    receiver_->Serve([this](const std::shared_ptr<web::Exchange>& exchange) { Answer(exchange); });
    std::ofstream(options_.tracking_file) << "tracking:\n- name: mlflow\n  mlflow: {url: 'http://"
                                          << receiver_->address() << "/base/'}\n  timeout: 10m\n";
  }
  ~TrackingTest() override {
    server_.reset();
    receiver_->Stop();
  }

  // The next of `next_`, if there is one: a status and a body, or 0: never.
  void Answer(const std::shared_ptr<web::Exchange>& exchange) {
    const absl::MutexLock lock(&mutex_);
    const std::string& path = exchange->request().path;
    ASSERT_TRUE(absl::StartsWith(path, "/base/api/2.0/mlflow/")) << path;
    const std::string method = path.substr(path.rfind('/', path.rfind('/') - 1) + 1);  // "runs/create"
    const json body = json::parse(exchange->request().body.empty() ? "{}" : exchange->request().body);
    calls_.push_back(method);
    if (const auto planned = next_.find(method); planned != next_.end() && !planned->second.empty()) {
      const auto [status, text] = planned->second.front();
      planned->second.erase(planned->second.begin());
      if (status == 0) return waiting_.push_back(exchange);
      return exchange->Reply({status, {}, text});
    }
    if (method == "experiments/get-by-name") {
      return exchange->Reply({200, {}, R"({"experiment": {"experiment_id": "1", "lifecycle_stage": "active"}})"});
    }
    if (method == "runs/create") {
      const std::string id = absl::StrCat("run", runs_.size());
      runs_.push_back({{"info", {{"run_id", id}, {"status", "RUNNING"}, {"lifecycle_stage", "active"}}},
                       {"data", {{"tags", body["tags"]}}}});
      return exchange->Reply({200, {}, json{{"run", runs_.back()}}.dump()});
    }
    if (method == "runs/search") {
      json found = json::array();
      for (const json& run : runs_) {
        for (const json& tag : run["data"]["tags"]) {
          const std::string quoted = absl::StrCat("'", tag["value"].get<std::string>(), "'");
          if (tag["key"] == "muster.job" && absl::StrContains(body["filter"].get<std::string>(), quoted)) {
            found.push_back(run);
          }
        }
      }
      return exchange->Reply({200, {}, json{{"runs", found}}.dump()});
    }
    if (method == "runs/log-batch" && body.contains("params")) {
      for (json& run : runs_) {
        if (run["info"]["run_id"] == body["run_id"]) run["data"]["params"] = body["params"];
      }
    }
    if (method == "runs/update") statuses_[body["run_id"]] = body["status"];
    if (method == "runs/delete") deleted_.push_back(body["run_id"]);
    exchange->Reply({200, {}, "{}"});
  }

  void Plan(const std::string& method, const std::vector<std::pair<int, std::string>>& answers) {
    const absl::MutexLock lock(&mutex_);
    next_[method] = answers;
  }
  size_t Count(const std::string& method) {
    const absl::MutexLock lock(&mutex_);
    return static_cast<size_t>(std::count(calls_.begin(), calls_.end(), method));
  }
  std::string StatusOf(const std::string& run) {
    const absl::MutexLock lock(&mutex_);
    return statuses_[run];
  }
  size_t Runs() {
    const absl::MutexLock lock(&mutex_);
    return runs_.size();
  }
  void Cancel(const std::string& job) {
    CancelRequest request;
    request.set_job(job);
    CancelReply reply;
    EXPECT_TRUE(client_->jobs().Cancel(client_->Context().get(), request, &reply).ok());
  }
  std::string Metrics() { return GetPage(server_->metrics_address()); }

  absl::Mutex mutex_;
  std::vector<std::string> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::vector<std::pair<int, std::string>>> next_ ABSL_GUARDED_BY(mutex_);
  std::vector<json> runs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> statuses_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> deleted_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<web::Exchange>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<web::HttpServer> receiver_;
};

TEST_F(TrackingTest, WhatFailsIsTriedAgain) {
  const std::string method = "experiments/get-by-name";
  std::vector<std::pair<int, std::string>> failures(100, {500, "oops"});
  failures[1] = {503, R"({"error_code": "TEMPORARILY_UNAVAILABLE"})"};
  Plan(method, failures);
  Start();
  const std::string a = client_->MustSubmit("a");
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "muster_tracking_up{server=\"mlflow\"} 0\n"); }));
  EXPECT_TRUE(Eventually([&] { return Count(method) >= 2; }));
  Plan(method, {});  // from now on it answers
  EXPECT_TRUE(Eventually([&] { return StatusOf("run0") == "SCHEDULED"; }));
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(Metrics(), "muster_tracking_up{server=\"mlflow\"} 1\n"); }));
  EXPECT_THAT(Metrics(),
              HasSubstr(absl::StrCat("muster_tracking_failures_total{server=\"mlflow\"} ", Count(method) - 1, "\n")));
  Cancel(a);
  EXPECT_TRUE(Eventually([&] { return StatusOf("run0") == "KILLED"; }));
  EXPECT_EQ(Runs(), 1u);
}

// The server has made the run although its answer was lost.
TEST_F(TrackingTest, AJobHasOneRunAlsoAfterALostAnswer) {
  Start();
  const std::string a = client_->MustSubmit("a");
  EXPECT_TRUE(Eventually([&] { return StatusOf("run0") == "SCHEDULED"; }));
  server_.reset();
  {
    // As if it had been made twice, the second time without anything in it.
    const absl::MutexLock lock(&mutex_);
    json twin = runs_[0];
    twin["info"]["run_id"] = "twin";
    twin["data"].erase("params");
    runs_.insert(runs_.begin(), twin);
  }
  Start();
  Cancel(a);
  EXPECT_TRUE(Eventually([&] { return StatusOf("run0") == "KILLED"; }));
  const absl::MutexLock lock(&mutex_);
  EXPECT_EQ(deleted_, std::vector<std::string>{"twin"});
  EXPECT_EQ(runs_.size(), 2u) << "none was made after the restart";
}

TEST_F(TrackingTest, WhatIsRefusedKeepsNothingElseBack) {
  Plan("runs/log-batch", {{400, R"({"error_code": "INVALID_PARAMETER_VALUE", "message": "no\nsuch thing"})"}});
  Start();
  client_->MustSubmit("a");
  EXPECT_TRUE(Eventually([&] { return StatusOf("run0") == "SCHEDULED"; }));
  EXPECT_THAT(Metrics(), HasSubstr("muster_tracking_refused_total{server=\"mlflow\"} 1\n"));
  client_->MustSubmit("b");
  EXPECT_TRUE(Eventually([&] { return StatusOf("run1") == "SCHEDULED"; }));
}

// A run that a user deleted stays deleted; one that was purged is made again.
TEST_F(TrackingTest, ARunThatIsGoneIsMadeAgain) {
  Start();
  const std::string a = client_->MustSubmit("a");
  EXPECT_TRUE(Eventually([&] { return StatusOf("run0") == "SCHEDULED"; }));
  Plan("runs/log-batch", {{404, R"({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "Run 'run0' not found"})"}});
  {
    const absl::MutexLock lock(&mutex_);
    runs_[0]["data"]["tags"] = json::array();  // it is not found any more
  }
  Cancel(a);
  EXPECT_TRUE(Eventually([&] { return StatusOf("run1") == "KILLED"; }));
}

// A server that never answers holds nothing up, and a shutdown does not wait for it.
TEST_F(TrackingTest, ASilentServerBlocksNothing) {
  Plan("experiments/get-by-name", {{0, ""}});
  Start();
  for (int i = 0; i < 50; ++i) client_->MustSubmit(absl::StrCat("job-", i));
  EXPECT_TRUE(Eventually([&] { return Count("experiments/get-by-name") == 1; }));
  const absl::Time begin = absl::Now();
  server_->Shutdown();
  EXPECT_LT(absl::Now() - begin, absl::Minutes(1)) << "not the ten minutes of an attempt";
  EXPECT_EQ(Count("experiments/get-by-name"), 1u) << "one after the other";
}

TEST_F(TrackingTest, AWrongFileIsRefused) {
  std::ofstream(options_.tracking_file) << "tracking:\n- {name: a}\n";
  const auto server = Server::Start(options_, &clock_);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("tracking.yaml: tracking: a: mlflow: is missing"));
}

TEST_F(TrackingTest, AnUnreadablePlaceIsNoNewBeginning) {
  std::filesystem::create_directories(options_.state_dir + "/tracking/mlflow");
  std::filesystem::permissions(options_.state_dir, std::filesystem::perms::owner_all);
  std::filesystem::permissions(options_.state_dir + "/tracking", std::filesystem::perms::owner_all);
  const absl::Status status = Server::Start(options_, &clock_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("the position of the tracking server mlflow"));
}

}  // namespace
}  // namespace muster::server
