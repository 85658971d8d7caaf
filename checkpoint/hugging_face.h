// GPT-2 as Hugging Face keeps it in a folder: config.json, and model.safetensors or the several files that
// model.safetensors.index.json names. Never pickle.
//
//   HuggingFaceModel model = HuggingFaceModel::Open("gpt2").value();
//   model.Read(part);                                   // "h.0.attn.c_attn.weight", a range of it, as fp32
//
// Thread-safe: reads change nothing.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "proto/spec.pb.h"

namespace muster::checkpoint {

inline constexpr char kConfigFile[] = "config.json";

// The five numbers of `directory`/config.json; the context is n_positions, or n_ctx where that is missing. NotFound: no
// such file. InvalidArgument: not JSON, or a number is missing. FailedPrecondition: another model than GPT-2, or a
// variant whose mathematics is another (its activation, an untied head, ...); names the key.
absl::StatusOr<Gpt2> ReadHuggingFaceConfig(const std::string& directory);

// The same of whatever model.from may name: such a folder, a step's folder of Muster's, or a folder of these (its
// newest). Besides the above DataLoss: its manifest is damaged.
absl::StatusOr<Gpt2> ReadModel(const std::string& path);

class HuggingFaceModel {
 public:
  // Besides the above. NotFound: no weights; FailedPrecondition: only pickled ones. InvalidArgument: a file or the
  // index is damaged, a tensor is there twice, or one that GPT-2 does not have.
  static absl::StatusOr<HuggingFaceModel> Open(const std::string& directory);

  const Gpt2& model() const { return model_; }

  // Fills part.values, converted from F64, F32, F16 or BF16; reads those bytes only. FailedPrecondition: no such
  // tensor, another shape or dtype. DataLoss: the disk fails.
  absl::Status Read(const TensorRun& part) const;

 private:
  HuggingFaceModel() = default;
  absl::Status OpenFile(const std::string& path);

  std::string directory_;
  Gpt2 model_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, size_t>> tensors_;  // file and entry, by the name without "transformer."
};

struct ExportOptions {
  std::string out;                           // folder to make
  std::string tokenizer_from;                // folder whose tokenizer files are copied; empty: none
  uint64_t max_shard_bytes = 5'000'000'000;  // of one file of weights, unless a single tensor is larger
};

struct Exported {
  uint64_t bytes = 0;
  uint32_t files = 0;  // of weights
};

// Writes the parameters of a GPT-2's checkpoint, fp32, with what `transformers` needs to load them. The folder appears
// whole or not at all: it is made as `<out>.part-<host>-<pid>` beside it. What exports that were killed left there is
// removed by the next export to the same folder on that host. AlreadyExists: options.out is there. FailedPrecondition:
// the checkpoint is of another family. NotFound: options.tokenizer_from holds no tokenizer. ResourceExhausted: disk
// full.
absl::StatusOr<Exported> Export(const Checkpoint& checkpoint, const ExportOptions& options);

}  // namespace muster::checkpoint
