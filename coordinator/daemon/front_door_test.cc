// Floods of connections: who gets in, who is closed, and that the door works afterwards.
#include "coordinator/daemon/front_door.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

constexpr char kToken[] = "0123456789abcdef";

int PortOf(const std::string& address) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return port;
}

// A client's preface and its empty settings (RFC 9113, 3.4): what gRPC waits for before it has a connection.
const std::string& Greeting() {
  static const std::string greeting("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33);
  return greeting;
}

// A connection that says nothing.
class Silent {
 public:
  explicit Silent(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << std::strerror(errno);
  }
  ~Silent() { close(fd_); }
  Silent(const Silent&) = delete;
  // Returns how many of them have gone.
  size_t Send(std::string_view bytes) const {
    return static_cast<size_t>(
        std::max<ssize_t>(0, send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT)));
  }
  // What has come so far.
  std::string Received() const {
    char bytes[256];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT | MSG_PEEK);
    return {bytes, static_cast<size_t>(std::max<ssize_t>(0, n))};
  }
  // gRPC greets those that it has; the others see the end.
  bool IsOpen() const {
    char bytes[256];
    while (true) {
      const ssize_t n = recv(fd_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (n < 0) return errno == EAGAIN;
      if (n == 0) return false;
    }
  }

 private:
  const int fd_;
};

class FrontDoorTest : public ServerFixture {
 protected:
  // The second address is TCP, for which a token is needed.
  FrontDoorTest() {
    options_.token_file = folder_.path() + "/tokens";
    std::ofstream(options_.token_file) << kToken << " ann admin\n";
    chmod(options_.token_file.c_str(), 0600);
    options_.listen.push_back("127.0.0.1:0");
    options_.connections = {.connections = 40, .of_peer = 30, .unknown = 10, .unknown_for = absl::Seconds(10)};
  }
  const std::string& tcp() const { return server_->addresses()[1]; }
  static grpc::Status Ask(Client& client) {
    VersionReply reply;
    return client.admin().Version(client.Context(absl::Seconds(5)).get(), {}, &reply);
  }
  // Speak HTTP/2, and make no call.
  std::vector<std::unique_ptr<Silent>> Greeters(size_t count) const {
    std::vector<std::unique_ptr<Silent>> all;
    for (size_t i = 0; i < count; ++i) {
      all.push_back(std::make_unique<Silent>(PortOf(tcp())));
      all.back()->Send(Greeting());
    }
    return all;
  }
  size_t Open(const std::vector<std::unique_ptr<Silent>>& all) const {
    return static_cast<size_t>(std::count_if(all.begin(), all.end(), [](const auto& one) { return one->IsOpen(); }));
  }
};

TEST_F(FrontDoorTest, StrangersGetAShareAndAreClosedAfterAWhile) {
  Start();
  Client known(tcp(), kToken);
  ASSERT_TRUE(Ask(known).ok());
  const auto strangers = Greeters(30);
  ASSERT_TRUE(Eventually([&] { return Open(strangers) == 10; })) << Open(strangers);
  EXPECT_TRUE(Ask(known).ok()) << "it was there before";
  EXPECT_TRUE(Ask(*client_).ok()) << "the Unix socket is for this user only";
  ASSERT_TRUE(Eventually([&] { return Open(strangers) == 0; }));
  EXPECT_TRUE(Ask(known).ok()) << "whoever made a call stays";
  Client late(tcp(), kToken);
  EXPECT_TRUE(Eventually([&] { return Ask(late).ok(); }));
}

TEST_F(FrontDoorTest, StrangersOfOneAddressAreFew) {
  options_.connections = {.unknown_of_peer = 4, .unknown_for = absl::Minutes(5)};
  Start();
  const auto strangers = Greeters(10);
  EXPECT_TRUE(Eventually([&] { return Open(strangers) == 4; })) << Open(strangers);
}

// Whoever does not even begin to speak HTTP/2 (or TLS) is closed before strangers are.
TEST_F(FrontDoorTest, AHandshakeHasADeadline) {
  options_.connections = {.unknown_for = absl::Minutes(10)};
  Start();
  const Silent silent(PortOf(tcp()));
  EXPECT_TRUE(Eventually([&] { return !silent.IsOpen(); }));
}

// gRPC itself would keep them: they speak HTTP/2.
TEST_F(FrontDoorTest, WhoGreetsButMakesNoCallIsClosedAfterAWhile) {
  Start();
  const auto strangers = Greeters(3);
  EXPECT_TRUE(Eventually([&] { return !strangers[0]->Received().empty(); })) << "it is greeted back";
  EXPECT_EQ(Open(strangers), 3u);
  EXPECT_TRUE(Eventually([&] { return Open(strangers) == 0; }));
}

// Those of an address that has as many as it may are closed sooner, until it has fewer.
TEST_F(FrontDoorTest, InACrowdThatWhileIsShorter) {
  options_.connections = {.unknown_of_peer = 4, .unknown_for = absl::Minutes(5)};
  Start();
  const auto strangers = Greeters(4);
  EXPECT_TRUE(Eventually([&] { return Open(strangers) < 4; }, absl::Minutes(2))) << "alone they could stay for longer";
  Client late(tcp(), kToken);
  EXPECT_TRUE(Eventually([&] { return Ask(late).ok(); }));
}

// As the server says it: a setting of its first HTTP/2 frame (RFC 9113, 6.5).
TEST_F(FrontDoorTest, StreamsOfAConnectionAreBounded) {
  Start();
  const Silent one(PortOf(tcp()));
  one.Send(Greeting());
  constexpr size_t kHeader = 9, kSetting = 6;
  const auto byte = [](const std::string& frame, size_t at) { return static_cast<unsigned char>(frame[at]); };
  std::string frame;
  ASSERT_TRUE(Eventually([&] {
    frame = one.Received();
    return frame.size() >= kHeader && frame.size() >= kHeader + byte(frame, 2);
  }));
  ASSERT_EQ(frame[3], 4) << "its first frame is SETTINGS";
  uint64_t streams = uint64_t{1} << 32;  // without that setting there is no limit
  for (size_t at = kHeader; at + kSetting <= kHeader + byte(frame, 2); at += kSetting) {
    if (byte(frame, at) != 0 || byte(frame, at + 1) != 3) continue;  // SETTINGS_MAX_CONCURRENT_STREAMS
    streams = 0;
    for (size_t i = 2; i < kSetting; ++i) streams = streams << 8 | byte(frame, at + i);
  }
  EXPECT_LE(streams, 1000u);
}

TEST_F(FrontDoorTest, OneAddressCannotTakeAllConnections) {
  options_.connections = {.connections = 40, .of_peer = 3, .unknown = 10};
  Start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(tcp(), kToken));
    EXPECT_TRUE(Ask(*clients.back()).ok()) << i;
  }
  Client fourth(tcp(), kToken);
  EXPECT_EQ(Ask(fourth).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Ask(*client_).ok());
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return Ask(fourth).ok(); }, absl::Seconds(20))) << "closed connections count no more";
}

TEST_F(FrontDoorTest, ThereIsALimitForAll) {
  options_.connections = {.connections = 3, .of_peer = 3, .unknown = 3};
  Start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(address()));
    EXPECT_TRUE(Ask(*clients.back()).ok()) << i;
  }
  Client fourth(address());
  EXPECT_EQ(Ask(fourth).error_code(), grpc::StatusCode::UNAVAILABLE);
}

// A client's preface and many calls without a token, as HTTP/2 frames.
std::string ManyCalls() {
  const auto frame = [](char type, char flag, uint32_t stream, const std::string& body) {
    std::string bytes;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(body.size() >> shift);
    bytes += type, bytes += flag;
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(stream >> shift);
    return bytes + body;
  };
  const std::string path = "/muster.v1.Jobs/Submit";
  std::string headers("\x83\x86\x04", 3);  // POST, http, and a path as a literal
  headers += static_cast<char>(path.size());
  headers += path + std::string("\x0f\x10\x10", 3) + "application/grpc";
  std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, "");
  for (uint32_t stream = 1; stream < 4'000; stream += 2) bytes += frame(1, 4, stream, headers);
  return bytes;
}

TEST_F(FrontDoorTest, AFloodOfCallsShutsItsAddressOutForAMoment) {
  options_.connections = {.unknown_for = absl::Minutes(5), .shut_out_for = absl::Seconds(1)};
  Start();
  Client known(tcp(), kToken);
  ASSERT_TRUE(Ask(known).ok());
  const Silent quiet(PortOf(tcp())), loud(PortOf(tcp()));
  loud.Send(ManyCalls());
  EXPECT_TRUE(Eventually([&] { return !loud.IsOpen(); }));
  EXPECT_TRUE(Eventually([&] { return !quiet.IsOpen(); })) << "it is of the same address, and has made no call either";
  EXPECT_TRUE(Ask(known).ok()) << "whoever made a call stays";
  EXPECT_TRUE(Ask(*client_).ok());
  Client late(tcp(), kToken);
  EXPECT_TRUE(Eventually([&] { return Ask(late).ok(); })) << "shut out for ever";
  // Then few at once, until it has behaved for a while.
  std::vector<std::unique_ptr<Silent>> strangers;
  for (int i = 0; i < 10; ++i) strangers.push_back(std::make_unique<Silent>(PortOf(tcp())));
  EXPECT_TRUE(Eventually([&] { return Open(strangers) == 2; })) << Open(strangers);
}

// Without an answer, and beyond what flow control bounds: receivers pass over frames of unknown types (RFC 9113, 4.1).
TEST_F(FrontDoorTest, WhoSendsMuchButMakesNoCallIsClosed) {
  options_.connections = {.unknown_for = absl::Minutes(5)};
  Start();
  Client known(tcp(), kToken);
  ASSERT_TRUE(Ask(known).ok());
  const Silent loud(PortOf(tcp()));
  loud.Send(Greeting());
  ASSERT_TRUE(Eventually([&] { return !loud.Received().empty(); }));
  const std::string frame = std::string("\0\x40\0\x7f\0\0\0\0\0", 9) + std::string(0x4000, 'x');
  std::string_view left = frame;
  size_t sent = 0;
  EXPECT_TRUE(Eventually([&] {
    while (const size_t some = loud.Send(left)) {
      sent += some;
      left.remove_prefix(some);
      if (left.empty()) left = frame;
      if (sent > 64 << 20) break;
    }
    return !loud.IsOpen();
  })) << sent;
  EXPECT_TRUE(Ask(known).ok());
}

TEST_F(FrontDoorTest, AFloodOfConnectionsShutsItsAddressOutForAMoment) {
  options_.connections = {.unknown_of_peer = 1000, .unknown_for = absl::Minutes(5), .shut_out_for = absl::Minutes(5)};
  Start();
  Client known(tcp(), kToken);
  ASSERT_TRUE(Ask(known).ok());
  // Each is closed by its sender.
  EXPECT_TRUE(Eventually([&] {
    for (int i = 0; i < 200; ++i) Silent one(PortOf(tcp()));
    const Silent another(PortOf(tcp()));
    return Eventually([&] { return !another.IsOpen(); }, absl::Seconds(1));
  }));
  absl::SleepFor(absl::Seconds(3));  // the sweeps that close what is there are over
  const Silent late(PortOf(tcp()));
  late.Send(Greeting());
  EXPECT_TRUE(Eventually([&] { return !late.IsOpen(); })) << "it is refused";
  EXPECT_TRUE(Ask(known).ok());
}

// A full house refuses clients, but the probe comes in by itself, so the service does not end for it.
TEST_F(FrontDoorTest, TheProbeFindsAFullHouseInOrder) {
  options_.listen = {"127.0.0.1:0"};
  options_.connections = {.connections = 2,
                          .of_peer = 2,
                          .unknown = 2,
                          .unknown_for = absl::Minutes(5),
                          .probe_every = absl::Milliseconds(50),
                          .probe_patience = absl::Seconds(5)};
  auto server = Server::Start(options_, &clock_);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::unique_ptr<Silent>> all;
  for (int i = 0; i < 2; ++i) all.push_back(std::make_unique<Silent>(PortOf((*server)->addresses()[0])));
  absl::SleepFor(absl::Seconds(1));  // twenty probes; three failures would end this process
  EXPECT_EQ(Open(all), 2u);
}

TEST_F(FrontDoorTest, TheProbeIsNotRefusedByAFullHouse) {
  FrontDoor door({.connections = 2, .of_peer = 2, .unknown = 2, .probe_every = absl::Milliseconds(20)}, &clock_,
                 [](const absl::Status&) {});
  grpc::ServerBuilder builder;
  const absl::StatusOr<int> port = door.Open(*ParseAddress("127.0.0.1:0"), builder, grpc::InsecureServerCredentials());
  ASSERT_TRUE(port.ok()) << port.status();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const Silent one(*port), another(*port);
  door.Start();
  ASSERT_TRUE(Eventually([&] { return door.counts().unknown >= 2; }));
  absl::SleepFor(absl::Seconds(1));
  EXPECT_EQ(door.counts().refused, 0u) << "of some fifty probes";
  const Silent third(*port);
  EXPECT_TRUE(Eventually([&] { return door.counts().refused == 1; })) << "a client is refused";
  door.Stop();
}

// One of its addresses takes no more connections, as gRPC's own after EMFILE.
TEST_F(FrontDoorTest, TheProbeReportsADoorThatDoesNotOpen) {
  std::atomic<bool> failed = false;
  FrontDoor door({.connections = 10, .probe_every = absl::Milliseconds(50), .probe_patience = absl::Milliseconds(200)},
                 &clock_, [&](const absl::Status&) { failed = true; });
  grpc::ServerBuilder builder;
  const std::string socket = absl::StrCat("unix:", folder_.path(), "/door.sock");
  ASSERT_TRUE(door.Open(*ParseAddress(socket), builder, grpc::InsecureServerCredentials()).ok());
  const absl::StatusOr<int> port = door.Open(*ParseAddress("127.0.0.1:0"), builder, grpc::InsecureServerCredentials());
  ASSERT_TRUE(port.ok()) << port.status();
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  door.Start();
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_FALSE(failed);
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in bound{};
    socklen_t length = sizeof bound;
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) continue;
    if (bound.sin_family == AF_INET && ntohs(bound.sin_port) == *port) shutdown(fd, SHUT_RDWR);
  }
  EXPECT_TRUE(Eventually([&] { return failed.load(); }));
  door.Stop();
}

// As a cleaner of /tmp does.
TEST_F(FrontDoorTest, TheProbeSaysThatTheSocketIsGone) {
  absl::Mutex mutex;
  std::string failed;
  FrontDoor door({.connections = 10, .probe_every = absl::Milliseconds(50), .probe_patience = absl::Milliseconds(200)},
                 &clock_, [&](const absl::Status& why) {
                   const absl::MutexLock lock(&mutex);
                   failed = std::string(why.message());
                 });
  grpc::ServerBuilder builder;
  const std::string socket = absl::StrCat(folder_.path(), "/door.sock");
  ASSERT_TRUE(door.Open(*ParseAddress("unix:" + socket), builder, grpc::InsecureServerCredentials()).ok());
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  door.Start();
  ASSERT_EQ(unlink(socket.c_str()), 0);
  EXPECT_TRUE(Eventually([&] {
    const absl::MutexLock lock(&mutex);
    return failed ==
           absl::StrCat("the socket ", socket, " is gone: another program removed it, such as a cleaner of /tmp");
  }));
  door.Stop();
}

}  // namespace
}  // namespace muster::server
