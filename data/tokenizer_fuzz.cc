// Opens arbitrary bytes as a tokenizer.json: they are refused with a message that names the file, or the tokenizer
// encodes text, in parts as at once, and decodes what it encoded.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "testing/fuzz.h"
#include "testing/memory_folder.h"

namespace muster::fuzz {
namespace {

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

const std::string& Folder() {
  static const auto& folder = *new MemoryFolder;
  return folder.path();
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string model = R"("model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]})";
  const std::string decoder = R"("decoder": {"type": "ByteLevel"})";
  return {
      "{" + model + ", " + decoder + R"json(, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true}})json",
      "{" + model + ", " + decoder + R"json(, "normalizer": {"type": "NFC"}, "pre_tokenizer": {"type": "Sequence",
            "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(?i:'s)|\\p{L}+|[^\\s\\x{e9}]{1,3}| +(?!\\S)"},
            "behavior": "MergedWithNext", "invert": false}, {"type": "Digits", "individual_digits": false},
            {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]}, "added_tokens": [{"id": 3,
            "content": "xy", "single_word": true, "lstrip": true, "rstrip": true, "normalized": true,
            "special": false}]})json"};
}

std::vector<std::string> Words() {
  return {"\"Regex\"",  "\"String\"", "(?:", "(?i:", "(?!", "(?>",  "[^",     "\\\\p{Lu}", "{2,5}", "+?",   "|",
          "Contiguous", "Removed",    "xy",  " ",    "id",  "null", "\u0301", "\\\\s",     "true",  "false"};
}

}  // namespace muster::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;        // NOLINT: a function of its own
  using namespace muster::fuzz;  // NOLINT
  const std::string path = Folder() + "/tokenizer.json";
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = data::Tokenizer::Load(path);
  if (!tokenizer.ok()) {
    if (tokenizer.status().message().find(Folder()) == absl::string_view::npos) {
      Fail("an error that does not name the file: " + tokenizer.status().ToString());
    }
    return 0;
  }
  const std::string_view text = "ab's  x xy 12\n\u00e9e\u0301 xyab\xff \u4e16";
  std::vector<uint32_t> whole, parts;
  if (!(*tokenizer)->Encode(text, whole).ok()) return 0;
  for (size_t at = 0; at < text.size(); at += 3) {
    if (!(*tokenizer)->EncodePart(text.substr(at, 3), /*last=*/false, parts).ok()) return 0;
  }
  if (!(*tokenizer)->EncodePart("", /*last=*/true, parts).ok()) return 0;
  if (whole != parts) Fail("a stream in parts has other ids");
  for (const uint32_t id : whole) {
    if (id >= (*tokenizer)->vocabulary()) Fail("an id outside of the vocabulary");
  }
  (*tokenizer)->Decode(whole);
  return 0;
}
