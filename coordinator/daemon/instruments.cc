#include "coordinator/daemon/instruments.h"

#include <chrono>
#include <future>
#include <utility>
namespace muster::server {
namespace {

// Prometheus itself times out after 10 s by default.
constexpr auto kPagePatience = std::chrono::seconds(2);

metrics::Snapshot TakeSnapshot(Turn& turn, bool of_jobs) {
  metrics::Snapshot snapshot;
  if (of_jobs) snapshot.jobs = turn.core().ListJobs(/*ended_too=*/false);
  snapshot.job_states = turn.core().CountJobs();
  snapshot.nodes = turn.core().ListNodes();
  for (Node& node : snapshot.nodes) {
    if (const NodeUse* use = turn.workers().uses().Newest(NodeId(node.id())); use != nullptr)
      *node.mutable_use() = *use;
  }
  for (const Job& job : snapshot.jobs) {
    if (job.state() != JOB_STATE_RUNNING && job.state() != JOB_STATE_STOPPING) continue;
    snapshot.last[job.id()] = turn.ledger().LastMetrics(JobId(job.id()));
  }
  snapshot.watch_streams = turn.watches().open();
  return snapshot;
}

class CallCounter final : public grpc::experimental::Interceptor {
 public:
  CallCounter(const char* method, metrics::Measures* measures) : method_(method), measures_(measures) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      grpc::Status status = methods->GetSendStatus();
      // All methods have a handler: gRPC says so, without a word, of a request that it could not parse.
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty()) {
        status = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                              "the request cannot be read: it is malformed, or larger than this method takes");
        methods->ModifySendStatus(status);
      }
      const auto code = static_cast<absl::StatusCode>(status.error_code());
      measures_->CountCall(method_, absl::StatusCodeToString(code));
    }
    methods->Proceed();
  }

 private:
  const std::string method_;
  metrics::Measures* const measures_;
};

class CallCounterFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CallCounterFactory(metrics::Measures* measures) : measures_(measures) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new CallCounter(info->method(), measures_);  // gRPC deletes it
  }

 private:
  metrics::Measures* const measures_;
};

}  // namespace

absl::Status Instruments::WriteTensorBoard(const std::string& folder, Loop* loop) {
  absl::StatusOr<std::unique_ptr<metrics::TensorBoardLog>> log = metrics::TensorBoardLog::Open(folder);
  if (!log.ok()) return log.status();
  writer_ = std::make_unique<TensorBoardWriter>(*std::move(log), loop);
  return absl::OkStatus();
}

absl::Status Instruments::Serve(const std::string& address, MetricsEndpoint::Reach reach, bool of_jobs, Loop* loop) {
  const auto page = [this, of_jobs, loop]() -> absl::StatusOr<std::string> {
    const auto taken = std::make_shared<std::promise<metrics::Snapshot>>();
    std::future<metrics::Snapshot> snapshot = taken->get_future();
    loop->Post([taken, of_jobs](Turn& turn) {
      turn.AfterCommit([taken, of_jobs, &turn] { taken->set_value(TakeSnapshot(turn, of_jobs)); });
    });
    if (snapshot.wait_for(kPagePatience) != std::future_status::ready) {
      return absl::UnavailableError("the event loop does not answer: the disk of the store may be slow");
    }
    metrics::Snapshot taken_now = snapshot.get();
    if (const FrontDoor* door = door_; door != nullptr) {
      const FrontDoor::Counts counts = door->counts();
      taken_now.connections = {{"known", counts.known}, {"unknown", counts.unknown}};
      taken_now.refused_connections = counts.refused;
    }
    taken_now.refuses_jobs = room_ != nullptr && !room_().ok();
    if (const tracking::Tracker* tracker = tracker_; tracker != nullptr) {
      for (const tracking::TrackerCount& count : tracker->Counts()) {
        taken_now.tracking.push_back({count.destination, count.up, count.values, count.refused, count.failures});
      }
    }
    return metrics::CoordinatorPage(taken_now, measures_);
  };
  absl::StatusOr<std::unique_ptr<MetricsEndpoint>> endpoint = MetricsEndpoint::Start(address, reach, page);
  if (!endpoint.ok()) return endpoint.status();
  endpoint_ = *std::move(endpoint);
  return absl::OkStatus();
}

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> Instruments::CallCounters() {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
  factories.push_back(std::make_unique<CallCounterFactory>(&measures_));
  return factories;
}

void Instruments::Stop() {
  endpoint_.reset();
  if (writer_ != nullptr) writer_->Stop();
}

void Instruments::Committed(absl::Duration took, const std::vector<StateEvent>& events, const core::Core& core) {
  measures_.ObserveCommit(took);
  for (const StateEvent& event : events) {
    EndReason reason = END_REASON_UNSPECIFIED;
    if (event.kind() == "generation.ended") {
      for (const Generation& generation : core.ListGenerations(JobId(event.job()))) {
        if (generation.number() == event.generation()) reason = generation.reason();
      }
    }
    measures_.ObserveEvent(event, reason);
  }
}

void Instruments::Forgot(const JobId& job) {
  if (writer_ != nullptr) writer_->Forget(job);
}

}  // namespace muster::server
