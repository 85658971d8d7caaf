#include "models/config.h"

#include "absl/strings/str_cat.h"

namespace muster::models {
namespace {

using nlohmann::json;

bool Has(const json& config, const std::string& key) { return config.contains(key) && !config[key].is_null(); }

}  // namespace

absl::StatusOr<uint32_t> ReadNumber(const json& config, const std::string& key) {
  if (!Has(config, key) || !config[key].is_number_unsigned() || config[key].get<uint64_t>() > UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(key, " is missing, or no whole number"));
  }
  return config[key].get<uint32_t>();
}

absl::StatusOr<uint32_t> ReadNumber(const json& config, const std::string& key, uint32_t otherwise) {
  if (!Has(config, key)) return otherwise;
  return ReadNumber(config, key);
}

absl::StatusOr<double> ReadReal(const json& config, const std::string& key, double otherwise) {
  if (!Has(config, key)) return otherwise;
  if (!config[key].is_number()) return absl::InvalidArgumentError(absl::StrCat(key, " is not a number"));
  return config[key].get<double>();
}

absl::StatusOr<bool> ReadFlag(const json& config, const std::string& key, bool otherwise) {
  if (!Has(config, key)) return otherwise;
  if (!config[key].is_boolean()) return absl::InvalidArgumentError(absl::StrCat(key, " is neither true nor false"));
  return config[key].get<bool>();
}

absl::Status CheckOnly(const json& config, const std::string& key, const json& only) {
  if (!Has(config, key) || config[key] == only) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(key, " is ", config[key].dump(), ", this build computes ", only.dump(), " only"));
}

}  // namespace muster::models
