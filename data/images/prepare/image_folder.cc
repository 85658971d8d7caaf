#include "data/images/prepare/image_folder.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file_error.h"
#include "data/images/image_sidecar.h"

namespace muster::data {
namespace {

namespace fs = std::filesystem;

// A symbolic link to a folder above would otherwise be followed until the system's limit.
constexpr int kDeepest = 16;

// torchvision's IMG_EXTENSIONS.
bool NamedLikeAnImage(const fs::path& path) {
  const std::string ending = absl::AsciiStrToLower(path.extension().string());
  const char* const kEndings[] = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](const char* known) { return ending == known; });
}

bool Hidden(const fs::path& path) { return absl::StartsWith(path.filename().string(), "."); }

// The images below `folder`, in byte order.
absl::StatusOr<std::vector<std::string>> ListClass(const fs::path& folder, uint64_t& ignored) {
  std::vector<std::string> paths;
  std::error_code error;
  auto it = fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored_error;
    if (Hidden(it->path())) {
      it.disable_recursion_pending();
    } else if (it->is_directory(ignored_error)) {
      if (it.depth() < kDeepest) continue;
      return absl::InvalidArgumentError(absl::StrCat(it->path().string(), ": more than ", kDeepest,
                                                     " folders deep: does a symbolic link lead back up?"));
    } else if (NamedLikeAnImage(it->path())) {
      paths.push_back(it->path().string());
    } else {
      ++ignored;
    }
  }
  if (error) return FileError(error.value(), absl::StrCat("listing ", folder.string()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

absl::StatusOr<ImageFolder> ListImageFolder(const std::string& folder) {
  ImageFolder result;
  std::error_code error;
  bool loose_images = false;
  auto it = fs::directory_iterator(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::error_code ignored_error;
    if (Hidden(it->path())) continue;
    if (it->is_directory(ignored_error)) {
      result.classes.push_back(it->path().filename().string());
    } else {
      loose_images |= NamedLikeAnImage(it->path());
      ++result.ignored;
    }
  }
  if (error == std::errc::no_such_file_or_directory)
    return absl::NotFoundError(absl::StrCat(folder, ": no such folder"));
  if (error) return FileError(error.value(), folder);
  if (result.classes.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, loose_images ? " has images, but no class folders" : " has no class folders",
        ": expected a folder for each class, with its images (", folder, "/cat/1.png), as torchvision's ImageFolder"));
  }
  if (result.classes.size() > kMostImageClasses) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " has ", result.classes.size(), " class folders; at most ", kMostImageClasses));
  }
  std::sort(result.classes.begin(), result.classes.end());
  for (size_t label = 0; label < result.classes.size(); ++label) {
    const fs::path of_class = fs::path(folder) / result.classes[label];
    absl::StatusOr<std::vector<std::string>> paths = ListClass(of_class, result.ignored);
    if (!paths.ok()) return paths.status();
    if (paths->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(of_class.string(), " has no images, so its class has none: remove the folder, or add some"));
    }
    for (std::string& path : *paths) result.images.push_back({std::move(path), static_cast<uint32_t>(label)});
  }
  return result;
}

}  // namespace muster::data
