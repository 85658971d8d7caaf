// What a fuzzed decoder gives: libFuzzer's entry, and where to begin. The entry aborts when a promise is broken.
//
// `fuzz_test` calls it with seeded mutations for 20 seconds, in every configuration of the tests; bench/fuzz.sh under
// libFuzzer, which follows the branches that are taken, for as long as requested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace muster::fuzz {

// Whole inputs, good and nearly good.
std::vector<std::string> Seeds();
// What inputs are made of: inserted at any place.
std::vector<std::string> Words();

}  // namespace muster::fuzz
