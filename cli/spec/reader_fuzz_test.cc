// The fuzzer's entry under seeded mutations, for about two seconds, in every configuration of the tests.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using std::chrono::steady_clock;

constexpr auto kBudget = std::chrono::seconds(2);
// Far above what any input takes, so that only a hang or a quadratic parser exceeds it, on a loaded machine too.
constexpr auto kLongest = std::chrono::seconds(10);

const std::vector<std::string>& Corpus() {
  static const auto& corpus = *new std::vector<std::string>{
      "apiVersion: muster/v1\nkind: Job\nname: gpt2-tiny\nmodel: {family: gpt2, size: tiny}\n"
      "data: {tokens: train.bin, validation: val.bin, order: sequential}\nstrategy: {kind: fsdp, reshard: full_shard}\n"
      "resources: {ranks: 2, device: auto}\nbatch: {sequences: 64, microbatch: 8}\n"
      "precision: {compute: bf16, reduce: fp32}\noptimizer: {kind: adamw, lr: 3e-4, weight_decay: 0.1, clip_norm: "
      "1.0}\n"
      "steps: 1000\nseed: 1\ncheckpoint: {path: runs/gpt2-tiny, every_steps: 100, keep: 2}\nmax_restarts: 3\n",
      "apiVersion: muster/v1\nkind: Job\noptimizer:\n  kind: sgd\n  momentum: .9\n  nesterov: true\n  lr_schedule:\n"
      "    kind: cosine\n    min_lr: 1e-5\n    warmup_steps: 0x10\nmodel:\n  family: gpt2\n  layers: 2\n",
      "apiVersion: \"muster/v1\"\nkind: 'Job'\nname: |\n  a\n  b\ndata:\n  tokens: >-\n    x\n    y\n",
      "%YAML 1.2\n---\napiVersion: muster/v1\nkind: Job\n...\n",
      "{apiVersion: muster/v1, kind: Job, name: \"\\u00e4\\x41\\n\"}",
      "a: &x [1, {b: *x}]\n<<: !!map {}\n? [k]\n: v\n",
  };
  return corpus;
}

const std::vector<std::string>& Dictionary() {
  static const auto& words = *new std::vector<std::string>{"\n",
                                                           "\n  ",
                                                           ": ",
                                                           "- ",
                                                           "{",
                                                           "}",
                                                           "[",
                                                           "]",
                                                           ",",
                                                           "\"",
                                                           "'",
                                                           "\\",
                                                           "#",
                                                           "&a ",
                                                           "*a",
                                                           "!!",
                                                           "!<",
                                                           "|\n",
                                                           ">\n",
                                                           "? ",
                                                           "<<: ",
                                                           "---\n",
                                                           "...\n",
                                                           "%TAG ! !\n",
                                                           "\t",
                                                           "\r",
                                                           "\r\n",
                                                           "~",
                                                           "null",
                                                           ".nan",
                                                           "1e99",
                                                           "-",
                                                           "kind: ",
                                                           "zero",
                                                           "stage",
                                                           "\xEF\xBB\xBF",
                                                           "\xFF",
                                                           "\x04",
                                                           std::string(1, '\0'),
                                                           "0o7",
                                                           "99999999999999999999",
                                                           "optimizer:",
                                                           "\\u2028",
                                                           "\\x00",
                                                           "\xC2\x85",
                                                           "@",
                                                           "`"};
  return words;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  std::string Next() {
    std::string text = Pick(Corpus());
    const int edits = 1 + static_cast<int>(random_() % 8);
    for (int i = 0; i < edits; ++i) Edit(text);
    return text;
  }

 private:
  template <typename T>
  const T& Pick(const std::vector<T>& from) {
    return from[random_() % from.size()];
  }
  size_t At(const std::string& text) { return random_() % (text.size() + 1); }

  void Edit(std::string& text) {
    const size_t at = At(text);
    switch (random_() % 8) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return;
      case 1:
        text.insert(at, Pick(Dictionary()));
        return;
      case 2:
        text.erase(at, random_() % 16);
        return;
      case 3:
        text.resize(at);
        return;
      case 4: {
        const std::string piece = text.substr(at, random_() % 64);
        text.insert(At(text), piece);
        return;
      }
      case 5: {
        const std::string& other = Pick(Corpus());
        text.insert(at, other, random_() % other.size(), random_() % 128);
        return;
      }
      case 6: {
        // Runs find what is quadratic or recursive.
        std::string run;
        const std::string& word = Pick(Dictionary());
        for (size_t n = random_() % 2000; n > 0; --n) run += word;
        text.insert(at, run);
        return;
      }
      default:
        if (at < text.size()) std::swap(text[at], text[random_() % text.size()]);
    }
  }

  std::mt19937_64 random_;
};

TEST(ReaderFuzz, SeededMutationsNeitherCrashNorHang) {
  for (const std::string& text : Corpus())
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const auto start = steady_clock::now();
  uint64_t seed = 0;
  for (; steady_clock::now() - start < kBudget; ++seed) {
    const std::string text = Mutator(seed).Next();
    const auto before = steady_clock::now();
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    ASSERT_LT(steady_clock::now() - before, kLongest) << "seed " << seed << ":\n" << text;
  }
  RecordProperty("inputs", static_cast<int>(seed));
  EXPECT_GT(seed, 50u) << "too slow to find anything";
}

// A full-size file of one repeated token: what is quadratic in yaml-cpp would show here.
TEST(ReaderFuzz, LongRunsOfEachTokenEnd) {
  for (const std::string& word : Dictionary()) {
    std::string text;
    while (text.size() < 8'000) text += word;
    const auto before = steady_clock::now();
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    EXPECT_LT(steady_clock::now() - before, kLongest) << word;
  }
}

}  // namespace
