#include <png.h>
#include <setjmp.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "data/images/prepare/decode.h"

namespace muster::data {
namespace {

// Deflate compresses at most 1032 to 1 (zlib's "Technical details"), and a byte has at most 8 pixels.
constexpr uint64_t kMostPixelsPerPngByte = 8 * 1032;

// libpng reports errors by longjmp, which runs no destructors: so the functions that it may leave have no local
// objects, and everything that must be released is here.
struct PngReader {
  std::string_view left;
  png_structp png = nullptr;
  png_infop info = nullptr;
  RgbImage image;
  std::vector<png_bytep> rows;
  char error[128] = "";

  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void OnPngError(png_structp png, png_const_charp message) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader->error, sizeof reader->error, "%s", message);
  longjmp(png_jmpbuf(png), 1);
}

void OnPngWarning(png_structp, png_const_charp) {}

void TakePngBytes(png_structp png, png_bytep out, size_t count) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (count > reader->left.size()) png_error(png, "ends early");
  std::memcpy(out, reader->left.data(), count);
  reader->left.remove_prefix(count);
}

// The functions that call libpng: false means an error, whose text is in reader.error.
bool ReadPngHeader(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_read_fn(reader.png, &reader, TakePngBytes);
  png_read_info(reader.png, reader.info);
  return true;
}

bool SetUpPng(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  const int color = png_get_color_type(reader.png, reader.info);
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reader.png);
  if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reader.png);
  if ((color & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(reader.png);
  png_set_strip_16(reader.png);
  png_set_strip_alpha(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  if (png_get_rowbytes(reader.png, reader.info) != 3 * size_t{png_get_image_width(reader.png, reader.info)}) {
    png_error(reader.png, "has an unknown arrangement of colors");
  }
  return true;
}

bool ReadPngPixels(PngReader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_image(reader.png, reader.rows.data());
  png_read_end(reader.png, nullptr);
  return true;
}

}  // namespace

absl::StatusOr<RgbImage> DecodePng(std::string_view bytes, const DecodeLimits& limits) {
  PngReader reader{.left = bytes};
  const auto broken = [&] { return absl::InvalidArgumentError(absl::StrCat("broken PNG: ", reader.error)); };
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, OnPngError, OnPngWarning);
  if (reader.png != nullptr) reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) return absl::ResourceExhaustedError("libpng has no memory, or another version");
  if (!ReadPngHeader(reader)) return broken();
  reader.image.width = png_get_image_width(reader.png, reader.info);
  reader.image.height = png_get_image_height(reader.png, reader.info);
  absl::Status size = CheckSize(reader.image.width, reader.image.height, limits, bytes.size(), kMostPixelsPerPngByte);
  if (!size.ok()) return size;
  if (!SetUpPng(reader)) return broken();
  reader.image.pixels.resize(size_t{3} * reader.image.width * reader.image.height);
  reader.rows.resize(reader.image.height);
  for (size_t y = 0; y < reader.rows.size(); ++y) {
    reader.rows[y] = reader.image.pixels.data() + y * 3 * reader.image.width;
  }
  if (!ReadPngPixels(reader)) return broken();
  return std::move(reader.image);
}

}  // namespace muster::data
