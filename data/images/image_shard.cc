#include "data/images/image_shard.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file/beneath.h"
#include "common/file/read_file.h"
#include "common/file_error.h"

namespace muster::data {
namespace {

constexpr uint64_t kMostSidecarBytes = 16 << 20;
constexpr uint32_t kMostHead = 2;  // bytes of a record before its pixels

absl::Status WrongImages(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, what));
}

// Guesses what a file that is no image file is, and what to do; empty: unknown.
std::string ForeignImages(std::string_view head) {
  const std::pair<std::string_view, const char*> kinds[] = {
      {"\x1f\x8b", "is compressed by gzip: unpack it (tar xzf if it is CIFAR's archive)"},
      {"\x89PNG", "is one PNG image: `muster data prepare-images` makes an image file of a folder of them"},
      {"\xff\xd8\xff", "is one JPEG image: `muster data prepare-images` makes an image file of a folder of them"},
      {std::string_view("\x80\x02}", 3),
       "is a Python pickle: download CIFAR's binary version instead of its Python "
       "version"},
      {std::string_view("\x80\x03}", 3), "is a Python pickle: download CIFAR's binary version"},
      {std::string_view("\0\0\x08\x03", 4),
       "is an idx file as MNIST's: make an image file of it and its labels with "
       "`muster data prepare-images --idx-images --idx-labels`"},
      {"PK\x03\x04", "is a zip archive: unpack it"},
  };
  for (const auto& [magic, name] : kinds) {
    if (absl::StartsWith(absl::string_view(head.data(), head.size()), absl::string_view(magic.data(), magic.size())))
      return name;
  }
  return "";
}

// The records that `bytes` hold and the bytes left over, e.g. "9999 records and 3072 bytes".
std::string Records(uint64_t bytes, uint64_t record) {
  return absl::StrCat(bytes / record, " records and ", bytes % record, " bytes");
}

}  // namespace

const char* FormatName(ImageFormat format) {
  switch (format) {
    case ImageFormat::kCifar10:
      return "cifar10";
    case ImageFormat::kCifar100:
      return "cifar100";
    default:
      return "muster";
  }
}

ImageShard::ImageShard(ImageShard&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      format_(other.format_),
      shape_(std::move(other.shape_)),
      head_(other.head_),
      bytes_(other.bytes_) {}

ImageShard::~ImageShard() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<ImageShard> ImageShard::Open(const std::string& path) {
  // O_NONBLOCK: a pipe is refused below instead of blocking here.
  const absl::StatusOr<int> opened = OpenConfined(FileUse::kData, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (absl::IsNotFound(opened.status())) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file on this machine"));
  }
  if (!opened.ok()) return opened.status();
  ImageShard shard(path, *opened);
  struct stat found;
  if (fstat(*opened, &found) != 0) return FileError(errno, path);
  if (!S_ISREG(found.st_mode)) return WrongImages(path, " is not a regular file");
  shard.bytes_ = found.st_size;
  if (absl::Status status = shard.Recognize(); !status.ok()) return status;
  return shard;
}

absl::Status ImageShard::Recognize() {
  if (bytes_ == 0)
    return WrongImages(path_, " is empty: was its download or `muster data prepare-images` interrupted?");
  const std::string sidecar = SidecarPath(path_);
  const absl::StatusOr<int> opened = OpenConfined(FileUse::kData, sidecar, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (absl::IsNotFound(opened.status())) return RecognizeCifar();
  if (!opened.ok()) return opened.status();
  const absl::StatusOr<std::string> json = ReadWhole(absl::StrCat("/proc/self/fd/", *opened), kMostSidecarBytes);
  close(*opened);
  if (!json.ok()) return absl::Status(json.status().code(), absl::StrCat(sidecar, ": ", json.status().message()));
  absl::StatusOr<ImageSidecar> shape = ParseImageSidecar(sidecar, *json);
  if (!shape.ok()) return shape.status();
  shape_ = *std::move(shape);
  head_ = shape_.label_bytes;
  const uint64_t expected = shape_.images * RecordBytes();
  if (bytes_ == expected) return absl::OkStatus();
  return WrongImages(path_, absl::StrCat(" has ", bytes_, " bytes, but ", sidecar, " says ", shape_.images,
                                         " images of ", RecordBytes(), " bytes, which makes ", expected, ": it was ",
                                         bytes_ < expected ? "cut" : "added to"));
}

void ImageShard::Become(ImageFormat format) {
  const bool fine = format == ImageFormat::kCifar100;
  format_ = format;
  head_ = fine ? 2 : 1;
  shape_ = {.channels = 3, .height = 32, .width = 32, .label_bytes = 1, .classes = fine ? 100u : 10u};
  shape_.images = bytes_ / RecordBytes();
}

absl::Status ImageShard::RecognizeCifar() {
  const bool ten = bytes_ % kCifar10Record == 0, hundred = bytes_ % kCifar100Record == 0;
  if (ten != hundred) {
    Become(ten ? ImageFormat::kCifar10 : ImageFormat::kCifar100);
    return absl::OkStatus();
  }
  if (!ten) {
    char head[16];
    const ssize_t got = pread(descriptor_, head, sizeof head, 0);
    const std::string foreign = ForeignImages(std::string_view(head, std::max<ssize_t>(got, 0)));
    if (!foreign.empty()) return WrongImages(path_, absl::StrCat(" ", foreign));
    return WrongImages(
        path_, absl::StrCat(" has ", bytes_, " bytes, which is neither CIFAR-10 (", kCifar10Record,
                            " bytes a record: ", Records(bytes_, kCifar10Record), ") nor CIFAR-100 (", kCifar100Record,
                            ": ", Records(bytes_, kCifar100Record), "): it was cut, or it lacks its ",
                            SidecarPath(path_), ", which describes other images"));
  }
  Become(ImageFormat::kCifar10);
  const absl::StatusOr<bool> like_ten = LabelsFit();
  if (!like_ten.ok()) return like_ten.status();
  Become(ImageFormat::kCifar100);
  const absl::StatusOr<bool> like_hundred = LabelsFit();
  if (!like_hundred.ok()) return like_hundred.status();
  if (*like_ten == *like_hundred) {
    return WrongImages(path_, absl::StrCat(" has ", bytes_,
                                           " bytes, which fits both CIFAR-10 and CIFAR-100, and its "
                                           "labels fit ",
                                           *like_ten ? "both" : "neither", ": describe it in ", SidecarPath(path_)));
  }
  Become(*like_ten ? ImageFormat::kCifar10 : ImageFormat::kCifar100);
  return absl::OkStatus();
}

absl::StatusOr<bool> ImageShard::LabelsFit() const {
  constexpr uint8_t kCoarseClasses = 20;
  for (uint64_t i = 0; i < images(); ++i) {
    uint8_t head[kMostHead] = {};
    const ssize_t got = pread(descriptor_, head, head_, static_cast<off_t>(i * RecordBytes()));
    if (got < 0) return FileError(errno, absl::StrCat("reading ", path_));
    if (got != static_cast<ssize_t>(head_)) return Cut();
    if (LabelIn(head) >= shape_.classes) return false;
    if (format_ == ImageFormat::kCifar100 && head[0] >= kCoarseClasses) return false;
  }
  return true;
}

uint32_t ImageShard::LabelIn(const uint8_t* head) const {
  const uint8_t* label = head + head_ - shape_.label_bytes;
  return shape_.label_bytes == 1 ? label[0] : label[0] | label[1] << 8;
}

absl::Status ImageShard::Cut() const {
  return absl::DataLossError(absl::StrCat(path_, " became shorter than ", images(), " images"));
}

absl::Status ImageShard::Read(uint64_t index, absl::Span<uint8_t> pixels, uint32_t& label) const {
  uint8_t head[kMostHead];
  const uint64_t begin = index * RecordBytes();
  for (uint64_t done = 0; done < RecordBytes();) {
    // One system call for label and pixels, unless a signal or the end of the file cuts it.
    const uint64_t in_head = std::min<uint64_t>(done, head_), in_pixels = done - in_head;
    const iovec parts[] = {{head + in_head, head_ - in_head}, {pixels.data() + in_pixels, pixels.size() - in_pixels}};
    const ssize_t got = preadv(descriptor_, parts, 2, static_cast<off_t>(begin + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("reading ", path_));
    if (got == 0) return Cut();
    done += got;
  }
  label = LabelIn(head);
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> ImageShard::Label(uint64_t index) const {
  uint8_t head[kMostHead];
  ssize_t got;
  do {
    got = pread(descriptor_, head, head_, static_cast<off_t>(index * RecordBytes()));
  } while (got < 0 && errno == EINTR);
  if (got < 0) return FileError(errno, absl::StrCat("reading ", path_));
  if (got != static_cast<ssize_t>(head_)) return Cut();
  return LabelIn(head);
}

absl::StatusOr<uint64_t> ImageShard::FindOutside(uint64_t classes, uint64_t stride) const {
  for (uint64_t i = 0; i < images(); i += stride) {
    const absl::StatusOr<uint32_t> label = Label(i);
    if (!label.ok()) return label.status();
    if (*label >= classes) return i;
  }
  return images();
}

}  // namespace muster::data
