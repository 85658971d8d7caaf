// The calls of MLflow's REST interface (api/2.0/mlflow) that copying needs. One request at a time.
//
// Errors of every call: InvalidArgument: the server will never take this. NotFound: no such run or experiment.
// Unavailable, DeadlineExceeded, Unauthenticated, PermissionDenied, Internal: another attempt may succeed; whether the
// server did what was asked is not known. Cancelled: `stop` was notified. Messages have the server's own words, no
// token.
//
// Thread-compatible.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "coordinator/tracking/config.h"
#include "coordinator/tracking/run_data.h"

namespace muster::tracking {

struct Run {
  std::string id;
  std::string status;  // "RUNNING"
  bool deleted = false;
  Texts params, tags;
  bool has_metrics = false;
};

class Mlflow {
 public:
  // Both outlive it.
  Mlflow(const Destination* destination, const absl::Notification* stop) : destination_(*destination), stop_(*stop) {}

  // Makes it if it is not there. InvalidArgument: also an experiment that was deleted.
  absl::StatusOr<std::string> ExperimentId(const std::string& name);
  // All runs of a job, also deleted ones.
  absl::StatusOr<std::vector<Run>> FindRuns(const std::string& experiment, const std::string& job,
                                            const std::string& store);
  absl::StatusOr<Run> CreateRun(const std::string& experiment, const std::string& name, int64_t start_ms,
                                const Texts& tags);
  // `end_ms` 0: it has not ended.
  absl::Status UpdateRun(const std::string& run, const std::string& status, int64_t end_ms);
  absl::Status DeleteRun(const std::string& run);
  absl::Status DeleteTag(const std::string& run, const std::string& key);

  // In as few requests as MLflow allows. The same metrics may be sent again: a server with a database keeps one of each
  // (key, timestamp, step, value). InvalidArgument: one request was refused, the others were made.
  absl::Status LogMetrics(const std::string& run, const std::vector<Metric>& metrics);
  absl::Status LogParams(const std::string& run, const Texts& params);
  absl::Status SetTags(const std::string& run, const Texts& tags);

 private:
  absl::StatusOr<nlohmann::json> Call(const std::string& method, const std::string& path, const nlohmann::json& body);
  absl::Status LogTexts(const std::string& run, const char* kind, const Texts& texts);

  const Destination& destination_;
  const absl::Notification& stop_;
};

}  // namespace muster::tracking
