// Opens arbitrary bytes as an image file, or (by the first byte) as the sidecar of one: it is refused with a message
// that names the file, or all of its images can be read.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "data/images/image_file.h"
#include "testing/fuzz.h"
#include "testing/memory_folder.h"

namespace muster::fuzz {
namespace {

const std::string& ImagesFolder() {
  static const auto& folder = *new MemoryFolder;
  return folder.path();
}

constexpr char kSidecarSeed[] =
    R"({"format": "muster-images", "version": 1, "images": 4, "channels": 1, "height": 2, "width": 3,
        "label_bytes": 2, "classes": 300, "class_names": []})";

}  // namespace

// The first byte says what the rest is: 's' the sidecar of 32 bytes, else images.
std::vector<std::string> Seeds() {
  std::vector<std::string> seeds = {"i" + std::string(data::kCifar10Record, '\1'),
                                    "i" + std::string(2 * data::kCifar100Record, '\1'), "i\x1f\x8b",
                                    std::string("s") + kSidecarSeed};
  data::ImageSidecar sidecar{.images = 2, .channels = 3, .height = 5, .width = 1, .classes = 2};
  sidecar.class_names = {"a", "b"};
  seeds.push_back("s" + data::ToJson(sidecar));
  return seeds;
}

std::vector<std::string> Words() {
  return {"\"images\": ",
          "\"height\": ",
          "\"label_bytes\": 1",
          "18446744073709551615",
          "4294967296",
          "65536",
          "-1",
          "1e400",
          "null",
          "[[[[[[[[",
          "s",
          "i"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;        // NOLINT: a function of its own
  using namespace muster::fuzz;  // NOLINT
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool sidecar = data[0] == 's';
  const std::string path = ImagesFolder() + (sidecar ? "/described" : "/plain");
  std::ofstream(path, std::ios::binary | std::ios::trunc) << (sidecar ? std::string(32, '\1') : std::string(bytes));
  if (sidecar) std::ofstream(path + ".json", std::ios::binary | std::ios::trunc) << bytes;
  const auto file = data::ImageFile::Open(path);
  if (!file.ok()) {
    if (file.status().message().find(path) != absl::string_view::npos) return 0;
    std::fprintf(stderr, "an error that does not name the file: %s\n", file.status().ToString().c_str());
    std::abort();
  }
  std::vector<uint8_t> pixels(uint64_t{file->channels()} * file->height() * file->width());
  for (uint64_t i = 0; i < file->images(); ++i) {
    uint32_t label = 0;
    if (const absl::Status status = file->Read(i, absl::MakeSpan(pixels), label); !status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      std::abort();
    }
  }
  return 0;
}
