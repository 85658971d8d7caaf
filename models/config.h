// Reading config.json's numbers. Messages of errors begin with the key.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::models {

// InvalidArgument: missing, or no whole number of 32 bits.
absl::StatusOr<uint32_t> ReadNumber(const nlohmann::json& config, const std::string& key);
// A missing or null one is `otherwise`. InvalidArgument: not a number; not true or false.
absl::StatusOr<uint32_t> ReadNumber(const nlohmann::json& config, const std::string& key, uint32_t otherwise);
absl::StatusOr<double> ReadReal(const nlohmann::json& config, const std::string& key, double otherwise);
absl::StatusOr<bool> ReadFlag(const nlohmann::json& config, const std::string& key, bool otherwise);
// FailedPrecondition: `key` is there, not null, and not `only`, all that this build computes.
absl::Status CheckOnly(const nlohmann::json& config, const std::string& key, const nlohmann::json& only);

}  // namespace muster::models
