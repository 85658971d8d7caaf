// What a tracking server gets of a job, within MLflow's limits (mlflow/utils/validation.py): names of at most 250
// characters that are no paths with "." or "..", values of parameters of 6000, of tags of 5000.
//
// Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace muster::tracking {

struct Metric {
  std::string key;
  double value = 0;
  int64_t timestamp_ms = 0;  // since 1970, UTC
  int64_t step = 0;
  bool operator==(const Metric&) const = default;
};

// The names are those of `muster metrics -o json`: "loss", "step_seconds"; of validations "validation/top1"; what a
// script reports keeps its own.
std::vector<Metric> MetricsOf(const MetricPoint& point);

using Texts = std::map<std::string, std::string>;

// Every field of the resolved spec as `muster compare` names it, "optimizer.lr": "0.001"; lists as JSON. Of `env` only
// the names of the variables, since values may be secrets, and no labels, which change.
Texts ParamsOf(const JobSpec& spec);

// Those that a run is found by.
inline constexpr char kJobTag[] = "muster.job", kStoreTag[] = "muster.store";

// "muster.state": "running", "muster.label.team": "nlp", "muster.checkpoint": the newest one's folder, ...
Texts TagsOf(const Job& job, const std::string& store_id);
// Whether this is a name of TagsOf, which disappears with its cause: a label, the note, a failure.
bool IsOwnTag(const std::string& key);

// "SCHEDULED", "RUNNING", "FINISHED", "FAILED" or "KILLED".
std::string StatusOf(const Job& job);

// `name`, if it may be a key there; else something like it, with a part of its SHA-256, so that no two become one.
std::string KeyOf(const std::string& name);

}  // namespace muster::tracking
