#include <setjmp.h>

#include <cstdio>
#include <utility>

// After <cstdio>, because it uses FILE.
#include <jpeglib.h>

// After jpeglib.h, whose macros decide how it numbers the messages.
#include <jerror.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "data/images/prepare/decode.h"

namespace muster::data {
namespace {

// A block of 8 x 8 pixels takes at least one bit.
constexpr uint64_t kMostPixelsPerJpegByte = 512;
// A progressive file of 100 kB can ask for thousands of passes over a large image. Encoders write about ten.
constexpr int kMostScans = 100;

// libjpeg reports errors by longjmp, which runs no destructors: so the functions that it may leave have no local
// objects, and everything that must be released is here.
struct JpegReader {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  jmp_buf jump;
  std::string_view bytes;
  RgbImage image;
  char error[JMSG_LENGTH_MAX] = "";

  ~JpegReader() { jpeg_destroy_decompress(&info); }
};

[[noreturn]] void OnJpegError(j_common_ptr info) {
  auto* reader = static_cast<JpegReader*>(info->client_data);
  if (reader->error[0] == '\0') info->err->format_message(info, reader->error);
  longjmp(reader->jump, 1);
}

// Lost pixels are only a warning to libjpeg, which invents gray ones.
void OnJpegWarning(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
      OnJpegError(info);
    default:
      return;
  }
}

void OnJpegProgress(j_common_ptr info) {
  auto* reader = static_cast<JpegReader*>(info->client_data);
  if (reader->info.input_scan_number <= kMostScans) return;
  std::snprintf(reader->error, sizeof reader->error, "more than %d scans", kMostScans);
  OnJpegError(info);
}

// The functions that call libjpeg: false means an error, whose text is in reader.error.
bool ReadJpegHeader(JpegReader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  jpeg_create_decompress(&reader.info);
  reader.info.client_data = &reader;
  reader.progress.progress_monitor = OnJpegProgress;
  reader.info.progress = &reader.progress;
  jpeg_mem_src(&reader.info, reinterpret_cast<const unsigned char*>(reader.bytes.data()), reader.bytes.size());
  jpeg_read_header(&reader.info, TRUE);
  return true;
}

bool StartJpeg(JpegReader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  reader.info.out_color_space = JCS_RGB;
  jpeg_start_decompress(&reader.info);
  return true;
}

bool ReadJpegPixels(JpegReader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  while (reader.info.output_scanline < reader.info.output_height) {
    JSAMPROW row = reader.image.pixels.data() + size_t{3} * reader.image.width * reader.info.output_scanline;
    jpeg_read_scanlines(&reader.info, &row, 1);
  }
  return true;
}

}  // namespace

absl::StatusOr<RgbImage> DecodeJpeg(std::string_view bytes, const DecodeLimits& limits) {
  JpegReader reader;
  reader.bytes = bytes;
  reader.info.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = OnJpegError;
  reader.errors.emit_message = OnJpegWarning;
  reader.info.client_data = &reader;
  const auto broken = [&] { return absl::InvalidArgumentError(absl::StrCat("broken JPEG: ", reader.error)); };
  if (!ReadJpegHeader(reader)) return broken();
  const J_COLOR_SPACE colors = reader.info.jpeg_color_space;
  if (colors == JCS_CMYK || colors == JCS_YCCK) {
    return absl::InvalidArgumentError(
        "is a JPEG in CMYK, for print, which converts to RGB only by a color profile: convert it with another program, "
        "e.g. convert IN -colorspace sRGB OUT");
  }
  if (colors != JCS_GRAYSCALE && colors != JCS_YCbCr && colors != JCS_RGB) {
    return absl::InvalidArgumentError(
        absl::StrCat("is a JPEG with ", reader.info.num_components, " color components; 1 or 3 are expected"));
  }
  absl::Status size =
      CheckSize(reader.info.image_width, reader.info.image_height, limits, bytes.size(), kMostPixelsPerJpegByte);
  if (!size.ok()) return size;
  if (!StartJpeg(reader)) return broken();
  reader.image.width = reader.info.output_width;
  reader.image.height = reader.info.output_height;
  reader.image.pixels.resize(size_t{3} * reader.image.width * reader.image.height);
  if (!ReadJpegPixels(reader)) return broken();
  return std::move(reader.image);
}

}  // namespace muster::data
