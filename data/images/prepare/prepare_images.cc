#include "data/images/prepare/prepare_images.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "data/images/image_file.h"
#include "data/images/prepare/decode.h"
#include "data/images/prepare/idx_file.h"
#include "data/images/prepare/image_folder.h"
#include "data/images/prepare/resize.h"
#include "data/random_purpose.h"
#include "data/sampler.h"

namespace muster::data {
namespace {

constexpr uint32_t kLargestSize = 4096;
constexpr uint64_t kMostFileBytes = uint64_t{1} << 30;  // of one PNG or JPEG
constexpr size_t kFlushBytes = 1 << 20;
constexpr size_t kBlockImages = 256;  // decoded before they are written

// An image file being written, with its sidecar.
class ImageWriter {
 public:
  static absl::StatusOr<std::unique_ptr<ImageWriter>> Create(const std::string& path, const ImageSidecar& shape,
                                                             bool force) {
    const FileOptions options{.existing = force ? FileOptions::kReplace : FileOptions::kRefuse};
    absl::StatusOr<DurableFile> data = DurableFile::Create(path, options);
    if (!data.ok()) return data.status();
    absl::StatusOr<DurableFile> sidecar = DurableFile::Create(SidecarPath(path), options);
    if (!sidecar.ok()) return sidecar.status();
    return std::unique_ptr<ImageWriter>(new ImageWriter(*std::move(data), *std::move(sidecar), shape, force));
  }

  uint64_t images() const { return shape_.images; }

  absl::Status Write(absl::Span<const uint8_t> pixels, uint32_t label) {
    for (uint32_t i = 0; i < shape_.label_bytes; ++i) buffer_.push_back(static_cast<char>(label >> 8 * i));
    buffer_.append(reinterpret_cast<const char*>(pixels.data()), pixels.size());
    ++shape_.images;
    return buffer_.size() < kFlushBytes ? absl::OkStatus() : Flush();
  }

  // Whoever finds the image file finds a complete pair: it appears last, and an old one disappears first.
  absl::Status Commit() {
    if (absl::Status status = Flush(); !status.ok()) return status;
    if (absl::Status status = sidecar_.Write(ToJson(shape_)); !status.ok()) return status;
    if (replace_) unlink(data_.path().c_str());
    if (absl::Status status = sidecar_.Commit(); !status.ok()) {
      RemoveUnlessForeign(sidecar_, status);
      return status;
    }
    absl::Status status = data_.Commit();
    if (status.ok()) return status;
    unlink(sidecar_.path().c_str());
    RemoveUnlessForeign(data_, status);
    return status;
  }
  // After Commit().
  void Remove() const {
    unlink(data_.path().c_str());
    unlink(sidecar_.path().c_str());
  }

 private:
  ImageWriter(DurableFile data, DurableFile sidecar, ImageSidecar shape, bool replace)
      : data_(std::move(data)), sidecar_(std::move(sidecar)), shape_(std::move(shape)), replace_(replace) {}
  // Of a Commit() that failed: the file may have its name, but not survive a power loss. AlreadyExists: another program
  // made a file of this name.
  static void RemoveUnlessForeign(const DurableFile& file, const absl::Status& status) {
    if (!absl::IsAlreadyExists(status)) unlink(file.path().c_str());
  }
  absl::Status Flush() {
    const absl::Status status = data_.Write(buffer_);
    buffer_.clear();
    return status;
  }

  DurableFile data_, sidecar_;
  ImageSidecar shape_;
  bool replace_;
  std::string buffer_;
};

struct Outputs {
  std::unique_ptr<ImageWriter> out, validation;  // the latter may be null
};

absl::StatusOr<Outputs> CreateOutputs(const PrepareImagesOptions& options, const PreparedImages& prepared) {
  const ImageSidecar shape{.channels = 3,
                           .height = options.size,
                           .width = options.size,
                           .label_bytes = prepared.classes <= 256 ? 1u : 2u,
                           .classes = prepared.classes,
                           .class_names = prepared.class_names};
  Outputs outputs;
  for (auto& [path, writer] : {std::pair(&options.out, &outputs.out), {&options.validation_out, &outputs.validation}}) {
    if (path->empty()) continue;
    absl::StatusOr<std::unique_ptr<ImageWriter>> created = ImageWriter::Create(*path, shape, options.force);
    if (!created.ok()) return created.status();
    *writer = *std::move(created);
  }
  return outputs;
}

absl::Status CommitOutputs(const PrepareImagesOptions& options, const Outputs& outputs, PreparedImages& prepared) {
  prepared.images = outputs.out->images();
  prepared.validation_images = outputs.validation == nullptr ? 0 : outputs.validation->images();
  if (prepared.images == 0 || (outputs.validation != nullptr && prepared.validation_images == 0)) {
    return absl::InvalidArgumentError(
        prepared.broken > 0
            ? absl::StrCat("too few images can be decoded; the first that cannot: ", prepared.first_broken)
            : absl::StrCat("a validation fraction of ", options.validation_fraction, " leaves one side of ",
                           prepared.images + prepared.validation_images, " images empty"));
  }
  if (outputs.validation != nullptr) {
    if (absl::Status status = outputs.validation->Commit(); !status.ok()) return status;
  }
  const absl::Status status = outputs.out->Commit();
  if (!status.ok() && outputs.validation != nullptr) outputs.validation->Remove();
  return status;
}

bool SameImageFile(const std::string& a, const std::string& b) {
  struct stat first, second;
  return stat(a.c_str(), &first) == 0 && stat(b.c_str(), &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

absl::Status CheckImageOptions(const PrepareImagesOptions& options) {
  const bool idx = !options.idx_images.empty() || !options.idx_labels.empty();
  if (idx == !options.folder.empty() || options.idx_images.empty() != options.idx_labels.empty()) {
    return absl::InvalidArgumentError(
        "give either a folder of class folders, or both an idx file of images and one of labels");
  }
  if (options.out.empty()) return absl::InvalidArgumentError("no name for the image file");
  if (options.size < 1 || options.size > kLargestSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("size must lie between 1 and ", kLargestSize, ", not ", options.size));
  }
  if (idx && !options.classes_of.empty()) {
    return absl::InvalidArgumentError("classes_of: idx files have numbers instead of names of classes");
  }
  for (const std::string* input : {&options.idx_images, &options.idx_labels}) {
    for (const std::string* out : {&options.out, &options.validation_out}) {
      if (SameImageFile(*input, *out)) {
        return absl::InvalidArgumentError(absl::StrCat(*out, " is the input, which would be overwritten"));
      }
    }
  }
  if (options.validation_out.empty()) return absl::OkStatus();
  if (options.validation_out == options.out || SameImageFile(options.out, options.validation_out)) {
    return absl::InvalidArgumentError(absl::StrCat("training and validation images cannot both go to ", options.out));
  }
  if (!(options.validation_fraction > 0 && options.validation_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("validation_fraction must lie between 0 and 1, not ", options.validation_fraction));
  }
  return absl::OkStatus();
}

// A random bijection of [0, images): image i is position Permute(i) of the split.
class ImageSplit {
 public:
  ImageSplit(const PrepareImagesOptions& options, uint64_t images) : images_(images), held_out_(0) {
    const std::array<uint32_t, 4> bits = RandomBits(options.seed, 0, RandomPurpose::kSplit);
    key_ = uint64_t{bits[1]} << 32 | bits[0];
    if (options.validation_out.empty()) return;
    held_out_ = static_cast<uint64_t>(std::llround(options.validation_fraction * static_cast<double>(images)));
  }
  uint64_t Shuffled(uint64_t index) const { return Permute(key_, images_, index); }
  bool HoldsOut(uint64_t position) const { return position >= images_ - held_out_; }

 private:
  uint64_t images_, held_out_, key_;
};

// Renumbers the classes as the file `classes_of` does.
absl::Status NumberClasses(const std::string& classes_of, ImageFolder& folder) {
  const absl::StatusOr<ImageFile> file = ImageFile::Open(classes_of);
  if (!file.ok()) return file.status();
  if (file->class_names().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(classes_of, " does not name its classes: only files made of folders do"));
  }
  std::map<std::string, uint32_t> numbers;
  for (const std::string& name : file->class_names()) numbers.emplace(name, static_cast<uint32_t>(numbers.size()));
  std::vector<uint32_t> labels;
  for (const std::string& name : folder.classes) {
    const auto found = numbers.find(name);
    if (found == numbers.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("class \"", name, "\" is not one of the ", numbers.size(), " classes of ", classes_of));
    }
    labels.push_back(found->second);
  }
  for (ImageFolder::Entry& entry : folder.images) entry.label = labels[entry.label];
  folder.classes = file->class_names();
  return absl::OkStatus();
}

// The pixels of a record: [3, size, size].
absl::StatusOr<std::vector<uint8_t>> ReadPicture(const std::string& path, uint32_t size) {
  const absl::StatusOr<std::string> bytes = ReadWhole(path, kMostFileBytes);
  if (!bytes.ok()) return bytes.status();
  const absl::StatusOr<RgbImage> image = DecodeImage(*bytes);
  if (!image.ok()) return absl::Status(image.status().code(), absl::StrCat(path, ": ", image.status().message()));
  const RgbImage square = ResizeAndCrop(*image, size);
  const size_t plane = size_t{size} * size;
  std::vector<uint8_t> planes(3 * plane);
  for (size_t i = 0; i < planes.size(); ++i) planes[i % 3 * plane + i / 3] = square.pixels[i];
  return planes;
}

// Calls `each` with 0 to count - 1, on several threads.
void InParallel(uint32_t threads, size_t count, const std::function<void(size_t)>& each) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) each(i);
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min<size_t>(threads, count); ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
}

absl::Status WriteFolder(const PrepareImagesOptions& options, const ImageFolder& folder, const Outputs& outputs,
                         PreparedImages& prepared) {
  const uint64_t total = folder.images.size();
  const ImageSplit split(options, total);
  std::vector<absl::StatusOr<std::vector<uint8_t>>> images;
  for (uint64_t begin = 0; begin < total; begin += images.size()) {
    images.assign(std::min<uint64_t>(kBlockImages, total - begin), std::vector<uint8_t>());
    InParallel(options.threads, images.size(),
               [&](size_t i) { images[i] = ReadPicture(folder.images[split.Shuffled(begin + i)].path, options.size); });
    for (size_t i = 0; i < images.size(); ++i) {
      if (!images[i].ok()) {
        if (!options.skip_broken || !absl::IsInvalidArgument(images[i].status())) return images[i].status();
        if (prepared.broken++ == 0) prepared.first_broken = std::string(images[i].status().message());
        continue;
      }
      ImageWriter& writer = split.HoldsOut(begin + i) ? *outputs.validation : *outputs.out;
      const uint32_t label = folder.images[split.Shuffled(begin + i)].label;
      if (absl::Status status = writer.Write(*images[i], label); !status.ok()) return status;
    }
    if (options.progress) options.progress(begin + images.size(), total);
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedImages> PrepareFolder(const PrepareImagesOptions& options) {
  absl::StatusOr<ImageFolder> folder = ListImageFolder(options.folder);
  if (!folder.ok()) return folder.status();
  if (!options.classes_of.empty()) {
    if (absl::Status status = NumberClasses(options.classes_of, *folder); !status.ok()) return status;
  }
  PreparedImages prepared{
      .classes = folder->classes.size(), .class_names = folder->classes, .ignored = folder->ignored};
  const absl::StatusOr<Outputs> outputs = CreateOutputs(options, prepared);
  if (!outputs.ok()) return outputs.status();
  if (absl::Status status = WriteFolder(options, *folder, *outputs, prepared); !status.ok()) return status;
  if (absl::Status status = CommitOutputs(options, *outputs, prepared); !status.ok()) return status;
  return prepared;
}

// All labels of the file. Grows as it reads: the header may claim more than there is.
absl::StatusOr<std::vector<uint8_t>> ReadLabels(const std::string& path) {
  absl::StatusOr<IdxFile> file = IdxFile::Open(path, 1);
  if (!file.ok()) return file.status();
  std::vector<uint8_t> labels;
  while (labels.size() < file->sizes()[0]) {
    const size_t begin = labels.size();
    labels.resize(std::min<size_t>(file->sizes()[0], begin + kFlushBytes));
    if (absl::Status status = file->Read(absl::MakeSpan(labels).subspan(begin)); !status.ok()) return status;
  }
  if (absl::Status status = file->CheckEnd(); !status.ok()) return status;
  if (labels.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " has no labels"));
  return labels;
}

absl::Status CheckIdx(const PrepareImagesOptions& options, const IdxFile& images, uint64_t labels) {
  const uint32_t rows = images.sizes()[1], columns = images.sizes()[2];
  if (images.sizes()[0] != labels) {
    return absl::InvalidArgumentError(absl::StrCat(images.path(), " has ", images.sizes()[0], " images, but ",
                                                   options.idx_labels, " ", labels, " labels"));
  }
  if (rows == 0 || columns == 0) return absl::InvalidArgumentError(absl::StrCat(images.path(), " has empty images"));
  if (std::max(rows, columns) <= options.size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(images.path(), " has images of ", rows, " x ", columns,
                                                 ", which are padded but not shrunk: use a size of at least ",
                                                 std::max(rows, columns)));
}

absl::Status WriteIdx(const PrepareImagesOptions& options, absl::Span<const uint8_t> labels, IdxFile& images,
                      const Outputs& outputs) {
  const uint32_t rows = images.sizes()[1], columns = images.sizes()[2], size = options.size;
  const size_t plane = size_t{size} * size, corner = size_t{(size - rows) / 2} * size + (size - columns) / 2;
  const ImageSplit split(options, labels.size());
  std::vector<uint8_t> gray(size_t{rows} * columns), pixels(3 * plane, 0);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (absl::Status status = images.Read(absl::MakeSpan(gray)); !status.ok()) return status;
    for (uint32_t channel = 0; channel < 3; ++channel) {
      for (uint32_t y = 0; y < rows; ++y) {
        std::copy_n(&gray[size_t{y} * columns], columns, &pixels[channel * plane + corner + size_t{y} * size]);
      }
    }
    ImageWriter& writer = split.HoldsOut(split.Shuffled(i)) ? *outputs.validation : *outputs.out;
    if (absl::Status status = writer.Write(pixels, labels[i]); !status.ok()) return status;
    const uint64_t done = i + 1;
    if (options.progress && (done % kBlockImages == 0 || done == labels.size())) options.progress(done, labels.size());
  }
  return images.CheckEnd();
}

absl::StatusOr<PreparedImages> PrepareIdx(const PrepareImagesOptions& options) {
  const absl::StatusOr<std::vector<uint8_t>> labels = ReadLabels(options.idx_labels);
  if (!labels.ok()) return labels.status();
  absl::StatusOr<IdxFile> images = IdxFile::Open(options.idx_images, 3);
  if (!images.ok()) return images.status();
  if (absl::Status status = CheckIdx(options, *images, labels->size()); !status.ok()) return status;
  PreparedImages prepared{.classes = uint64_t{1} + *std::max_element(labels->begin(), labels->end())};
  const absl::StatusOr<Outputs> outputs = CreateOutputs(options, prepared);
  if (!outputs.ok()) return outputs.status();
  if (absl::Status status = WriteIdx(options, *labels, *images, *outputs); !status.ok()) return status;
  if (absl::Status status = CommitOutputs(options, *outputs, prepared); !status.ok()) return status;
  return prepared;
}

}  // namespace

absl::StatusOr<PreparedImages> PrepareImages(const PrepareImagesOptions& options) {
  if (absl::Status status = CheckImageOptions(options); !status.ok()) return status;
  return options.folder.empty() ? PrepareIdx(options) : PrepareFolder(options);
}

}  // namespace muster::data
