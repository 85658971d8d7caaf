// What a fuzzed decoder provides: libFuzzer's entry, and seeds. The entry aborts when a property is violated.
//
// `fuzz_test` calls it with seeded mutations for 3 seconds, in every configuration of the tests; bench/fuzz.sh runs it
// under libFuzzer, which follows the covered branches, for any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace muster::fuzz {

// Whole inputs, valid and nearly valid.
std::vector<std::string> Seeds();
// Building blocks of inputs, inserted at any position.
std::vector<std::string> Words();

}  // namespace muster::fuzz
