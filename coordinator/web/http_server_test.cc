// The server against a client that speaks to its socket, byte by byte where that matters.
#include "coordinator/web/http_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "testing/wait.h"

namespace muster::web {
namespace {

class Wire {
 public:
  explicit Wire(const std::string& address) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  ~Wire() { close(fd_); }
  Wire(const Wire&) = delete;

  bool Send(const std::string& text) {
    return send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == ssize_t(text.size());
  }
  // Reads until `end` is there or the connection ends.
  std::string Read(const std::string& end = "") {
    const absl::Time deadline = absl::Now() + kTestPatience;
    while ((end.empty() || !absl::StrContains(text_, end)) && absl::Now() < deadline) {
      pollfd ready{fd_, POLLIN, 0};
      if (poll(&ready, 1, 100) <= 0) continue;
      char buffer[4096];
      const ssize_t count = recv(fd_, buffer, sizeof(buffer), 0);
      if (count <= 0) {
        ended_ = true;
        break;
      }
      text_.append(buffer, static_cast<size_t>(count));
    }
    return text_;
  }
  bool ended() const { return ended_; }

 private:
  const int fd_;
  std::string text_;
  bool ended_ = false;
};

class HttpServerTest : public ::testing::Test {
 protected:
  void Start(HttpServer::Handler handler = nullptr) {
    options_.address = "127.0.0.1:0";
    server_ = HttpServer::Listen(options_).value();
    if (handler == nullptr) {
      handler = [](const std::shared_ptr<Exchange>& exchange) {
        exchange->Reply({200,
                         {},
                         absl::StrCat("path=", exchange->request().path, " q=", exchange->request().Query("q"),
                                      " body=", exchange->request().body, ".")});
      };
    }
    server_->Serve(std::move(handler));
  }
  std::string Ask(const std::string& bytes) {
    Wire wire(server_->address());
    wire.Send(bytes);
    return wire.Read();
  }

  HttpServer::Options options_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, AnswersOneRequestAfterTheOtherOnAConnection) {
  Start();
  Wire wire(server_->address());
  wire.Send("GET /a/b?q=1%2B+x HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(absl::StrContains(wire.Read("body=."), "path=/a/b q=1+ x body=.")) << wire.Read("body=.");
  wire.Send("POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
  EXPECT_TRUE(absl::StrContains(wire.Read(), "path=/c q= body=hello."));
  EXPECT_TRUE(wire.ended());
}

TEST_F(HttpServerTest, RefusesWhatIsNoRequest) {
  Start();
  EXPECT_TRUE(absl::StartsWith(Ask("nonsense\r\n\r\n"), "HTTP/1.1 400"));
  EXPECT_TRUE(absl::StartsWith(Ask("GET a HTTP/1.1\r\n\r\n"), "HTTP/1.1 400"));
  EXPECT_TRUE(absl::StartsWith(Ask("GET /?q=%zz HTTP/1.1\r\n\r\n"), "HTTP/1.1 400"));
  EXPECT_TRUE(absl::StartsWith(Ask("GET /?q=%00 HTTP/1.1\r\n\r\n"), "HTTP/1.1 400"));
  EXPECT_TRUE(absl::StartsWith(Ask("POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"), "HTTP/1.1 400"));
}

TEST_F(HttpServerTest, BoundsTheHeaderAndTheBody) {
  options_.header_bytes = 1000;
  options_.body_bytes = 100;
  Start();
  EXPECT_TRUE(absl::StartsWith(Ask("GET / HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n"), "HTTP/1.1 431"));
  EXPECT_TRUE(
      absl::StartsWith(Ask("POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n" + std::string(101, 'x')), "HTTP/1.1 413"));
  EXPECT_TRUE(absl::StartsWith(
      Ask("POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 100\r\n\r\n" + std::string(100, 'x')),
      "HTTP/1.1 200"));
}

TEST_F(HttpServerTest, ClosesAClientThatSendsItsRequestTooSlowly) {
  options_.request_patience = absl::Milliseconds(300);
  Start();
  const absl::Time began = absl::Now();
  Wire wire(server_->address());
  wire.Send("GET / HTTP/1.1\r\n");
  // A byte now and then does not extend its time.
  EXPECT_TRUE(Eventually([&] { return !wire.Send("X"); }, kTestPatience, absl::Milliseconds(20)));
  EXPECT_GE(absl::Now() - began, absl::Milliseconds(200));
  EXPECT_TRUE(Eventually([&] { return server_->connections() == 0; }));
}

TEST_F(HttpServerTest, ClosesConnectionsBeyondTheLimit) {
  options_.connections = 2;
  Start();
  Wire first(server_->address()), second(server_->address());
  first.Send("GET / HTTP/1.1\r\n\r\n");
  second.Send("GET / HTTP/1.1\r\n\r\n");
  first.Read("body=.");
  second.Read("body=.");
  Wire third(server_->address());
  third.Read();
  EXPECT_TRUE(third.ended());
  first.Send("GET /again HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(absl::StrContains(first.Read("path=/again q= body=."), "/again"));
}

// Whoever holds connections without saying anything cannot keep others out.
TEST_F(HttpServerTest, TheOldestStrangerGivesWay) {
  options_.strangers = 2;
  Start([](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().path == "/known") exchange->SetKnown();
    exchange->Reply({200, {}, "hello."});
  });
  Wire known(server_->address());
  known.Send("GET /known HTTP/1.1\r\n\r\n");
  known.Read("hello.");
  Wire first(server_->address()), second(server_->address());
  ASSERT_TRUE(Eventually([&] { return server_->connections() == 3; }));
  Wire third(server_->address());
  first.Read();
  EXPECT_TRUE(first.ended());
  third.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(absl::StrContains(third.Read("hello."), "hello."));
  known.Send("GET /again HTTP/1.1\r\nConnection: close\r\n\r\n");
  const std::string answers = known.Read();
  EXPECT_NE(answers.rfind("hello."), answers.find("hello.")) << "the known one was closed: " << answers;
}

TEST_F(HttpServerTest, AStreamBeatsAndEndsWithItsReader) {
  options_.heartbeat = absl::Milliseconds(100);
  options_.streams = 1;
  std::atomic<int> closed = 0;
  std::shared_ptr<Exchange> stream;
  Start([&](const std::shared_ptr<Exchange>& exchange) {
    if (!exchange->Begin([&] { ++closed; })) return;
    stream = exchange;
    exchange->Write("data: 1\n\n", [exchange](bool ok) {
      if (ok) exchange->Write("data: 2\n\n", [](bool) {});
    });
  });
  {
    Wire wire(server_->address());
    wire.Send("GET / HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(absl::StrContains(wire.Read("\n:\n\n"), "data: 1\n\ndata: 2\n\n:\n\n")) << wire.Read("\n:\n\n");
    EXPECT_TRUE(absl::StartsWith(Ask("GET / HTTP/1.1\r\nConnection: close\r\n\r\n"), "HTTP/1.1 503"));
    EXPECT_EQ(closed, 0);
  }
  EXPECT_TRUE(Eventually([&] { return closed == 1; }));
  std::atomic<int> failed = 0;
  stream->Write("late", [&](bool ok) { failed += ok ? 0 : 1; });
  EXPECT_TRUE(Eventually([&] { return failed == 1; }));
}

TEST_F(HttpServerTest, AWriteAfterTheStopIsRefused) {
  std::atomic<bool> begun = false;
  std::shared_ptr<Exchange> stream;
  Start([&](const std::shared_ptr<Exchange>& exchange) {
    if (!exchange->Begin([] {})) return;
    stream = exchange;
    begun = true;
  });
  Wire wire(server_->address());
  wire.Send("GET / HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return begun.load(); }));
  server_->Stop();
  int refused = 0;
  stream->Write("too late", [&](bool ok) { refused += ok ? 0 : 1; });
  EXPECT_EQ(refused, 1);
}

TEST_F(HttpServerTest, StopsWhileAnAnswerIsPending) {
  std::atomic<bool> arrived = false;
  std::shared_ptr<Exchange> pending;
  Start([&](const std::shared_ptr<Exchange>& exchange) {
    pending = exchange;
    arrived = true;
  });
  Wire wire(server_->address());
  wire.Send("GET / HTTP/1.1\r\n\r\n");
  ASSERT_TRUE(Eventually([&] { return arrived.load(); }));
  server_->Stop();
  pending->Reply({200, {}, "too late"});
  EXPECT_EQ(wire.Read(), "");
  EXPECT_TRUE(wire.ended());
}

TEST(HttpServerAddress, SaysWhatIsWrong) {
  EXPECT_EQ(HttpServer::Listen({.address = "7080"}).status().code(), absl::StatusCode::kInvalidArgument);
  const auto first = HttpServer::Listen({.address = "127.0.0.1:0"});
  EXPECT_EQ(HttpServer::Listen({.address = (*first)->address()}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(PercentDecode, Table) {
  std::string out;
  EXPECT_TRUE(PercentDecode("a%2Fb+c", false, out));
  EXPECT_EQ(out, "a/b+c");
  EXPECT_TRUE(PercentDecode("a+%C3%a9", true, out));
  EXPECT_EQ(out, "a \xc3\xa9");
  for (const char* bad : {"%", "%4", "%g0", "%00"}) EXPECT_FALSE(PercentDecode(bad, false, out)) << bad;
}

}  // namespace
}  // namespace muster::web
