#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/endpoint.h"
#include "common/metrics/exposition.h"

namespace muster {
namespace {

using boost::asio::ip::tcp;

TEST(Exposition, IsWhatPrometheusReads) {
  Exposition page;
  page.Begin("muster_jobs", Kind::kGauge, "Jobs by\nstate.");
  page.Add({{"state", "queued"}, {"owner", "a\"b\\c\nd"}}, 3);
  page.Counter("muster_things_total", "Things.", 1e15 + 1);
  page.Gauge("muster_loss", "A loss that left the reals.", std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(page.Take(),
            "# HELP muster_jobs Jobs by\\nstate.\n# TYPE muster_jobs gauge\n"
            "muster_jobs{state=\"queued\",owner=\"a\\\"b\\\\c\\nd\"} 3\n"
            "# HELP muster_things_total Things.\n# TYPE muster_things_total counter\n"
            "muster_things_total 1000000000000001\n"
            "# HELP muster_loss A loss that left the reals.\n# TYPE muster_loss gauge\nmuster_loss NaN\n");
}

TEST(Exposition, HistogramsAreCumulative) {
  Histogram histogram({0.1, 1});
  for (const double value : {0.1, 0.2, 1.0, 7.0}) histogram.Observe(value);
  Exposition page;
  page.Begin("muster_wait_seconds", Kind::kHistogram, "Waits.");
  page.Add(histogram.Read());
  EXPECT_EQ(page.Take(),
            "# HELP muster_wait_seconds Waits.\n# TYPE muster_wait_seconds histogram\n"
            "muster_wait_seconds_bucket{le=\"0.1\"} 1\nmuster_wait_seconds_bucket{le=\"1\"} 3\n"
            "muster_wait_seconds_bucket{le=\"+Inf\"} 4\nmuster_wait_seconds_sum 8.3000000000000007\n"
            "muster_wait_seconds_count 4\n");
}

class EndpointTest : public ::testing::Test {
 protected:
  void Start(MetricsEndpoint::Page page) {
    auto endpoint = MetricsEndpoint::Start("127.0.0.1:0", MetricsEndpoint::Reach::kThisMachine, std::move(page));
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
  }
  tcp::socket Connect() {
    tcp::socket socket(context_);
    const std::string port = endpoint_->address().substr(endpoint_->address().rfind(':') + 1);
    boost::asio::connect(socket, tcp::resolver(context_).resolve("127.0.0.1", port));
    return socket;
  }
  // The whole answer to a request that asks to close.
  std::string Ask(const std::string& text) {
    tcp::socket socket = Connect();
    boost::system::error_code error;
    boost::asio::write(socket, boost::asio::buffer(text), error);
    std::string answer;
    boost::asio::read(socket, boost::asio::dynamic_buffer(answer), error);
    return answer;
  }
  static std::string Get(const std::string& path) {
    return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  }

  boost::asio::io_context context_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

TEST_F(EndpointTest, ServesThePageAndNothingElse) {
  std::atomic<int> made = 0;
  Start([&]() -> absl::StatusOr<std::string> { return absl::StrCat("page ", ++made, "\n"); });
  const std::string answer = Ask(Get("/metrics"));
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 200 OK\r\n")) << answer;
  EXPECT_TRUE(absl::StrContains(answer, "Content-Type: text/plain; version=0.0.4")) << answer;
  EXPECT_TRUE(absl::EndsWith(answer, "\r\n\r\npage 1\n")) << answer;
  EXPECT_TRUE(absl::StartsWith(Ask(Get("/")), "HTTP/1.1 404"));
  EXPECT_TRUE(absl::StartsWith(Ask("POST /metrics HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"),
                               "HTTP/1.1 405"));
  EXPECT_EQ(made, 1);
}

TEST_F(EndpointTest, WhatIsNoHttpAndWhoIsSilentHarmsNoOne) {
  Start([]() -> absl::StatusOr<std::string> { return absl::UnavailableError("busy"); });
  EXPECT_EQ(Ask(absl::StrCat(std::string(100'000, 'x'), "\r\n\r\n")), "");
  EXPECT_EQ(Ask(absl::StrCat("GET /metrics HTTP/1.1\r\nA: ", std::string(100'000, 'x'), "\r\n\r\n")), "");
  std::vector<tcp::socket> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(Connect());
  const std::string answer = Ask(Get("/metrics"));
  EXPECT_TRUE(absl::StartsWith(answer, "HTTP/1.1 503")) << answer;
  EXPECT_TRUE(absl::EndsWith(answer, "busy\n")) << answer;
  endpoint_.reset();  // with connections open
}

TEST_F(EndpointTest, RefusesWhatIsOpenToOthers) {
  const auto start = [](const std::string& address) {
    return MetricsEndpoint::Start(address, MetricsEndpoint::Reach::kThisMachine, [] { return std::string(); }).status();
  };
  EXPECT_TRUE(absl::IsFailedPrecondition(start("0.0.0.0:0")));
  EXPECT_TRUE(absl::IsFailedPrecondition(start("192.0.2.1:9464")));
  EXPECT_TRUE(absl::IsFailedPrecondition(start("[::]:0")));
  for (const char* wrong : {"", "9464", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", "host.example:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(start(wrong))) << wrong;
  }
  Start([] { return std::string(); });
  EXPECT_TRUE(absl::IsUnavailable(start(endpoint_->address())));
}

TEST_F(EndpointTest, FetchesFromTheWholeNetworkIfThatIsAccepted) {
  int asked = 0;
  auto endpoint =
      MetricsEndpoint::Start("0.0.0.0:0", MetricsEndpoint::Reach::kNetwork, [&]() -> absl::StatusOr<std::string> {
        if (++asked == 2) return absl::UnavailableError("busy");
        return "muster_jobs{state=\"queued\"} 3\n";
      });
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  const std::string address = (*endpoint)->address();
  const absl::StatusOr<std::string> page = FetchMetrics(address, absl::Seconds(30));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(SeriesValue(*page, "muster_jobs{state=\"queued\"}"), "3");
  EXPECT_EQ(SeriesValue(*page, "muster_jobs"), "");
  const absl::Status busy = FetchMetrics(address, absl::Seconds(30)).status();
  EXPECT_TRUE(absl::IsUnavailable(busy));
  EXPECT_TRUE(absl::StrContains(busy.message(), "answers 503: busy")) << busy;
  endpoint->reset();
  EXPECT_TRUE(absl::IsUnavailable(FetchMetrics(address, absl::Seconds(30)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FetchMetrics("9464", absl::Seconds(30)).status()));
}

// A daemon that takes the connection and says nothing.
TEST_F(EndpointTest, FetchingGivesUpAfterItsTimeout) {
  tcp::acceptor silent(context_, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  const absl::Status status =
      FetchMetrics(absl::StrCat("127.0.0.1:", silent.local_endpoint().port()), absl::Milliseconds(100)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

}  // namespace
}  // namespace muster
