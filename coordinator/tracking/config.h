// The file of `muster-coordinator --tracking`: which jobs are copied to which tracking server.
//
//   tracking:
//   - name: mlflow
//     mlflow: {url: "https://mlflow.example.com", token_file: /etc/muster/mlflow.token}
//     experiment: "muster/{project}"
//     projects: [nlp, vision]
//
// Thread-safe after construction.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/outbound/http.h"
#include "proto/job.pb.h"

namespace muster::tracking {

struct Destination {
  std::string name;
  outbound::Url url;                            // below which the REST interface is: its target has no "/" at the end
  std::string token_file;                       // sent as a bearer token; empty: none
  std::string password_file;                    // "user:password", sent as HTTP Basic; empty: none
  std::string ca_file;                          // PEM of who signed the server's certificate; empty: the system's
  std::string experiment = "muster/{project}";  // with {project}, {user} and {name} of the job
  std::vector<std::string> users, projects;     // not empty: only jobs of these
  absl::Duration timeout = absl::Seconds(30);   // of one request
  bool history = true;  // at first what the coordinator keeps of earlier jobs; false: what happens from then on
};

bool Wants(const Destination& destination, const Job& job);

// The experiment of a job. A "/" in a user's name is a "_": it would be another level.
std::string ExperimentOf(const Destination& destination, const Job& job);

// InvalidArgument: the message names the line, or the entry and its key.
absl::StatusOr<std::vector<Destination>> ParseConfig(const std::string& text);
// Checks the files that it names, too. NotFound; PermissionDenied: a token that others may read, or this file may be
// written by others; InvalidArgument: also a token that is none.
absl::StatusOr<std::vector<Destination>> LoadConfig(const std::string& path);

// The token or "user:password" of such a file, without the end of its line. Errors as LoadConfig.
absl::StatusOr<std::string> ReadSecret(const std::string& path);

}  // namespace muster::tracking
