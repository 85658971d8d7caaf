#include "data/images/image_sidecar.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::data {
namespace {

constexpr char kSidecarFormat[] = "muster-images";
constexpr int kSidecarVersion = 1;

absl::Status BadSidecar(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// The integer `name` of `tree`, from 1 to `most`.
absl::Status Take(const std::string& path, const nlohmann::json& tree, const char* name, uint64_t most, uint64_t& out) {
  const auto found = tree.find(name);
  if (found == tree.end()) return BadSidecar(path, absl::StrCat("\"", name, "\" is missing"));
  if (!found->is_number_unsigned() || found->get<uint64_t>() < 1 || found->get<uint64_t>() > most) {
    return BadSidecar(path, absl::StrCat("\"", name, "\" must be an integer from 1 to ", most));
  }
  out = found->get<uint64_t>();
  return absl::OkStatus();
}

absl::Status TakeNames(const std::string& path, const nlohmann::json& tree, ImageSidecar& sidecar) {
  const auto found = tree.find("class_names");
  if (found == tree.end()) return absl::OkStatus();
  const bool strings = found->is_array() && std::all_of(found->begin(), found->end(),
                                                        [](const nlohmann::json& name) { return name.is_string(); });
  if (!strings) return BadSidecar(path, "\"class_names\" must be an array of strings");
  if (!found->empty() && found->size() != sidecar.classes) {
    return BadSidecar(
        path, absl::StrCat("\"class_names\" has ", found->size(), " names, but \"classes\" is ", sidecar.classes));
  }
  sidecar.class_names = found->get<std::vector<std::string>>();
  return absl::OkStatus();
}

}  // namespace

std::string SidecarPath(const std::string& image_file) { return image_file + ".json"; }

std::string ToJson(const ImageSidecar& sidecar) {
  nlohmann::ordered_json tree = {
      {"format", kSidecarFormat},           {"version", kSidecarVersion}, {"images", sidecar.images},
      {"channels", sidecar.channels},       {"height", sidecar.height},   {"width", sidecar.width},
      {"label_bytes", sidecar.label_bytes}, {"classes", sidecar.classes},
  };
  if (!sidecar.class_names.empty()) tree["class_names"] = sidecar.class_names;
  // A folder's name may be no UTF-8, which JSON cannot hold.
  return tree.dump(/*indent=*/1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<ImageSidecar> ParseImageSidecar(const std::string& path, std::string_view json) {
  const nlohmann::json tree = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!tree.is_object()) return BadSidecar(path, "is not a JSON object, but should describe the image file beside it");
  if (tree.value("format", nlohmann::json()) != kSidecarFormat) {
    return BadSidecar(path, absl::StrCat("\"format\" must be \"", kSidecarFormat, "\""));
  }
  if (tree.value("version", nlohmann::json()) != kSidecarVersion) {
    return BadSidecar(path, absl::StrCat("\"version\" must be ", kSidecarVersion, ", which this Muster reads"));
  }
  ImageSidecar sidecar;
  uint64_t channels = 0, height = 0, width = 0, label_bytes = 0;
  const std::pair<const char*, std::pair<uint64_t, uint64_t*>> kNumbers[] = {
      {"images", {uint64_t{1} << 48, &sidecar.images}},
      {"channels", {kMostImageChannels, &channels}},
      {"height", {kLongestImageSide, &height}},
      {"width", {kLongestImageSide, &width}},
      {"label_bytes", {2, &label_bytes}},
      {"classes", {kMostImageClasses, &sidecar.classes}},
  };
  for (const auto& [name, number] : kNumbers) {
    if (absl::Status status = Take(path, tree, name, number.first, *number.second); !status.ok()) return status;
  }
  sidecar.channels = static_cast<uint32_t>(channels);
  sidecar.height = static_cast<uint32_t>(height);
  sidecar.width = static_cast<uint32_t>(width);
  sidecar.label_bytes = static_cast<uint32_t>(label_bytes);
  if (sidecar.pixel_bytes() > kMostPixelBytes) {
    return BadSidecar(path, absl::StrCat("an image of ", channels, " x ", height, " x ", width, " is larger than ",
                                         kMostPixelBytes, " bytes"));
  }
  if (label_bytes == 1 && sidecar.classes > 256) {
    return BadSidecar(path, absl::StrCat(sidecar.classes, " classes need \"label_bytes\": 2"));
  }
  if (absl::Status status = TakeNames(path, tree, sidecar); !status.ok()) return status;
  return sidecar;
}

}  // namespace muster::data
