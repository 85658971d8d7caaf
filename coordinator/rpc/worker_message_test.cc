#include "coordinator/rpc/worker_message.h"

#include <gtest/gtest.h>

#include <cmath>

#include <optional>
#include <string>

#include "common/version.h"

namespace muster::rpc {
namespace {

WorkerMessage GoodHello() {
  WorkerMessage message;
  Hello& hello = *message.mutable_hello();
  hello.set_protocol(kProtocol);
  hello.mutable_node()->set_id("n1");
  hello.mutable_node()->set_incarnation("i1");
  hello.mutable_node()->set_boot_id("b1");
  hello.mutable_node()->set_version(kVersion);
  return message;
}

WorkerMessage GoodRecords() {
  WorkerMessage message;
  Records& records = *message.mutable_records();
  records.mutable_key()->set_job("a-1");
  records.mutable_key()->set_generation(1);
  records.add_records()->set_sequence(1);
  records.mutable_records(0)->mutable_running();
  return message;
}

TEST(WorkerMessage, HelloComesFirstAndOnce) {
  WorkerMessage hello = GoodHello(), records = GoodRecords(), empty;
  EXPECT_TRUE(CheckWorkerMessage(true, hello).ok());
  EXPECT_TRUE(CheckWorkerMessage(false, records).ok());
  EXPECT_EQ(CheckWorkerMessage(false, hello).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckWorkerMessage(true, records).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckWorkerMessage(false, empty).code(), absl::StatusCode::kInvalidArgument);
}

TEST(WorkerMessage, AnotherProtocolIsAFailedPrecondition) {
  WorkerMessage hello = GoodHello();
  hello.mutable_hello()->set_protocol(kProtocol + 1);
  EXPECT_EQ(CheckWorkerMessage(true, hello).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(WorkerMessage, ProtocolsAreRanges) {
  const struct {
    Protocols a, b;
    std::optional<unsigned> common;
  } cases[] = {
      {{7, 7}, {7, 7}, 7}, {{8, 7}, {7, 7}, 7},  {{9, 7}, {8, 6}, 8}, {{9, 8}, {7, 6}, std::nullopt},
      {{7, 0}, {8, 7}, 7}, {{7, 0}, {8, 0}, {}}, {{8, 0}, {9, 8}, 8}, {{0, 0}, {9, 8}, std::nullopt},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(CommonProtocol(c.a, c.b), c.common) << c.a.newest << " " << c.b.newest;
    EXPECT_EQ(CommonProtocol(c.b, c.a), c.common) << c.a.newest << " " << c.b.newest;
  }
}

TEST(WorkerMessage, BoundsTermsAndStuckRanks) {
  WorkerMessage hello = GoodHello();
  hello.mutable_hello()->set_term(uint64_t{1} << 63);
  EXPECT_FALSE(CheckWorkerMessage(true, hello).ok());
  WorkerMessage message;
  StuckRank& rank = *message.mutable_observed()->mutable_stuck()->add_ranks();
  EXPECT_FALSE(CheckWorkerMessage(false, message).ok()) << "it has no key";
  rank.mutable_key()->set_job("a-1");
  rank.mutable_key()->set_generation(1);
  rank.set_processes(std::string(10'000, 'p'));
  EXPECT_TRUE(CheckWorkerMessage(false, message).ok());
  EXPECT_LE(rank.processes().size(), 256u);
  for (uint32_t slot = 0; slot < 2000; ++slot) rank.add_slots(slot);
  EXPECT_FALSE(CheckWorkerMessage(false, message).ok());
}

TEST(WorkerMessage, TheUseOfANodeIsSane) {
  WorkerMessage message;
  message.mutable_heartbeat()->set_number(1);
  EXPECT_TRUE(CheckWorkerMessage(false, message).ok()) << "none";
  NodeUse& use = *message.mutable_heartbeat()->mutable_use();
  use.set_busy_cores(1.5);
  use.add_devices()->set_busy(1);
  EXPECT_TRUE(CheckWorkerMessage(false, message).ok());
  use.mutable_devices(0)->set_busy(1.01);
  EXPECT_FALSE(CheckWorkerMessage(false, message).ok());
  use.mutable_devices(0)->set_busy(std::nan(""));
  EXPECT_FALSE(CheckWorkerMessage(false, message).ok());
  use.mutable_devices(0)->set_busy(0);
  use.set_busy_cores(-1);
  EXPECT_FALSE(CheckWorkerMessage(false, message).ok());
  use.set_busy_cores(0);
  for (int i = 0; i < 64; ++i) use.add_devices();
  EXPECT_FALSE(CheckWorkerMessage(false, message).ok()) << "65 GPUs";
}

TEST(WorkerMessage, RefusesMissingIdsAndFallingSequences) {
  WorkerMessage hello = GoodHello();
  hello.mutable_hello()->mutable_node()->clear_incarnation();
  EXPECT_FALSE(CheckWorkerMessage(true, hello).ok());
  WorkerMessage records = GoodRecords();
  records.mutable_records()->mutable_key()->clear_generation();
  EXPECT_FALSE(CheckWorkerMessage(false, records).ok());
  records = GoodRecords();
  *records.mutable_records()->add_records() = records.records().records(0);
  EXPECT_FALSE(CheckWorkerMessage(false, records).ok());
  records = GoodRecords();
  records.mutable_records()->mutable_records(0)->clear_body();
  EXPECT_FALSE(CheckWorkerMessage(false, records).ok());
  WorkerMessage logs;
  logs.mutable_logs()->mutable_key()->set_job("a-1");
  logs.mutable_logs()->mutable_key()->set_generation(1);
  logs.mutable_logs()->mutable_chunk()->set_text(std::string(300'000, 'x'));
  EXPECT_FALSE(CheckWorkerMessage(false, logs).ok());
}

// A program can write the records of its rank itself: 64 names of a MiB each would be in every list of jobs.
TEST(WorkerMessage, DropsMetricsThatAreTooManyOrHaveLongNames) {
  WorkerMessage message = GoodRecords();
  MetricPoint& point = *message.mutable_records()->mutable_records(0)->mutable_metrics();
  for (auto* metrics : {point.mutable_reported(), point.mutable_validation()}) {
    metrics->Add()->set_name(std::string(65, 'x'));
    for (int i = 0; i < 70; ++i) metrics->Add()->set_name(std::string(60, 'y') + std::to_string(1000 + i));
  }
  point.mutable_collective()->set_type(std::string(1 << 20, 't'));
  point.mutable_collective()->set_redop("sum");
  point.GetReflection()->MutableUnknownFields(&point)->AddLengthDelimited(9999, std::string(1 << 20, 'u'));
  ASSERT_TRUE(CheckWorkerMessage(false, message).ok()) << "refusing it would end the stream of the node";
  for (const auto& metrics : {point.reported(), point.validation()}) {
    ASSERT_EQ(metrics.size(), 64);
    EXPECT_EQ(metrics[0].name(), std::string(60, 'y') + "1000");
  }
  EXPECT_EQ(point.collective().type() + point.collective().redop(), "sum");
  EXPECT_LT(message.ByteSizeLong(), 20'000u);
}

TEST(WorkerMessage, TruncatesTextsThatWouldOutgrowARow) {
  WorkerMessage message;
  ObservedRank& rank = *message.mutable_observed()->add_ranks();
  rank.mutable_key()->set_job("a-1");
  rank.mutable_key()->set_generation(1);
  for (int i = 0; i < 30; ++i) rank.mutable_exit()->add_last_lines(std::to_string(i));
  rank.mutable_exit()->set_last_lines(29, std::string(1023, 'x') + "\xc3\xa9 and more");
  rank.mutable_exit()->set_message(std::string(1 << 20, 'm'));
  ASSERT_TRUE(CheckWorkerMessage(false, message).ok());
  EXPECT_EQ(rank.exit().last_lines_size(), 20);
  EXPECT_EQ(rank.exit().last_lines(0), "10");
  EXPECT_EQ(rank.exit().last_lines(19), std::string(1023, 'x'));  // no split character
  EXPECT_EQ(rank.exit().message().size(), 1024u);
  for (std::string& line : *rank.mutable_exit()->mutable_last_lines()) line = std::string(1000, 'y');
  ASSERT_TRUE(CheckWorkerMessage(false, message).ok());
  EXPECT_EQ(rank.exit().last_lines_size(), 4);
}

}  // namespace
}  // namespace muster::rpc
