// A model family: all of it that needs no tensor library. The other half makes its units (worker/units/family.h).
//
// A new family is a message in Model (proto/spec.proto), a folder here, a folder in worker/units, and one line in each
// of the two lists of families. No other file names one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"

namespace muster::models {

// Which part of each unit a rank computes, where several compute it together (Mesh::tensor). By default all of it.
struct TensorShare {
  uint32_t ranks = 1;
  uint32_t rank = 0;
  bool sequence_parallel = false;
  // So many share each sequence (Mesh::context), and this one has as many tokens of it as each other.
  uint32_t context_ranks = 1;

  bool whole() const { return ranks == 1; }
};

class ModelFamily {
 public:
  virtual ~ModelFamily() = default;

  // Its field in Model, and Inventory.family: "gpt2".
  virtual std::string name() const = 0;

  // `model` with every number filled in: defaults, and a size's numbers under the given overrides. InvalidArgument: a
  // number is missing or does not fit; the message begins with the field, as Resolve's in inventory.h.
  virtual absl::StatusOr<Model> Resolve(const Model& model) const = 0;
  // `device`: DEVICE_CPU or DEVICE_CUDA. REQUIRES: CheckTensorRanks and CheckContextRanks(resolved, share) are OK.
  virtual Inventory MakeInventory(const Model& resolved, Device device, const TensorShare& share) const = 0;
  // InvalidArgument: so many ranks cannot compute each unit together; the message says which number of the model stands
  // in the way ("heads: 25 are not a multiple of 2"). Here: no more than one can.
  virtual absl::Status CheckTensorRanks(const Model& resolved, const TensorShare& share) const;
  // InvalidArgument: so many ranks cannot share each sequence, or not while the share's ranks divide the tokens of each
  // further; the message as CheckTensorRanks'. Here: no more than one can.
  virtual absl::Status CheckContextRanks(const Model& resolved, const TensorShare& share) const;
  // InvalidArgument: a model of this inventory, which the family made, does not compute in `compute`; the message names
  // the unit that stands in the way. Here: it computes in all dtypes.
  virtual absl::Status CheckCompute(const Inventory& inventory, Dtype compute) const;
  // For lists: "gpt2 small", "gpt2 2x32".
  virtual std::string Describe(const Model& model) const = 0;

  // Whether a config.json of `transformers` is of one of the models that this family computes, by its model_type.
  virtual bool Reads(const nlohmann::json& config) const = 0;
  // The numbers of such a config.json, without a size. InvalidArgument: a number is missing. FailedPrecondition: a
  // variant that computes something else. Messages begin with the key.
  virtual absl::StatusOr<Model> FromConfig(const nlohmann::json& config) const = 0;
  // What `transformers` needs to load its weights.
  virtual nlohmann::ordered_json ToConfig(const Model& resolved) const = 0;
  // How the weights of `theirs` are not those of `ours`, by config.json's keys and the spec's fields; empty: they are.
  // Here: the fields that have a ConfigKey and differ.
  virtual std::string Differences(const Model& theirs, const Model& ours) const;
  // config.json's key for a field of the family's message; empty: the field does not change what weights mean.
  virtual std::string ConfigKey(absl::string_view field) const = 0;
  // A tensor's name in files of weights, and back from any that `transformers` writes or wrote for such a model; empty:
  // it is not read, since it is no parameter or repeats one.
  virtual std::string StoredName(absl::string_view tensor) const = 0;
  virtual std::string TensorName(const Model& resolved, absl::string_view stored) const = 0;
};

// All that this build has, by name.
const std::vector<const ModelFamily*>& Families();
// Null: the model names none.
const ModelFamily* FamilyOf(const Model& model);
// Null: none reads it.
const ModelFamily* FamilyOfConfig(const nlohmann::json& config);
// "gpt2, llama".
std::string FamilyNames();

// FailedPrecondition: the weights of one are not those of the other; names the numbers that differ, by config.json's
// keys and the spec's fields: "n_layer 4, but model.layers is 2". Both are resolved.
absl::Status CheckSame(const Model& theirs, const Model& ours);
// All numbers given one by one, for a spec that may override some.
Model WithoutSize(const Model& resolved);
// `given` over `numbers` of the same family. A list, or a message in the family's, is replaced as a whole.
Model Overlaid(const Model& numbers, const Model& given);
// Whether the spec gives the family's numbers by a size's name.
bool HasSize(const Model& model);
// "gpt2 small"; "-": the model names no family.
std::string Describe(const Model& model);

}  // namespace muster::models
