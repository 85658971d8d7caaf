// A folder of class folders with PNG and JPEG images, as torchvision's ImageFolder expects:
//
//   pets/cat/1.png  pets/cat/2.jpg  pets/dog/more/3.jpeg    cat is class 0, dog class 1
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::data {

struct ImageFolder {
  struct Entry {
    std::string path;
    uint32_t label = 0;
  };
  std::vector<std::string> classes;  // the class folders' names in byte order
  std::vector<Entry> images;         // by class, then in byte order of paths
  uint64_t ignored = 0;              // files whose name does not end like an image's
};

// Lists `folder`, with its subfolders to any depth and through symbolic links. Names that begin with '.' are skipped. A
// file counts as an image by the end of its name; those of formats that DecodeImage does not read are listed, too, so
// that no image is silently left out.
// NotFound: no such folder. InvalidArgument: no class folders, one without images, or more than 65,536. Others as
// FileError.
absl::StatusOr<ImageFolder> ListImageFolder(const std::string& folder);

}  // namespace muster::data
