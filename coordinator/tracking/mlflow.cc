#include "coordinator/tracking/mlflow.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/utf8.h"

namespace muster::tracking {
namespace {

using nlohmann::json;

constexpr size_t kMostMetrics = 1000, kMostTexts = 100, kMostBatchBytes = 800'000;  // MLflow: 1000, 100, 1,000,000
constexpr size_t kMostReplyBytes = 4 << 20;
constexpr size_t kMostMessageBytes = 300;
constexpr int kMostRunsOfJob = 20;

std::string Escaped(const std::string& text) {
  std::string out;
  for (const unsigned char c : text) {
    if (absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '~') {
      out += static_cast<char>(c);
    } else {
      absl::StrAppendFormat(&out, "%%%02X", c);
    }
  }
  return out;
}

// JSON has no NaN and no infinities; protobuf's JSON, which MLflow reads, has them as text.
json NumberOf(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

std::string TextIn(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// An object, empty where there is none.
json ObjectIn(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : json::object();
}

Texts TextsIn(const json& object, const char* key) {
  Texts texts;
  const auto found = object.find(key);
  if (found == object.end() || !found->is_array()) return texts;
  for (const json& entry : *found) {
    if (entry.is_object()) texts[TextIn(entry, "key")] = TextIn(entry, "value");
  }
  return texts;
}

Run RunOf(const json& run) {
  const json info = ObjectIn(run, "info"), data = ObjectIn(run, "data");
  Run read;
  read.id = TextIn(info, "run_id");
  read.status = TextIn(info, "status");
  read.deleted = TextIn(info, "lifecycle_stage") == "deleted";
  read.params = TextsIn(data, "params");
  read.tags = TextsIn(data, "tags");
  read.has_metrics = data.contains("metrics") && !data["metrics"].empty();
  return read;
}

json ListOf(const Texts& texts) {
  json list = json::array();
  for (const auto& [key, value] : texts) list.push_back({{"key", key}, {"value", value}});
  return list;
}

absl::Status ErrorOf(int status, const json& body) {
  const std::string code = TextIn(body, "error_code");
  const std::string message =
      absl::StrCat("the server answered with status ", status, code.empty() ? "" : " ", code,
                   TextIn(body, "message").empty() ? "" : ": ", CleanText(TextIn(body, "message"), kMostMessageBytes));
  if (code == "RESOURCE_ALREADY_EXISTS") return absl::AlreadyExistsError(message);
  if (code == "RESOURCE_DOES_NOT_EXIST") return absl::NotFoundError(message);
  if (status == 401) return absl::UnauthenticatedError(message);
  if (status == 403) return absl::PermissionDeniedError(message);
  if (status == 413) return absl::InvalidArgumentError(message);
  // Without MLflow's code, something before MLflow answered.
  if ((status == 400 || status == 422) && !code.empty()) return absl::InvalidArgumentError(message);
  return absl::UnavailableError(message);
}

absl::Status NoAnswerOfMlflow() {
  return absl::UnavailableError("the answer is not MLflow's: is the URL that of an MLflow server?");
}

}  // namespace

absl::StatusOr<json> Mlflow::Call(const std::string& method, const std::string& path, const json& body) {
  outbound::HttpRequest request{.url = destination_.url,
                                .ca_file = destination_.ca_file,
                                .method = method,
                                .timeout = destination_.timeout,
                                .most_reply_bytes = kMostReplyBytes};
  request.url.target += "/api/2.0/mlflow/" + path;
  if (method != "GET") request.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
  const bool basic = !destination_.password_file.empty();
  if (basic || !destination_.token_file.empty()) {
    // Read each time, so that a new one needs no restart.
    const absl::StatusOr<std::string> secret = ReadSecret(basic ? destination_.password_file : destination_.token_file);
    if (!secret.ok()) return absl::UnavailableError(secret.status().message());
    request.fields.emplace_back("authorization", basic ? "Basic " + absl::Base64Escape(*secret) : "Bearer " + *secret);
  }
  const absl::StatusOr<outbound::HttpReply> reply = outbound::Send(request, stop_);
  if (!reply.ok()) return reply.status();
  json answer = json::parse(reply->body, nullptr, /*allow_exceptions=*/false);
  if (reply->status != 200) return ErrorOf(reply->status, answer.is_object() ? answer : json::object());
  if (!answer.is_object()) return NoAnswerOfMlflow();
  return answer;
}

absl::StatusOr<std::string> Mlflow::ExperimentId(const std::string& name) {
  const std::string by_name = "experiments/get-by-name?experiment_name=" + Escaped(name);
  absl::StatusOr<json> got = Call("GET", by_name, {});
  if (absl::IsNotFound(got.status())) {
    const absl::StatusOr<json> made = Call("POST", "experiments/create", {{"name", name}});
    if (made.ok() && !TextIn(*made, "experiment_id").empty()) return TextIn(*made, "experiment_id");
    if (made.ok()) return NoAnswerOfMlflow();
    if (!absl::IsAlreadyExists(made.status())) return made.status();
    got = Call("GET", by_name, {});
  }
  if (!got.ok()) return got.status();
  const json experiment = ObjectIn(*got, "experiment");
  if (TextIn(experiment, "lifecycle_stage") == "deleted") {
    return absl::InvalidArgumentError(
        absl::StrCat("the experiment ", name, " was deleted in MLflow: restore it, or name another one"));
  }
  if (TextIn(experiment, "experiment_id").empty()) return NoAnswerOfMlflow();
  return TextIn(experiment, "experiment_id");
}

absl::StatusOr<std::vector<Run>> Mlflow::FindRuns(const std::string& experiment, const std::string& job,
                                                  const std::string& store) {
  // Neither can have a quote.
  const std::string filter =
      absl::StrCat("tags.`", kJobTag, "` = '", job, "' and tags.`", kStoreTag, "` = '", store, "'");
  const absl::StatusOr<json> found = Call("POST", "runs/search",
                                          {{"experiment_ids", json::array({experiment})},
                                           {"filter", filter},
                                           {"run_view_type", "ALL"},
                                           {"max_results", kMostRunsOfJob}});
  if (!found.ok()) return found.status();
  std::vector<Run> runs;
  if (const auto list = found->find("runs"); list != found->end() && list->is_array()) {
    for (const json& run : *list) {
      if (run.is_object()) runs.push_back(RunOf(run));
    }
  }
  return runs;
}

absl::StatusOr<Run> Mlflow::CreateRun(const std::string& experiment, const std::string& name, int64_t start_ms,
                                      const Texts& tags) {
  const absl::StatusOr<json> made =
      Call("POST", "runs/create",
           {{"experiment_id", experiment}, {"run_name", name}, {"start_time", start_ms}, {"tags", ListOf(tags)}});
  if (!made.ok()) return made.status();
  Run run = RunOf(ObjectIn(*made, "run"));
  if (run.id.empty()) return NoAnswerOfMlflow();
  return run;
}

absl::Status Mlflow::UpdateRun(const std::string& run, const std::string& status, int64_t end_ms) {
  json body = {{"run_id", run}, {"status", status}};
  if (end_ms > 0) body["end_time"] = end_ms;
  return Call("POST", "runs/update", body).status();
}

absl::Status Mlflow::DeleteRun(const std::string& run) {
  return Call("POST", "runs/delete", {{"run_id", run}}).status();
}

absl::Status Mlflow::DeleteTag(const std::string& run, const std::string& key) {
  const absl::Status status = Call("POST", "runs/delete-tag", {{"run_id", run}, {"key", key}}).status();
  // Also of a run that is not there, which the next call says.
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status Mlflow::LogMetrics(const std::string& run, const std::vector<Metric>& metrics) {
  json batch = json::array();
  size_t bytes = 0;
  absl::Status refused;
  for (size_t i = 0; i < metrics.size(); ++i) {
    const Metric& metric = metrics[i];
    json entry = {{"key", metric.key},
                  {"value", NumberOf(metric.value)},
                  {"timestamp", metric.timestamp_ms},
                  {"step", metric.step}};
    bytes += entry.dump().size() + 1;
    batch.push_back(std::move(entry));
    if (batch.size() < kMostMetrics && bytes < kMostBatchBytes && i + 1 < metrics.size()) continue;
    const absl::StatusOr<json> logged = Call("POST", "runs/log-batch", {{"run_id", run}, {"metrics", batch}});
    if (!logged.ok() && !absl::IsInvalidArgument(logged.status())) return logged.status();
    refused.Update(logged.status());
    batch = json::array();
    bytes = 0;
  }
  return refused;
}

absl::Status Mlflow::LogTexts(const std::string& run, const char* kind, const Texts& texts) {
  Texts batch;
  size_t left = texts.size();
  for (const auto& [key, value] : texts) {
    batch[key] = value;
    --left;
    if (batch.size() < kMostTexts && left > 0) continue;
    const absl::StatusOr<json> logged = Call("POST", "runs/log-batch", {{"run_id", run}, {kind, ListOf(batch)}});
    if (!logged.ok()) return logged.status();
    batch.clear();
  }
  return absl::OkStatus();
}

absl::Status Mlflow::LogParams(const std::string& run, const Texts& params) { return LogTexts(run, "params", params); }

absl::Status Mlflow::SetTags(const std::string& run, const Texts& tags) { return LogTexts(run, "tags", tags); }

}  // namespace muster::tracking
