#include "cli/commands/data_images.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/commands/commands.h"
#include "cli/output/format.h"
#include "common/bytes.h"
#include "data/images/prepare/inspect_images.h"
#include "data/images/prepare/prepare_images.h"

namespace muster::cli {
namespace {

constexpr size_t kShownClasses = 20;

// A progress line that is redrawn: images, share and rate.
std::function<void(uint64_t, uint64_t)> LiveImages() {
  const absl::Time begin = absl::Now();
  return [begin, shown = absl::InfinitePast()](uint64_t done, uint64_t total) mutable {
    const absl::Time now = absl::Now();
    if (now - shown < absl::Milliseconds(100) && done != total) return;
    shown = now;
    const double rate = static_cast<double>(done) / std::max(1e-3, absl::ToDoubleSeconds(now - begin));
    std::fprintf(stderr, "\r\x1b[K%s of %s images  %.0f%%  %s images/s", Grouped(done).c_str(), Grouped(total).c_str(),
                 100.0 * static_cast<double>(done) / static_cast<double>(total), Count(rate).c_str());
  };
}

struct ImageFlags {
  data::PrepareImagesOptions options;
  std::vector<std::string> files;
};

absl::StatusOr<ExitCode> PrepareImages(const Invocation& invocation, ImageFlags& flags) {
  data::PrepareImagesOptions& options = flags.options;
  const bool idx = !options.idx_images.empty();
  if (flags.files.size() != (idx ? 1 : 2)) {
    return absl::InvalidArgumentError(idx ? "with --idx-images give one more file: the image file to write"
                                          : "give a folder of class folders and the image file to write; MNIST's idx "
                                            "files go to --idx-images and --idx-labels");
  }
  options.folder = idx ? "" : flags.files.front();
  options.out = flags.files.back();
  options.threads = std::max(1u, std::thread::hardware_concurrency());
  const bool live = invocation.Err().terminal;
  if (live) options.progress = LiveImages();
  const absl::StatusOr<data::PreparedImages> prepared = data::PrepareImages(options);
  if (live) std::fputs("\r\x1b[K", stderr);
  if (!prepared.ok()) return prepared.status();
  Say(absl::StrCat(options.out, ": ", Grouped(prepared->images, "image", "images"), " of 3 x ", options.size, " x ",
                   options.size, " in ", Grouped(prepared->classes, "class", "classes")));
  if (!options.validation_out.empty()) {
    Say(absl::StrCat(options.validation_out, ": ", Grouped(prepared->validation_images, "image", "images")));
  }
  if (prepared->broken > 0) {
    Say(absl::StrCat("skipped ", Grouped(prepared->broken, "broken image", "broken images"),
                     prepared->broken == 1 ? ": " : "; the first: ", OneLine(prepared->first_broken)));
  }
  if (prepared->ignored > 0) {
    Say(absl::StrCat("ignored ",
                     Grouped(prepared->ignored, "file whose name is not that", "files whose names are not those"),
                     " of images"));
  }
  return kOk;
}

nlohmann::ordered_json TreeOf(const std::string& file, const data::ImageInspection& found) {
  nlohmann::ordered_json tree = {
      {"file", file},           {"images", found.images}, {"bytes", found.bytes},     {"channels", found.channels},
      {"height", found.height}, {"width", found.width},   {"classes", found.classes},
  };
  if (!found.class_names.empty()) tree["class_names"] = found.class_names;
  tree["class_counts"] = found.counts;
  tree["mean"] = found.normalization.mean;
  tree["standard_deviation"] = found.normalization.standard_deviation;
  for (const data::ImageInspection::Shard& shard : found.shards) {
    tree["shards"].push_back({{"path", shard.path}, {"format", shard.format}, {"images", shard.images}});
  }
  return tree;
}

// "cat 500, dog 480", or "0: 500, 1: 480" without names; or, of many classes, their range.
std::string ClassesOf(const data::ImageInspection& found) {
  if (found.counts.size() > kShownClasses) {
    const auto [least, most] = std::minmax_element(found.counts.begin(), found.counts.end());
    return absl::StrCat("each with ", Grouped(*least), " to ", Grouped(*most), " images (all: -o json)");
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < found.counts.size(); ++i) {
    const std::string name = found.class_names.empty() ? absl::StrCat(i, ":") : OneLine(found.class_names[i]);
    parts.push_back(absl::StrCat(name, " ", Grouped(found.counts[i])));
  }
  return absl::StrJoin(parts, ", ");
}

std::string Levels(const std::vector<float>& levels) {
  return absl::StrJoin(levels, ", ",
                       [](std::string* out, float level) { absl::StrAppend(out, absl::StrFormat("%.4f", level)); });
}

std::string DescribeImages(const data::ImageInspection& found) {
  std::string text;
  for (const data::ImageInspection::Shard& shard : found.shards) {
    absl::StrAppend(&text, shard.path, ": ", shard.format, ", ", Grouped(shard.images, "image", "images"), "\n");
  }
  absl::StrAppend(&text, Grouped(found.images, "image", "images"), " of ", found.channels, " x ", found.height, " x ",
                  found.width, " in ", FormatBytes(found.bytes), "; ", Grouped(found.classes, "class", "classes"), ": ",
                  ClassesOf(found), "\n");
  absl::StrAppend(&text, "mean: [", Levels(found.normalization.mean), "]\nstandard_deviation: [",
                  Levels(found.normalization.standard_deviation), "]\n");
  return text;
}

}  // namespace

absl::Status AppendImages(const std::string& file, nlohmann::ordered_json& trees, std::string& text) {
  const absl::StatusOr<data::ImageInspection> found = data::InspectImages(file);
  if (!found.ok()) return found.status();
  trees.push_back(TreeOf(file, *found));
  text += DescribeImages(*found);
  return absl::OkStatus();
}

void RegisterDataImages(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<ImageFlags>();
  data::PrepareImagesOptions& options = flags->options;
  CLI::App* command = AddCommand(
      app, "prepare-images", "Commands", "Create image files from folders of PNG and JPEG, or from idx (MNIST)",
      "muster data prepare-images pets train.bin --size 64 --validation val.bin\n"
      "muster data prepare-images --idx-images train-images.gz --idx-labels train-labels.gz train.bin");
  command
      ->add_option("FILES", flags->files,
                   "a folder with a folder of images for each class (torchvision's ImageFolder), and the image file to "
                   "write; with --idx-images only the latter")
      ->required()
      ->expected(1, 2);
  command
      ->add_option("--size", options.size,
                   "side of the images: the short side is resized to it, then the middle is cut out")
      ->capture_default_str();
  auto* images = command->add_option("--idx-images", options.idx_images, "idx file of gray images, plain or .gz")
                     ->type_name("FILE");
  auto* labels = command->add_option("--idx-labels", options.idx_labels, "idx file of their labels")->type_name("FILE");
  images->needs(labels);
  labels->needs(images);
  command
      ->add_option("--classes-of", options.classes_of,
                   "number the classes as in this image file, e.g. test images as the training images")
      ->type_name("FILE");
  auto* validation =
      command->add_option("--validation", options.validation_out, "image file for a random part of the images")
          ->type_name("FILE");
  command
      ->add_option("--fraction,--validation-fraction", options.validation_fraction,
                   "share of the images that goes to --validation")
      ->capture_default_str()
      ->needs(validation);
  command->add_option("--seed", options.seed, "seed of the order of the images and of the split")
      ->capture_default_str();
  command->add_flag("--skip-broken", options.skip_broken, "skip images that cannot be decoded, and count them");
  command->add_flag("--force", options.force, "overwrite existing files");
  OnRun(command, invocation, [&invocation, flags] { return PrepareImages(invocation, *flags); });
}

}  // namespace muster::cli
