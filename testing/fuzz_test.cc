// See fuzz.h. $MUSTER_FUZZ_SECONDS: run time (default 3); $MUSTER_FUZZ_SEEDS: instead writes the seeds into that
// folder, and the words as a dictionary beside it, for libFuzzer.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include "testing/fuzz.h"

namespace muster::fuzz {
namespace {

// Of a core, so that a busy machine changes neither what is tried nor what counts as slow.
std::chrono::nanoseconds CpuTime() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// Far above what any input takes, so that only a quadratic decoder exceeds it. A hang ends by the test's time limit.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr auto kLongest = std::chrono::seconds(100);
#else
constexpr auto kLongest = std::chrono::seconds(10);
#endif
constexpr uint64_t kLeastInputs = 30;
constexpr size_t kLargest = 16 << 10;

void Decode(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string Next() {
    std::string text = Pick(seeds_);
    const int edits = 1 + static_cast<int>(random_() % 8);
    for (int i = 0; i < edits; ++i) Edit(text);
    if (text.size() > kLargest) text.resize(kLargest);
    return text;
  }

 private:
  const std::string& Pick(const std::vector<std::string>& from) { return from[random_() % from.size()]; }
  size_t At(const std::string& text) { return random_() % (text.size() + 1); }

  void Edit(std::string& text) {
    const size_t at = At(text);
    switch (random_() % 9) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << random_() % 8));
        return;
      case 2:
        text.insert(at, Pick(words_));
        return;
      case 3:
        text.erase(at, random_() % 16);
        return;
      case 4:
        text.resize(at);
        return;
      case 5: {
        const std::string piece = text.substr(at, random_() % 64);
        text.insert(At(text), piece);
        return;
      }
      case 6: {
        const std::string& other = Pick(seeds_);
        text.insert(at, other, random_() % (other.size() + 1), random_() % 128);
        return;
      }
      case 7: {
        // Repetition finds quadratic and recursive behavior.
        std::string run;
        const std::string& word = Pick(words_);
        for (size_t n = random_() % 2000; n > 0; --n) run += word;
        text.insert(at, run);
        return;
      }
      default:
        if (at < text.size()) std::swap(text[at], text[random_() % text.size()]);
    }
  }

  const std::vector<std::string> seeds_ = Seeds();
  const std::vector<std::string> words_ = Words();
  std::mt19937_64 random_;
};

// In libFuzzer's format: a quoted string on each line, with \xAB for other bytes.
void WriteForLibFuzzer(const std::string& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const std::string& seed : Seeds()) {
    std::ofstream(folder + "/seed-" + std::to_string(number++), std::ios::binary) << seed;
  }
  std::ofstream dictionary(folder + ".dict");
  for (const std::string& word : Words()) {
    dictionary << '"';
    for (const unsigned char c : word) {
      char hex[5];
      std::snprintf(hex, sizeof(hex), "\\x%02X", c);
      dictionary << hex;
    }
    dictionary << "\"\n";
  }
}

TEST(Fuzz, SeededMutationsNeitherCrashNorHang) {
  if (const char* folder = getenv("MUSTER_FUZZ_SEEDS")) return WriteForLibFuzzer(folder);
  const char* const text = getenv("MUSTER_FUZZ_SECONDS");
  const auto budget = std::chrono::seconds(text == nullptr ? 3 : std::atoi(text));
  for (const std::string& seed : Seeds()) Decode(seed);
  const auto start = CpuTime();
  Mutator mutator(1);
  uint64_t inputs = 0;
  // A slow decoder takes longer: few inputs find nothing.
  for (; CpuTime() - start < budget || inputs < kLeastInputs; ++inputs) {
    const std::string input = mutator.Next();
    const auto before = CpuTime();
    Decode(input);
    ASSERT_LT(CpuTime() - before, kLongest) << "input " << inputs << ":\n" << input;
  }
  std::printf("%llu inputs\n", static_cast<unsigned long long>(inputs));
}

// A full-size input of one repeated word shows quadratic behavior.
TEST(Fuzz, LongRunsOfEachWordEnd) {
  for (const std::string& word : Words()) {
    std::string text;
    while (text.size() < 8'000) text += word;
    const auto before = CpuTime();
    Decode(text);
    EXPECT_LT(CpuTime() - before, kLongest) << word;
  }
}

}  // namespace
}  // namespace muster::fuzz
