// Reservations over gRPC: what the answers say, and what survives a restart of the coordinator.
#include <gtest/gtest.h>

#include <string>

#include "common/proto_time.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "testing/fake_worker.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

class ReservationsTest : public ServerFixture {
 protected:
  grpc::Status Set(const std::string& name, const std::string& node, absl::Duration begins_in, absl::Duration lasts,
                   Reservation* answer) {
    SetReservationRequest request;
    Reservation& reservation = *request.mutable_reservation();
    reservation.set_name(name);
    reservation.add_nodes(node);
    *reservation.mutable_start() = ToProto(absl::Now() + begins_in);
    *reservation.mutable_end() = ToProto(absl::Now() + begins_in + lasts);
    SetReservationReply reply;
    const grpc::Status status = client_->admin().SetReservation(client_->Context().get(), request, &reply);
    *answer = reply.reservation();
    return status;
  }
  ListReservationsReply List() {
    ListReservationsReply reply;
    EXPECT_TRUE(client_->admin().ListReservations(client_->Context().get(), {}, &reply).ok());
    return reply;
  }
};

TEST_F(ReservationsTest, TheAnswerNamesTheJobsThatOverlap) {
  Start();
  FakeWorker worker(address(), {.node = "n1"});
  ASSERT_TRUE(worker.WaitForWelcome());
  const std::string job = client_->MustSubmit("endless");
  RankKey rank;
  ASSERT_TRUE(worker.WaitForRun(&rank));
  Reservation maint;
  EXPECT_EQ(Set("maint", "n2", absl::Hours(1), absl::Hours(1), &maint).error_code(), grpc::StatusCode::NOT_FOUND);
  const grpc::Status set = Set("maint", "n1", absl::Hours(1), absl::Hours(1), &maint);
  ASSERT_TRUE(set.ok()) << set.error_message();
  ASSERT_EQ(maint.overlapping_jobs_size(), 1);
  EXPECT_EQ(maint.overlapping_jobs(0), job);
  EXPECT_EQ(maint.state(), RESERVATION_STATE_INACTIVE);
  EXPECT_EQ(List().reservations(0).SerializeAsString(), maint.SerializeAsString());
  ListNodesReply nodes;
  ASSERT_TRUE(client_->nodes().List(client_->Context().get(), {}, &nodes).ok());
  EXPECT_EQ(nodes.nodes(0).reservation().name(), "maint");
  EXPECT_EQ(Set("other", "n1", absl::Minutes(90), absl::Hours(1), &maint).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

// A timer of the coordinator, no call, starts it.
TEST_F(ReservationsTest, AJobStartsWhenTheWindowIsOver) {
  Start();
  FakeWorker worker(address(), {.node = "n1"});
  ASSERT_TRUE(worker.WaitForWelcome());
  Reservation maint;
  ASSERT_TRUE(Set("maint", "n1", absl::ZeroDuration(), absl::Seconds(6), &maint).ok());
  EXPECT_EQ(maint.state(), RESERVATION_STATE_ACTIVE);
  const absl::Time end = FromProto(maint.end());
  const std::string job = client_->MustSubmit("endless");
  RankKey rank;
  ASSERT_TRUE(worker.WaitForRun(&rank));
  EXPECT_GE(absl::Now(), end);
  EXPECT_EQ(rank.job(), job);
}

TEST_F(ReservationsTest, TheySurviveARestartAndAreDeleted) {
  Start();
  {
    FakeWorker worker(address(), {.node = "n1"});
    ASSERT_TRUE(worker.WaitForWelcome());
    Reservation maint;
    ASSERT_TRUE(Set("maint", "n1", absl::Hours(1), absl::Hours(1), &maint).ok());
  }
  server_.reset();
  Start();
  ASSERT_EQ(List().reservations_size(), 1);
  EXPECT_EQ(List().reservations(0).nodes(0), "n1");
  DeleteReservationRequest request;
  request.set_name("maint");
  DeleteReservationReply reply;
  EXPECT_TRUE(client_->admin().DeleteReservation(client_->Context().get(), request, &reply).ok());
  EXPECT_EQ(List().reservations_size(), 0);
}

}  // namespace
}  // namespace muster::server
