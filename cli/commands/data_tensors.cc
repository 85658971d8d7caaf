#include "cli/commands/data_tensors.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/safetensors.h"
#include "cli/output/format.h"
#include "data/file_pattern.h"

namespace muster::cli {

bool HoldsTensors(const std::string& pattern) {
  const absl::StatusOr<std::vector<std::string>> paths = data::FilesOf(pattern);
  return paths.ok() && std::all_of(paths->begin(), paths->end(),
                                   [](const std::string& path) { return absl::EndsWith(path, ".safetensors"); });
}

absl::Status AppendTensors(const std::string& pattern, nlohmann::ordered_json& trees, std::string& text) {
  const absl::StatusOr<std::vector<std::string>> paths = data::FilesOf(pattern);
  if (!paths.ok()) return paths.status();
  for (const std::string& path : *paths) {
    const absl::StatusOr<checkpoint::SafetensorsFile> file = checkpoint::SafetensorsFile::Open(path);
    if (!file.ok()) return file.status();
    nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
    absl::StrAppend(&text, OneLine(path), ": safetensors\n");
    for (const checkpoint::TensorEntry& tensor : file->header().tensors) {
      tensors.push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
      absl::StrAppend(&text, "  ", OneLine(tensor.name), ": ", tensor.dtype, " [", absl::StrJoin(tensor.shape, ", "),
                      "]\n");
    }
    trees.push_back({{"file", path}, {"bytes", file->file().bytes()}, {"tensors", tensors}});
  }
  return absl::OkStatus();
}

}  // namespace muster::cli
