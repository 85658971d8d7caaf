#include "coordinator/metrics/measures.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace muster::metrics {
namespace {

StateEvent Event(const std::string& job, const std::string& kind, int64_t seconds, JobState state) {
  StateEvent event;
  event.set_job(job);
  event.set_kind(kind);
  event.mutable_time()->set_seconds(seconds);
  event.set_job_state(state);
  return event;
}

Job MakeJob(const std::string& id, JobState state) {
  Job job;
  job.set_id(id);
  job.set_state(state);
  job.mutable_spec()->mutable_train()->set_steps(100);
  return job;
}

TEST(Measures, QueueWaitIsFromQueuedToStarting) {
  Measures measures;
  const auto see = [&](const StateEvent& event, EndReason reason = END_REASON_UNSPECIFIED) {
    measures.ObserveEvent(event, reason);
  };
  see(Event("a", "job.queued", 100, JOB_STATE_QUEUED));
  see(Event("a", "generation.starting", 103, JOB_STATE_STARTING));
  see(Event("a", "generation.ended", 200, JOB_STATE_QUEUED), END_REASON_FAILED);
  see(Event("a", "job.queued", 200, JOB_STATE_QUEUED));
  see(Event("a", "generation.starting", 204, JOB_STATE_STARTING));
  // A job that was paused in the queue was not waiting for slots meanwhile.
  see(Event("b", "job.queued", 100, JOB_STATE_QUEUED));
  see(Event("b", "job.paused", 101, JOB_STATE_PAUSED));
  see(Event("b", "job.queued", 1000, JOB_STATE_QUEUED));
  see(Event("b", "generation.starting", 1002, JOB_STATE_STARTING));
  // A job that was queued before this process started has no wait time.
  see(Event("c", "generation.starting", 9, JOB_STATE_STARTING));
  const std::string page = CoordinatorPage({}, measures);
  EXPECT_TRUE(absl::StrContains(page, "muster_queue_wait_seconds_sum 9\n")) << page;
  EXPECT_TRUE(absl::StrContains(page, "muster_queue_wait_seconds_count 3\n"));
  EXPECT_TRUE(absl::StrContains(page, "muster_generations_started_total 4\n"));
  EXPECT_TRUE(absl::StrContains(page, "muster_generations_ended_total{reason=\"failed\"} 1\n"));
  EXPECT_TRUE(absl::StrContains(page, "muster_generations_ended_total{reason=\"lost\"} 0\n"));
}

TEST(CoordinatorPage, NodesSayHowBusyTheyAre) {
  Snapshot snapshot;
  Node& node = snapshot.nodes.emplace_back();
  node.set_id("a");
  node.mutable_use()->set_busy_cores(1.5);
  node.mutable_use()->set_memory_bytes(4096);
  DeviceUse& device = *node.mutable_use()->add_devices();
  device.set_slot(3);
  device.set_busy(0.25);
  snapshot.nodes.emplace_back().set_id("away");
  const Measures measures;
  const std::string page = CoordinatorPage(snapshot, measures);
  for (const char* line : {"muster_node_busy_cores{node=\"a\"} 1.5\n", "muster_node_memory_bytes{node=\"a\"} 4096\n",
                           "muster_gpu_busy_ratio{node=\"a\",slot=\"3\"} 0.25\n"}) {
    EXPECT_TRUE(absl::StrContains(page, line)) << line << page;
  }
  EXPECT_FALSE(absl::StrContains(page, "node=\"away\""));
}

// The states that alerts of deploy/prometheus/alerts.yml ask for by name.
TEST(CoordinatorPage, StuckSlotsAndNodesThatAreGoneAreCounted) {
  Snapshot snapshot;
  Node& node = snapshot.nodes.emplace_back();
  node.set_state(NODE_STATE_LIVE);
  node.add_slots()->set_state(SLOT_STATE_STUCK);
  node.add_slots()->set_state(SLOT_STATE_FREE);
  snapshot.nodes.emplace_back().set_state(NODE_STATE_AWAY);
  for (int i = 0; i < 2; ++i) snapshot.nodes.emplace_back().set_state(NODE_STATE_LOST);
  const std::string page = CoordinatorPage(snapshot, Measures());
  for (const char* line :
       {"muster_slots{state=\"stuck\"} 1\n", "muster_slots{state=\"free\"} 1\n", "muster_slots{state=\"used\"} 0\n",
        "muster_nodes{state=\"live\"} 1\n", "muster_nodes{state=\"away\"} 1\n", "muster_nodes{state=\"lost\"} 2\n"}) {
    EXPECT_TRUE(absl::StrContains(page, line)) << line << page;
  }
}

TEST(CoordinatorPage, SaysWhichBuildItIs) {
  EXPECT_TRUE(absl::StrContains(CoordinatorPage({}, Measures()), "muster_build_info{version=\"0.1.0\"} 1\n"));
}

TEST(CoordinatorPage, LinksHaveTheirFigures) {
  Snapshot snapshot;
  Node& node = snapshot.nodes.emplace_back();
  node.set_id("a");
  NodeLink& link = *node.add_links();
  link.set_node("b");
  link.set_bytes_per_second(12.5e6);
  link.set_latency_seconds(0.001);
  Measures measures;
  std::string page = CoordinatorPage(snapshot, measures);
  EXPECT_TRUE(absl::StrContains(page, "muster_link_bytes_per_second{from=\"a\",to=\"b\"} 12500000\n")) << page;
  EXPECT_TRUE(absl::StrContains(page, "muster_link_latency_seconds{from=\"a\",to=\"b\"} 0.001\n"));
  EXPECT_FALSE(absl::StrContains(page, "muster_link_usual_bytes_per_second{")) << "measured for the first time";
  EXPECT_FALSE(absl::StrContains(page, "muster_link_socket_bytes_per_second{")) << "by an older worker";
  snapshot.nodes[0].mutable_links(0)->mutable_core()->set_socket_bytes_per_second(5e8);
  snapshot.nodes[0].mutable_links(0)->mutable_core()->set_int8_seconds(0.25);
  page = CoordinatorPage(snapshot, measures);
  EXPECT_TRUE(absl::StrContains(page, "muster_link_socket_bytes_per_second{from=\"a\",to=\"b\"} 500000000\n")) << page;
  EXPECT_TRUE(absl::StrContains(page, "muster_link_compression_seconds{from=\"a\",kind=\"int8\",to=\"b\"} 0.25\n"))
      << page;
  EXPECT_FALSE(absl::StrContains(page, "kind=\"top_k\"")) << "not measured";
  snapshot.nodes[0].mutable_links(0)->set_usual_bytes_per_second(25e6);
  page = CoordinatorPage(snapshot, measures);
  EXPECT_TRUE(absl::StrContains(page, "muster_link_usual_bytes_per_second{from=\"a\",to=\"b\"} 25000000\n"));
}

TEST(CoordinatorPage, SeriesOfAJobAreThereWhileItRuns) {
  Snapshot snapshot;
  snapshot.jobs = {MakeJob("a-1", JOB_STATE_RUNNING), MakeJob("c-1", JOB_STATE_QUEUED)};
  snapshot.job_states = {{JOB_STATE_RUNNING, 1}, {JOB_STATE_COMPLETED, 4}, {JOB_STATE_QUEUED, 1}};
  snapshot.connections = {{"known", 12}, {"unknown", 3}};
  snapshot.refused_connections = 7;
  snapshot.tracking = {{.name = "mlflow", .up = false, .values = 120, .refused = 3, .failures = 5}};
  snapshot.last["a-1"].set_step(7);
  snapshot.last["a-1"].set_loss(2.5);
  snapshot.last["a-1"].set_skipped_steps(3);
  snapshot.last["a-1"].set_loss_scale(4096);
  NamedMetric& top1 = *snapshot.last["a-1"].add_validation();
  top1.set_name("top1"), top1.set_value(0.75);
  Node& node = snapshot.nodes.emplace_back();
  node.set_state(NODE_STATE_LIVE);
  node.set_draining(true);
  node.set_drain_reason("3 faults in 10m: ...");
  node.set_recent_faults(3);
  node.mutable_preflight()->add_checks()->set_problem("3 MiB free");
  node.add_slots()->set_state(SLOT_STATE_USED);
  node.add_slots()->set_state(SLOT_STATE_FREE);
  snapshot.refuses_jobs = true;
  Measures measures;
  measures.CountCall("/muster.v1.Jobs/Get", "NOT_FOUND");
  measures.CountCall("/muster.v1.Jobs/Get", "NOT_FOUND");
  measures.ObserveCommit(absl::Milliseconds(3));
  measures.CountDropped(5);
  const std::string page = CoordinatorPage(snapshot, measures);
  for (const char* line : {"muster_jobs{state=\"completed\"} 4\n",
                           "muster_connections{kind=\"unknown\"} 3\n",
                           "muster_connections_refused_total 7\n",
                           "muster_new_jobs_refused 1\n",
                           "muster_tracking_up{server=\"mlflow\"} 0\n",
                           "muster_tracking_values_total{server=\"mlflow\"} 120\n",
                           "muster_tracking_refused_total{server=\"mlflow\"} 3\n",
                           "muster_tracking_failures_total{server=\"mlflow\"} 5\n",
                           "muster_history_dropped_total 5\n",
                           "muster_jobs{state=\"running\"} 1\n",
                           "muster_jobs{state=\"queued\"} 1\n",
                           "muster_jobs{state=\"failed\"} 0\n",
                           "muster_job_step{job_id=\"a-1\"} 7\n",
                           "muster_job_loss{job_id=\"a-1\"} 2.5\n",
                           "muster_job_skipped_steps{job_id=\"a-1\"} 3\n",
                           "muster_job_loss_scale{job_id=\"a-1\"} 4096\n",
                           "muster_job_target_steps{job_id=\"a-1\"} 100\n",
                           "muster_nodes{state=\"live\"} 1\n",
                           "muster_nodes_draining 1\n",
                           "muster_nodes_faulty 1\n",
                           "muster_node_faults 3\n",
                           "muster_nodes_not_ready 1\n",
                           "muster_slots{state=\"used\"} 1\n",
                           "muster_slots{state=\"free\"} 1\n",
                           "muster_rpcs_total{method=\"/muster.v1.Jobs/Get\",code=\"NOT_FOUND\"} 2\n",
                           "muster_store_commit_seconds_bucket{le=\"0.002\"} 0\n",
                           "muster_store_commit_seconds_bucket{le=\"0.005\"} 1\n"}) {
    EXPECT_TRUE(absl::StrContains(page, line)) << line << page;
  }
  EXPECT_FALSE(absl::StrContains(page, "c-1"));
  EXPECT_FALSE(absl::StrContains(page, "muster_job_tokens_per_second{"));
  EXPECT_TRUE(absl::StrContains(page, "muster_job_validation{job_id=\"a-1\",metric=\"top1\"} 0.75\n")) << page;
}

}  // namespace
}  // namespace muster::metrics
