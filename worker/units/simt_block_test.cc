// The block that a GPU runs programs with (cuda/simt_block.h), by a thread for each of its threads, against the loop
// that stands in for it on a CPU.
#include "worker/units/cuda/simt_block.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "worker/units/cuda/adamw_program.h"
#include "worker/units/cuda/host_block.h"
#include "worker/units/cuda/llama_programs.h"
#include "worker/units/cuda/row_programs.h"
#include "worker/units/float64_test.h"

namespace muster::units {
namespace {

using programs::kWarp;

// What launch.cu has as intrinsics, by a thread of the CPU for each thread of a block: shuffles through memory between
// barriers of the warp.
template <int kThreads>
class Threads {
 public:
  Threads() : block_(kThreads), exchanged_(kThreads) {
    for (int warp = 0; warp < kThreads / kWarp; ++warp) warps_.push_back(std::make_unique<std::barrier<>>(kWarp));
  }

  // run(hardware of one thread) by all threads.
  template <typename F>
  void Run(const F& run) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { run(One{this, t}); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct alignas(16) Bytes {
    char bytes[16];
  };
  struct One {
    Threads* all;
    int id;

    int thread() const { return id; }
    void Sync() const { all->block_.arrive_and_wait(); }
    template <typename S>
    S ShuffleDown(const S& value, int lanes) const {
      return From(value, id % kWarp + lanes < kWarp ? id + lanes : id);
    }
    template <typename S>
    S First(const S& value) const {
      return From(value, id - id % kWarp);
    }
    template <typename S>
    S* Shared() const {
      static_assert(sizeof(S) * (kThreads / kWarp) <= sizeof(all->shared_));
      return reinterpret_cast<S*>(all->shared_);
    }

   private:
    template <typename S>
    S From(const S& value, int other) const {
      static_assert(sizeof(S) <= sizeof(Bytes));
      std::barrier<>& warp = *all->warps_[static_cast<size_t>(id / kWarp)];
      std::memcpy(all->exchanged_[static_cast<size_t>(id)].bytes, &value, sizeof(S));
      warp.arrive_and_wait();
      S result;
      std::memcpy(&result, all->exchanged_[static_cast<size_t>(other)].bytes, sizeof(S));
      warp.arrive_and_wait();
      return result;
    }
  };

  std::barrier<> block_;
  std::vector<std::unique_ptr<std::barrier<>>> warps_;
  std::vector<Bytes> exchanged_;
  Bytes shared_[32];
};

// Runs a program block by block, each by threads at once.
template <int kThreads, typename Program>
void RunByThreads(const Program& program) {
  Threads<kThreads> threads;
  const programs::Grid grid = program.grid();
  threads.Run([&](const auto& hardware) {
    const programs::SimtBlock<kThreads, std::decay_t<decltype(hardware)>> block(hardware);
    for (int64_t y = 0; y < grid.y; ++y) {
      for (int64_t x = 0; x < grid.x; ++x) {
        hardware.Sync();  // as one launch after another
        program(block, {x, y});
      }
    }
  });
}

// Both kinds of block give the same bits, of a program that writes to `outputs`. Of fewer threads than on a GPU, for
// the test's time: one warp, and two.
template <int kThreads = 2 * kWarp, typename Program>
void ExpectSameBits(const Program& program, const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> before, expected;
  for (const at::Tensor& t : outputs) before.push_back(t.clone());
  const programs::Grid grid = program.grid();
  const programs::HostBlock<kThreads> block;
  for (int64_t y = 0; y < grid.y; ++y) {
    for (int64_t x = 0; x < grid.x; ++x) program(block, {x, y});
  }
  for (const at::Tensor& t : outputs) expected.push_back(t.clone());
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(before[i]);
  RunByThreads<kThreads>(program);
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(outputs[i].equal(expected[i])) << Program::kName << ", output " << i;
    EXPECT_FALSE(outputs[i].equal(before[i])) << Program::kName << ", output " << i << " was not written";
  }
}

TEST(SimtBlock, GivesTheBitsOfTheLoopThatStandsInForIt) {
  using F = float;
  for (const int width : {1, 150}) {
    SCOPED_TRACE(width);
    const int64_t rows = 2;
    const auto numbers = [&](int seed) { return NormalNumbers({rows, width}, at::kFloat, seed, 2); };
    const auto p = [](const at::Tensor& t) { return t.mutable_data_ptr<F>(); };
    const at::Tensor x = numbers(1), d = numbers(2), w = numbers(3)[0], b = numbers(4)[0], out = numbers(5),
                     dx = numbers(6);
    const at::Tensor statistics = at::full({rows, 2}, 0.5f), partial = at::zeros({2, width}),
                     total = at::zeros({2, width});
    const at::Tensor targets = at::zeros({rows}, at::kLong), losses = at::zeros({rows}),
                     loss = at::zeros({}, at::kDouble);
    ExpectSameBits(programs::Norm<F, F>{p(x), p(w), p(b), p(out), p(statistics), rows, width}, {out, statistics});
    ExpectSameBits(programs::NormBackward<F, F>{p(d), p(x), p(statistics), p(w), p(dx), rows, width},
                   width > 1 ? std::vector<at::Tensor>{dx} : std::vector<at::Tensor>{});
    ExpectSameBits(programs::AddAndNorm<F, F>{p(x), p(d), p(b), p(w), p(b), p(d), p(out), p(statistics), rows, width},
                   {d, statistics});
    using Vectors = programs::NormVectors<F, F>;
    ExpectSameBits(programs::ColumnTiles<Vectors>{Vectors{p(dx), p(x), p(statistics)}, p(partial), rows, width},
                   {partial});
    ExpectSameBits<kWarp>(programs::ColumnTotals<F, 2>{p(partial), {p(total), p(total[1])}, rows, width}, {total});
    if (width == 1) continue;  // a certain target has no loss
    ExpectSameBits(programs::CrossEntropy<F, F>{p(out), width, targets.mutable_data_ptr<int64_t>(), p(losses), 0.5f,
                                                nullptr, rows, width},
                   {out, losses});
    ExpectSameBits(programs::LossTotal<F>{p(losses), loss.mutable_data_ptr<double>(), rows}, {loss});
  }
}

TEST(SimtBlock, GivesTheBitsOfTheLoopInAdamWToo) {
  const int64_t elements = programs::kAdamWElements + 37;  // two blocks, and a rest that is no four
  const at::Tensor p = NormalNumbers({elements}, at::kFloat, 1), g = NormalNumbers({elements}, at::kFloat, 2);
  const at::Tensor m = at::zeros({elements}), v = at::zeros({elements}), c = at::zeros({elements}, at::kHalf);
  const auto run = [&](int64_t begin, int64_t length, int32_t end) {
    const auto at = [&](const at::Tensor& t) { return t.mutable_data_ptr<float>() + begin; };
    auto* const computed = reinterpret_cast<programs::Fp16*>(c.mutable_data_ptr<c10::Half>()) + begin;
    return programs::AdamWRun<programs::Fp16>{at(p), at(g), at(m), at(v), computed, length, end, 0.1f};
  };
  const int64_t first = elements - 16;
  programs::AdamWStep<programs::Fp16> program{.runs = {run(0, first, 2), run(first, 0, 2), run(first, 16, 3)},
                                              .count = 3};
  program.learning_rate = 0.1, program.beta1 = 0.9, program.beta2 = 0.99, program.step = 3, program.factor = 0.5;
  ExpectSameBits(program, {p, m, v, c});
}

TEST(SimtBlock, GivesTheBitsOfTheLoopInLlamasProgramsToo) {
  using F = float;
  for (const int width : {2, 150}) {
    SCOPED_TRACE(width);
    const int64_t rows = 4, heads = 2;
    const auto numbers = [&](int seed) { return NormalNumbers({rows, width}, at::kFloat, seed, 2); };
    const auto p = [](const at::Tensor& t) { return t.mutable_data_ptr<F>(); };
    const at::Tensor x = numbers(1), d = numbers(2), w = numbers(3)[0], out = numbers(4), dx = numbers(5);
    const at::Tensor statistics = at::full({rows}, 0.5f), partial = at::zeros({1, width}), gate_up = numbers(6);
    ExpectSameBits(programs::RmsNorm<F, F>{p(x), p(w), 0.1f, p(out), p(statistics), rows, width}, {out, statistics});
    ExpectSameBits(programs::RmsNormAgain<F, F>{p(dx), p(statistics), p(w), p(out), rows, width}, {out});
    ExpectSameBits(programs::AddAndRmsNorm<F, F>{p(x), p(d), p(w), 0.1f, p(d), p(out), p(statistics), rows, width},
                   {d, out, statistics});
    ExpectSameBits(programs::RmsNormBackward<F, F>{p(d), p(x), p(statistics), p(w), p(dx), rows, width}, {dx});
    using Vector = programs::RmsNormVector<F, F>;
    ExpectSameBits(programs::ColumnTiles<Vector>{Vector{p(d), p(x), p(statistics)}, p(partial), rows, width},
                   {partial});
    ExpectSameBits(programs::Add<F, F>{p(x), p(d), p(out), rows, width}, {out});
    // Half as many rows, of two heads or of gate and up.
    const programs::Heads<F> to{p(d), 2 * width, heads, width}, from{p(gate_up), 2 * width, heads, width};
    ExpectSameBits<kWarp>(programs::HeadNorm<F, F>{from, p(w), 0.1f, to, p(statistics), rows / heads}, {d, statistics});
    using HeadVector = programs::HeadNormVector<F, F>;
    ExpectSameBits(programs::ColumnTiles<HeadVector>{HeadVector{to, from, p(statistics)}, p(partial), rows, width},
                   {partial});
    ExpectSameBits<kWarp>(programs::HeadNormBackward<F, F>{to, from, p(statistics), p(w), rows / heads}, {d});
    ExpectSameBits(programs::Rope<F, F>{from, p(x), p(dx), 1, 2, 0, rows / heads}, {gate_up});
    ExpectSameBits(programs::SwiGlu<F, F>{p(gate_up), p(out), rows / 2, width}, {out});
    ExpectSameBits(programs::SwiGluBackward<F, F>{p(gate_up), p(x), p(out), p(gate_up), rows / 2, width}, {gate_up});
  }
}

}  // namespace
}  // namespace muster::units
