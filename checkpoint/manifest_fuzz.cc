// Replaces one file of an intact checkpoint with arbitrary bytes: its manifest (with a matching checksum, as a writer
// of another version would leave it) or the checksums of its shard. The checkpoint is refused, or reads return what was
// written.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "common/sha256.h"
#include "testing/fuzz.h"
#include "testing/memory_folder.h"

namespace muster::fuzz {
namespace {

using namespace muster::checkpoint;  // NOLINT: all of it is about one

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

std::string Text(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void Put(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

struct Sample {
  MemoryFolder folder;
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::string directory, manifest, sums;

  Sample() {
    Manifest original;
    original.set_step(7);
    original.set_generation(1);
    original.mutable_table()->set_shards(1);
    const TensorRun run{.name = "a", .shape = {2, 3}, .begin = 0, .values = absl::MakeSpan(values)};
    const auto written = Write(folder.path(), original, {run});
    if (!written.ok()) Fail(written.status().ToString());
    directory = folder.path() + "/" + written->name.Directory();
    manifest = Text(directory + "/manifest.json");
    sums = Text(directory + "/shard-00000.sha256");
  }
};

Sample& TheSample() {
  static Sample& sample = *new Sample;
  return sample;
}

}  // namespace

// The first byte says what the rest is: 'm' the manifest, 's' the shard's checksums.
std::vector<std::string> Seeds() { return {"m" + TheSample().manifest, "s" + TheSample().sums, "m{}", "s"}; }

std::vector<std::string> Words() {
  return {"{",         "}",           "[",         "]",           ",",          ":",
          "\"",        "\\u0000",     "\"step\":", "\"shards\":", "\"table\":", "\"bytes\":",
          "\"file\":", "\"sha256\":", "\"7\"",     "-1",          "1e9",        "18446744073709551615",
          "null",      "../",         "\n",        "  ",          "\xFF",       "m",
          "s",         "4294967295"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;        // NOLINT: a function of its own
  using namespace muster::fuzz;  // NOLINT
  if (size == 0) return 0;
  Sample& sample = TheSample();
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string& manifest = data[0] == 'm' ? bytes : sample.manifest;
  Put(sample.directory + "/manifest.json", manifest);
  Put(sample.directory + "/manifest.sha256", absl::StrCat(Sha256Hex(manifest), "  manifest.json\n"));
  Put(sample.directory + "/shard-00000.sha256", data[0] == 's' ? bytes : sample.sums);
  for (const Verification how : {Verification::kAsRead, Verification::kEveryByte}) {
    const auto checkpoint = checkpoint::Checkpoint::Open(sample.directory, how);
    if (!checkpoint.ok()) {
      if (checkpoint.status().message().find(sample.directory) == absl::string_view::npos) {
        Fail("an error that does not name the folder: " + checkpoint.status().ToString());
      }
      continue;
    }
    std::vector<float> values(sample.values.size());
    const TensorRun run{.name = "a", .shape = {2, 3}, .begin = 0, .values = absl::MakeSpan(values)};
    if (checkpoint->Read(run).ok() && values != sample.values) Fail("another value was read than was written");
  }
  return 0;
}
