// For tests: PNG and JPEG files by the libraries' own writers.
#pragma once

#include <png.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// After <cstdio>, because it uses FILE.
#include <jpeglib.h>

namespace muster::data {

struct PngOptions {
  int color = PNG_COLOR_TYPE_RGB;
  int bits = 8;
  bool interlaced = false;
  std::vector<png_color> palette = {};
  std::vector<uint8_t> transparency = {};  // alpha by palette entry
};

// `rows`: as PNG has them, most significant byte first.
inline std::string EncodePng(uint32_t width, uint32_t height, const std::string& rows, const PngOptions& options = {}) {
  std::string out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp writer, png_bytep bytes, size_t count) {
        static_cast<std::string*>(png_get_io_ptr(writer))->append(reinterpret_cast<const char*>(bytes), count);
      },
      nullptr);
  png_set_IHDR(png, info, width, height, options.bits, options.color,
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!options.palette.empty()) {
    png_set_PLTE(png, info, options.palette.data(), static_cast<int>(options.palette.size()));
  }
  if (!options.transparency.empty()) {
    png_set_tRNS(png, info, options.transparency.data(), static_cast<int>(options.transparency.size()), nullptr);
  }
  png_write_info(png, info);
  const size_t stride = rows.size() / height;
  std::vector<png_bytep> pointers;
  for (uint32_t y = 0; y < height; ++y) {
    pointers.push_back(reinterpret_cast<png_bytep>(const_cast<char*>(rows.data() + y * stride)));
  }
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return out;
}

struct JpegOptions {
  J_COLOR_SPACE colors = JCS_RGB;  // of `pixels`; files are in gray, YCbCr or CMYK
  int components = 3;
  int quality = 90;
  bool progressive = false;
};

// `pixels`: [height, width, components].
inline std::string EncodeJpeg(uint32_t width, uint32_t height, const std::string& pixels,
                              const JpegOptions& options = {}) {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;  // NOLINT: the library's type
  jpeg_mem_dest(&info, &memory, &size);
  info.image_width = width;
  info.image_height = height;
  info.input_components = options.components;
  info.in_color_space = options.colors;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, options.quality, TRUE);
  if (options.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < height) {
    const char* at = pixels.data() + size_t{info.next_scanline} * width * options.components;
    JSAMPROW row = reinterpret_cast<JSAMPROW>(const_cast<char*>(at));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string out(reinterpret_cast<const char*>(memory), size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return out;
}

}  // namespace muster::data
