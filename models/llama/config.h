// Llama's numbers from and to the config.json of `transformers`: its classes Llama, Mistral, Ministral, Qwen2 and
// Qwen3. Errors as ModelFamily::FromConfig's (models/family.h).
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/spec.pb.h"

namespace muster::models {

inline constexpr uint32_t kMaxLlamaLayers = 4096;

bool IsLlamaConfig(const nlohmann::json& config);
absl::StatusOr<Llama> LlamaOfConfig(const nlohmann::json& config);
// `model` is resolved. The class is the one that has its parts.
nlohmann::ordered_json ConfigOfLlama(const Llama& model);
// The key for a field; empty: none, or a job's own choice.
std::string LlamaConfigKey(absl::string_view field);

}  // namespace muster::models
