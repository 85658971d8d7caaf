// Reads and writes models in Hugging Face's folder format: config.json, and model.safetensors or the files that
// model.safetensors.index.json names. Never pickle. What a family's config.json and names mean: models/family.h.
//
//   HuggingFaceModel model = HuggingFaceModel::Open("gpt2").value();
//   model.Read(run);                                   // "h.0.attn.c_attn.weight", a range of it, as fp32
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
#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"

namespace muster::checkpoint {

inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kPreprocessorFile[] = "preprocessor_config.json";

// The numbers of `directory`/config.json. NotFound: no such file. InvalidArgument: not JSON, or a number is missing.
// FailedPrecondition: of no family of this build, or a variant that computes something else (another activation, ...);
// names the key.
absl::StatusOr<Model> ReadHuggingFaceConfig(const std::string& directory);

// How images are normalized before the model reads them: mean and standard_deviation of `directory`'s
// preprocessor_config.json; empty if there is no such file. InvalidArgument: not JSON, or not such numbers.
absl::StatusOr<Data> ReadPreprocessing(const std::string& directory);

// The same for any value of model.from: such a folder, a step folder, or a folder of step folders (the newest intact
// one). Only the family's numbers: `from` is empty. Errors also as OpenFirstWhole; reads headers, no tensors.
absl::StatusOr<Model> ReadModel(const std::string& path);

class HuggingFaceModel {
 public:
  // Besides the above. NotFound: no weights; FailedPrecondition: only pickled ones. InvalidArgument: a file or the
  // index is damaged, a tensor is there twice, or one that such a model does not have.
  static absl::StatusOr<HuggingFaceModel> Open(const std::string& directory);

  const Model& model() const { return inventory_.model(); }  // resolved

  // Fills run.values or run.bf16, converted from F64, F32, F16 or BF16; reads those bytes only. FailedPrecondition: no
  // such tensor, another shape or dtype. DataLoss: the disk fails.
  absl::Status Read(const TensorRun& run) const;

 private:
  HuggingFaceModel() = default;
  absl::Status OpenFile(const std::string& path);

  std::string directory_;
  Inventory inventory_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::pair<size_t, size_t>> tensors_;  // file and entry, by the inventory's name
};

struct ExportOptions {
  std::string out;  // folder to make
  // Folder whose tokenizer files are copied, or a tokenizer.json of any name, with what describes it beside it; empty:
  // none.
  std::string tokenizer_from;
  uint64_t max_shard_bytes = 5'000'000'000;  // of one file of weights, unless a single tensor is larger
  bool adapter = false;                      // only the adapters of a job with lora, as PEFT reads them
};

struct Exported {
  uint64_t bytes = 0;
  uint32_t files = 0;  // of weights
};

// Writes a checkpoint's parameters and buffers in fp32 with the files that `transformers` needs to load them; of a
// model of images, under torchvision's names, with the images' normalization in preprocessor_config.json. Adapters are
// merged into their weights, W + scale B A, or with options.adapter written alone: adapter_model.safetensors and
// adapter_config.json for PeftModel.from_pretrained. The folder
// appears complete or not at all: it is written as `<out>.part-<host>-<pid>` and renamed. The next export to the same
// folder on the same host removes what killed exports left. AlreadyExists: options.out exists, maybe since another
// export made it meanwhile. FailedPrecondition: the checkpoint is of a family that this build does not have, or
// options.adapter and it has none, or the job trained other tensors, too. NotFound: options.tokenizer_from holds no
// tokenizer. ResourceExhausted: disk full.
absl::StatusOr<Exported> Export(const Checkpoint& checkpoint, const ExportOptions& options);

}  // namespace muster::checkpoint
