// Deliveries to a real HTTP server on loopback, and to real commands.
#include "coordinator/notify/send.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/mutex.h"
#include "coordinator/web/http_server.h"
#include "testing/temporary_folder.h"
#include "testing/wait.h"

namespace muster::notify {
namespace {

using ::testing::HasSubstr;

Notice Failed() {
  Notice notice;
  notice.id = "faf4e9426a814ef1-17";
  notice.event.set_kind("job.failed");
  notice.event.set_message("rank 0 was killed\nby signal 9");
  notice.event.set_job("a-0001");
  notice.event.set_job_state(JOB_STATE_FAILED);
  notice.event.mutable_time()->set_seconds(1'800'000'000);
  notice.user = "ann";
  notice.project = "nlp";
  notice.labels = {"team=nlp"};
  return notice;
}

// Answers each request with the next of these statuses, the last one again and again; 0: never.
class Receiver {
 public:
  explicit Receiver(std::vector<int> statuses) : statuses_(std::move(statuses)) {
    auto server = web::HttpServer::Listen({.address = "127.0.0.1:0"});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    server_->Serve([this](std::shared_ptr<web::Exchange> exchange) {
      const MutexLock lock(mutex_);
      const int status = statuses_[std::min(requests_.size(), statuses_.size() - 1)];
      requests_.push_back(exchange->request());
      if (status != 0) return exchange->Reply({status, {}, status == 204 ? "" : "answer\n"});
      waiting_.push_back(std::move(exchange));
    });
  }
  ~Receiver() { server_->Stop(); }

  Webhook At(const std::string& target) {
    return {
        .url = ParseUrl(absl::StrCat("http://", server_->address(), target)).value(), .secret_file = "", .ca_file = ""};
  }
  std::vector<web::HttpRequest> requests() {
    const MutexLock lock(mutex_);
    return requests_;
  }

 private:
  const std::vector<int> statuses_;
  Mutex mutex_;
  std::vector<web::HttpRequest> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<web::Exchange>> waiting_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<web::HttpServer> server_;
};

// The example of the specification's own libraries (standard-webhooks, libraries/python/tests).
TEST(Webhook, SignsAsStandardWebhooks) {
  const char body[] = "{\"test\": 2432232314}", id[] = "msg_p5jXN8AQM9LWM0D4loKWxJek";
  EXPECT_EQ(SignatureOf("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", id, 1614265330, body),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
  // python3: hmac.new(b"a plain secret", ...)
  EXPECT_EQ(SignatureOf("a plain secret", id, 1614265330, body), "v1,ENqrYZJfEdejvH41MpDAd0s4SZwl35B0bx0LOnREaDY=");
}

TEST(Webhook, PostsTheNotice) {
  const TemporaryFolder folder;
  const std::string secret = folder.path() + "/secret";
  std::ofstream(secret) << "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n";
  chmod(secret.c_str(), 0600);
  Receiver receiver({204});
  Webhook webhook = receiver.At("/hook?to=ops");
  webhook.secret_file = secret;
  const absl::Notification stop;
  const absl::Status status = PostNotice(webhook, absl::Seconds(20), Failed(), stop);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(receiver.requests().size(), 1u);
  const web::HttpRequest request = receiver.requests()[0];
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/hook");
  EXPECT_EQ(request.Query("to"), "ops");
  EXPECT_EQ(request.Field("content-type"), "application/json");
  EXPECT_EQ(request.Field("webhook-id"), "faf4e9426a814ef1-17");
  int64_t timestamp = 0;
  ASSERT_TRUE(absl::SimpleAtoi(request.Field("webhook-timestamp"), &timestamp));
  EXPECT_LE(absl::AbsDuration(absl::FromUnixSeconds(timestamp) - absl::Now()), absl::Minutes(1));
  EXPECT_EQ(request.Field("webhook-signature"), SignatureOf("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                                                            request.Field("webhook-id"), timestamp, request.body));
  const nlohmann::json body = nlohmann::json::parse(request.body);
  EXPECT_EQ(body["kind"], "job.failed");
  EXPECT_EQ(body["message"], "rank 0 was killed\nby signal 9");
  EXPECT_EQ(body["job"], "a-0001");
  EXPECT_EQ(body["state"], "JOB_STATE_FAILED");
  EXPECT_EQ(body["user"], "ann");
  EXPECT_EQ(body["project"], "nlp");
  EXPECT_EQ(body["labels"][0], "team=nlp");
  EXPECT_EQ(body["time"], "2027-01-15T08:00:00.000Z");
  EXPECT_FALSE(body.contains("node"));
}

TEST(Webhook, SaysWhetherAnotherAttemptMayHelp) {
  const absl::Notification stop;
  Receiver receiver({500, 503, 429, 404, 302, 400, 422, 200});
  const auto post = [&] { return PostNotice(receiver.At("/"), absl::Seconds(20), Failed(), stop).code(); };
  for (int i = 0; i < 5; ++i) EXPECT_EQ(post(), absl::StatusCode::kUnavailable) << i;
  EXPECT_EQ(post(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(post(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(post(), absl::StatusCode::kOk);
  EXPECT_EQ(receiver.requests().size(), 8u) << "no redirection is followed";
  Webhook nowhere = receiver.At("/secret-path");
  nowhere.url.port = "1";
  const absl::Status refused = PostNotice(nowhere, absl::Seconds(20), Failed(), stop);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no connection"));
  EXPECT_THAT(std::string(refused.message()), ::testing::Not(HasSubstr("secret-path")));
}

TEST(Webhook, AnAttemptEndsInTime) {
  Receiver silent({0});
  absl::Notification stop;
  EXPECT_EQ(PostNotice(silent.At("/"), absl::Milliseconds(200), Failed(), stop).code(),
            absl::StatusCode::kDeadlineExceeded);
  std::thread stopper([&] {
    EXPECT_TRUE(Eventually([&] { return silent.requests().size() == 2; }));
    stop.Notify();
  });
  EXPECT_EQ(PostNotice(silent.At("/"), absl::Minutes(10), Failed(), stop).code(), absl::StatusCode::kCancelled);
  stopper.join();
}

// Accepts one connection, sends `answer`, and says nothing more.
class Stalled {
 public:
  explicit Stalled(const std::string& answer) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_, 1), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer] {
      const int accepted = accept(socket_, nullptr, nullptr);
      char request[4096];
      EXPECT_GT(read(accepted, request, sizeof(request)), 0);
      EXPECT_EQ(write(accepted, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
      while (read(accepted, request, sizeof(request)) > 0) {
      }
      close(accepted);
    });
  }
  ~Stalled() {
    thread_.join();
    close(socket_);
  }
  Webhook webhook() const {
    return {.url = ParseUrl(absl::StrCat("http://127.0.0.1:", port_)).value(), .secret_file = "", .ca_file = ""};
  }

 private:
  const int socket_;
  int port_ = 0;
  std::thread thread_;
};

TEST(Webhook, TheStatusIsEnough) {
  const absl::Notification stop;
  Stalled accepts("HTTP/1.1 202 Accepted\r\nContent-Length: 100\r\n\r\nhalf");
  EXPECT_TRUE(PostNotice(accepts.webhook(), absl::Minutes(10), Failed(), stop).ok());
  Stalled refuses("HTTP/1.1 400 Bad Request\r\n\r\n");
  EXPECT_EQ(PostNotice(refuses.webhook(), absl::Minutes(10), Failed(), stop).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Webhook, WithoutDescriptorsItIsTriedAgain) {
  const absl::Notification stop;
  Webhook plain{.url = ParseUrl("http://127.0.0.1:1").value(), .secret_file = "", .ca_file = ""}, encrypted = plain;
  encrypted.url.encrypted = true;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status http = PostNotice(plain, absl::Seconds(20), Failed(), stop);
  const absl::Status https = PostNotice(encrypted, absl::Seconds(20), Failed(), stop);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(http.code(), absl::StatusCode::kUnavailable) << http;
  EXPECT_THAT(std::string(http.message()), HasSubstr("cannot send: "));
  EXPECT_FALSE(https.ok());
}

class CommandTest : public ::testing::Test {
 protected:
  CommandTest() { signal(SIGPIPE, SIG_IGN); }  // as the coordinator

  absl::Status Run(const std::string& script, absl::Duration timeout = absl::Seconds(20),
                   const std::string& body = "{}") {
    return RunCommand({"/bin/sh", "-c", script, "name", folder_.path() + "/out"}, timeout, body, stop_);
  }
  std::string Out() const {
    std::ifstream file(folder_.path() + "/out");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryFolder folder_;
  absl::Notification stop_;
};

TEST_F(CommandTest, GetsTheBodyAndSucceedsWithCodeZero) {
  const std::string body(200'000, 'x');  // more than a pipe holds
  EXPECT_TRUE(Run("cat > \"$1\"", absl::Seconds(20), body).ok());
  EXPECT_EQ(Out(), body);
  EXPECT_TRUE(Run("exec true", absl::Seconds(20), body).ok()) << "which reads nothing";
  const absl::Status failed = Run("echo no such user >&2; exit 3");
  EXPECT_EQ(failed.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(std::string(failed.message()), "/bin/sh exited with code 3: no such user?");
  EXPECT_THAT(std::string(Run("kill -9 $$").message()), HasSubstr("was killed by signal 9"));
  EXPECT_EQ(RunCommand({"/no/such/program"}, absl::Seconds(1), "", stop_).code(), absl::StatusCode::kNotFound);
  EXPECT_LE(Run("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; exit 1").message().size(), 600u);
}

TEST_F(CommandTest, HasNoDescriptorOfTheCoordinator) {
  const int inherited = open("/dev/null", O_RDONLY);  // no CLOEXEC
  ASSERT_GT(inherited, 2);
  ASSERT_EQ(dup2(inherited, 200), 200);
  const absl::Status status = Run("ls /proc/self/fd > \"$1\"");
  close(inherited);
  close(200);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Out(), "0\n1\n2\n3\n") << "3 is the folder that ls reads";
}

// Its end counts, not that of what it started.
TEST_F(CommandTest, EndsWhileWhatItStartedWritesOn) {
  EXPECT_TRUE(Run("(trap '' PIPE; while :; do echo y || exit; done) & echo $! > \"$1\"; exit 0").ok());
  pid_t child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(Out().substr(0, Out().find('\n')), &child)) << Out();
  EXPECT_TRUE(Eventually([&] { return kill(child, 0) != 0; })) << "the output is closed";
}

TEST_F(CommandTest, IsKilledWithWhatItStarted) {
  // A busy machine may take long to start it.
  for (const absl::Duration timeout : {absl::Seconds(2), absl::Seconds(8), absl::Seconds(30)}) {
    const absl::Status late = Run("sleep 600 & echo $! > \"$1\"; wait", timeout);
    EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
    if (!Out().empty()) break;
  }
  pid_t child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(Out().substr(0, Out().find('\n')), &child)) << Out();
  EXPECT_TRUE(Eventually([&] { return kill(child, 0) != 0; }));
  stop_.Notify();
  EXPECT_EQ(Run("sleep 600").code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace muster::notify
