// Parses arbitrary bytes as a safetensors header: it is refused, or it covers its buffer without holes and survives a
// round trip.
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "checkpoint/safetensors.h"
#include "testing/fuzz.h"

namespace muster::fuzz {
namespace {

constexpr uint64_t kBufferBytes = 96;

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

}  // namespace

std::vector<std::string> Seeds() {
  return {
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[36],"data_offsets":[24,96]}})",
      R"({"__metadata__":{"format":"pt","a@4":"4 2x8"},"a@4":{"dtype":"F32","shape":[24],"data_offsets":[0,96]}})",
      R"({"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"y":{"dtype":"F64","shape":[11],"data_offsets":[8,96]}})",
      R"({"e":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"f":{"dtype":"U8","shape":[96],"data_offsets":[0,96]}})",
      "{}"};
}

std::vector<std::string> Words() {
  return {"{",
          "}",
          "[",
          "]",
          ",",
          ":",
          "\"",
          "\\u0000",
          "\"dtype\"",
          "\"shape\"",
          "0",
          "-1",
          "1e3",
          "18446744073709551615",
          "18446744073709551616",
          "4611686018427387904",
          "\"data_offsets\"",
          "\"__metadata__\"",
          "\"F32\"",
          "null",
          "true",
          " ",
          "\n",
          "\xFF",
          "\"a\":"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;              // NOLINT: a function of its own
  using namespace muster::fuzz;        // NOLINT
  using namespace muster::checkpoint;  // NOLINT
  const auto header = ParseHeader({reinterpret_cast<const char*>(data), size}, kBufferBytes);
  if (!header.ok()) {
    if (header.status().message().empty()) Fail("an error without a message");
    return 0;
  }
  uint64_t covered = 0;
  for (const TensorEntry& tensor : header->tensors) {
    uint64_t bytes = DtypeBytes(tensor.dtype);
    if (bytes == 0) Fail("a dtype of no size: " + tensor.dtype);
    for (const uint64_t extent : tensor.shape) bytes *= extent;
    if (tensor.begin != covered || tensor.end - tensor.begin != bytes) Fail("a hole, an overlap or a wrong size");
    covered = tensor.end;
  }
  if (covered != kBufferBytes) Fail("not all of the buffer is covered");
  const std::string encoded = EncodeHeader(*header);
  const auto again = ParseHeader(std::string_view(encoded).substr(8), kBufferBytes);
  if (!again.ok()) Fail("what was written does not read: " + again.status().ToString());
  if (!(*again == *header)) Fail("what was written reads as something else");
  return 0;
}
