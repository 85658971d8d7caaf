// What an image file holds: `muster data inspect`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/images/image_batch.h"
#include "data/images/image_file.h"

namespace muster::data {

struct ImageInspection {
  struct Shard {
    std::string path;
    std::string format;  // "cifar10", "cifar100", "muster"
    uint64_t images = 0;
  };
  std::vector<Shard> shards;
  uint64_t images = 0;
  uint64_t bytes = 0;  // of the files, without sidecars
  uint32_t channels = 0, height = 0, width = 0;
  uint64_t classes = 0;
  std::vector<std::string> class_names;  // by label; empty: unknown
  std::vector<uint64_t> counts;          // images of each class
  Normalization normalization;           // measured
};

// `pattern` and errors as ImageFile::Open and CheckLabels. Reads everything.
absl::StatusOr<ImageInspection> InspectImages(const std::string& pattern);

}  // namespace muster::data
