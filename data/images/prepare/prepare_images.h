// Makes image files (image_shard.h) of folders of PNG and JPEG files, or of MNIST's idx files: `muster data
// prepare-images`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::data {

struct PrepareImagesOptions {
  std::string folder;                  // of class folders (image_folder.h); or:
  std::string idx_images, idx_labels;  // (idx_file.h)
  std::string out;                     // image file to write; out.json is its sidecar
  uint32_t size = 32;                  // side of the square images, 1 to 4096
  std::string classes_of;              // take the numbers of the classes from this prepared file; empty: byte order
  std::string validation_out;          // second image file, for a random part of the images; empty: no split
  double validation_fraction = 0.1;    // of the images; only with validation_out
  uint64_t seed = 1;                   // of the split, and of the order in which a folder's images are written
  bool skip_broken = false;            // count images that cannot be decoded instead of stopping at the first
  bool force = false;                  // replace files that exist
  uint32_t threads = 1;                // that decode
  // Called periodically and at the end: images read, and all of them.
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct PreparedImages {
  uint64_t images = 0;             // in `out`
  uint64_t validation_images = 0;  // in `validation_out`
  uint64_t classes = 0;
  std::vector<std::string> class_names;  // empty: idx files have none
  uint64_t ignored = 0;                  // files that are no images by their names
  uint64_t broken = 0;                   // images left out; only with skip_broken
  std::string first_broken;              // why the first of them is
};

// The images become RGB, [3, size, size]: so with size 32 and at most 256 classes the file has CIFAR-10's layout, and a
// sidecar that says how many classes it has and their names.
//   folder  resized so that the short side is `size`, then center-cropped (resize.h), in an order shuffled by `seed`
//   idx     gray, centered on black (MNIST's 28 x 28 becomes 32 x 32), in the order of the file
// Files appear complete or not at all; after an error no file is left. Memory does not grow with the number of images.
// NotFound: no such input. AlreadyExists: an output exists and `force` is not set. InvalidArgument: options that make
// no sense, a broken image (unless skip_broken), classes that `classes_of` does not have, images larger than `size` in
// idx files, or a fraction that leaves one side empty. ResourceExhausted: disk full.
absl::StatusOr<PreparedImages> PrepareImages(const PrepareImagesOptions& options);

}  // namespace muster::data
