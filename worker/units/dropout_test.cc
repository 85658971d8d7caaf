// What is dropped is what the header says, by Philox of common/ (which has the published vectors), and the blocks that
// drop are those of LibTorch's operators and autograd with the same factors.
#include "worker/units/dropout.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "models/inventory.h"
#include "worker/units/cuda/device_rows.h"
#include "worker/units/float64_test.h"
#include "worker/units/unit.h"

namespace muster::units {
namespace {

float FactorOf(const DropoutPlace& p, uint64_t sample, uint64_t element) {
  const uint64_t block = element / 4;
  const uint32_t word =
      Philox(p.seed ^ kDropoutKey,
             {static_cast<uint32_t>(block), static_cast<uint32_t>(p.first_sample + sample + ((block >> 32) << 20)),
              p.step, p.place})[element % 4];
  return word >= p.rate * 0x1p32 ? static_cast<float>(1 / (1 - p.rate)) : 0;
}

TEST(Dropout, FactorsAreThoseOfTheirPlace) {
  for (const double rate : {0.1, 0.5, 0.93}) {
    const DropoutPlace place{.rate = rate, .seed = 77, .step = 12, .place = 9, .first_sample = 5};
    for (const int64_t first : {int64_t{0}, int64_t{3}, int64_t{1001}, (int64_t{1} << 34) - 6}) {
      for (const int64_t n : {1, 7, 300, 1000}) {
        std::vector<float> factors(static_cast<size_t>(n));
        DropoutFactors(place, 2, first, n, factors.data());
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(factors[static_cast<size_t>(i)], FactorOf(place, 2, static_cast<uint64_t>(first + i))) << first + i;
        }
      }
    }
  }
}

// By the CPU's code and by the programs of GPUs, from any row on.
TEST(Dropout, RowsTakeTheFactorsOfTheirSample) {
  const DropoutPlace place{.rate = 0.3, .seed = 1, .step = 2, .place = 3, .first_sample = 4};
  const int64_t tokens = 5, width = 13, first_row = 7, rows = 11;
  const at::Tensor t = at::ones({rows, width}), device = at::empty({rows, width});
  DropRows(place, tokens, first_row, t);
  device::DropoutFactors(place, tokens, first_row, device);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t row = first_row + r;
    for (int64_t i = 0; i < width; ++i) {
      const float right =
          FactorOf(place, static_cast<uint64_t>(row / tokens), static_cast<uint64_t>(row % tokens * width + i));
      ASSERT_EQ(t[r][i].item<float>(), right);
      ASSERT_EQ(device[r][i].item<float>(), right);
    }
  }
  const at::Tensor all = DropoutFactors(place, 3, tokens, width, at::kCPU);
  EXPECT_TRUE(all.narrow(0, first_row, 3 * tokens - first_row).equal(t.narrow(0, 0, 3 * tokens - first_row)));
}

// Two runs, beside each other and apart; all rows; and the queries of an attention of three heads to some of the keys.
// Places are written out, not computed as the code under test does.
TEST(Dropout, SomeRowsOfASampleTakeTheirOwnFactors) {
  struct Some {
    const char* name;
    DropoutRows rows;
    int64_t width, sample_width, first_element;
    std::vector<int64_t> places;  // of the tensor's rows in a sample
  };
  const std::vector<Some> all = {
      {"runs apart", {.begin = 2, .size = 2, .apart = 10}, 13, 13, 0, {2, 3, 12, 13}},
      {"runs beside each other", {.begin = 4, .size = 3, .apart = 3}, 5, 5, 0, {4, 5, 6, 7, 8, 9}},
      {"of one row", {.begin = 1, .size = 1, .apart = 7}, 300, 300, 0, {1, 8, 15}},
      {"all", {}, 7, 7, 1001, {0, 1, 2, 3, 4}},
      {"one run that has all", {.begin = 0, .size = 4}, 7, 7, 3, {0, 1, 2, 3}},
      {"one run", {.begin = 6, .size = 3}, 7, 7, 3, {6, 7, 8}},
      {"queries 3 and 4 of 9 tokens, keys up to these",
       {.begin = 3, .size = 2, .apart = 9, .width = 9},
       5,
       9,
       2 * 81,
       {3, 4, 12, 13, 21, 22}},
      {"those of one head", {.begin = 3, .size = 2, .apart = 9, .width = 9}, 5, 9, 81, {3, 4}}};
  for (const Some& some : all) {
    SCOPED_TRACE(some.name);
    DropoutPlace place{.rate = 0.3, .seed = 1, .step = 2, .place = 3, .first_sample = 4};
    place.first_element = some.first_element, place.rows = some.rows;
    const auto rows = static_cast<int64_t>(some.places.size());
    const auto right = [&](int64_t row, int64_t column) {
      const int64_t in_sample = some.places[static_cast<size_t>(row % rows)];
      return FactorOf(place, static_cast<uint64_t>(row / rows),
                      static_cast<uint64_t>(some.first_element + in_sample * some.sample_width + column));
    };
    const at::Tensor factors = DropoutFactors(place, 3, rows, some.width, at::kCPU);
    const at::Tensor programs = at::empty({3 * rows, some.width});
    device::DropoutFactors(place, rows, 0, programs);
    const int64_t first_row = rows - 1, most = 2 * rows;  // from the last row of a sample on
    const at::Tensor dropped = at::ones({most, some.width}), from = at::empty({most, some.width});
    DropRows(place, rows, first_row, dropped);
    device::DropoutFactors(place, rows, first_row, from);
    for (int64_t r = 0; r < 3 * rows; ++r) {
      for (int64_t i = 0; i < some.width; ++i) {
        ASSERT_EQ(factors[r][i].item<float>(), right(r, i)) << r << ", " << i;
        ASSERT_EQ(programs[r][i].item<float>(), right(r, i)) << r << ", " << i;
        if (r < first_row || r >= first_row + most) continue;
        ASSERT_EQ(dropped[r - first_row][i].item<float>(), right(r, i)) << r << ", " << i;
        ASSERT_EQ(from[r - first_row][i].item<float>(), right(r, i)) << r << ", " << i;
      }
    }
    const at::Tensor y = at::ones({3, rows, some.width}, at::kDouble);
    EXPECT_TRUE(Dropped(place, y).equal(factors.view(y.sizes()).to(at::kDouble)));
  }
}

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  for (const double rate : {0.1, 0.5}) {
    const int64_t n = 200'000;
    const at::Tensor factors = DropoutFactors({.rate = rate, .seed = 3}, 1, 1, n, at::kCPU);
    const double deviation = std::sqrt(rate * (1 - rate) / static_cast<double>(n));
    EXPECT_NEAR(factors.eq(0).to(at::kDouble).mean().item<double>(), rate, 5 * deviation);
    EXPECT_NEAR(factors.mean().item<double>(), 1, 5 * deviation / (1 - rate));
  }
}

TEST(Dropout, AnotherSeedStepPlaceOrSampleDropsOthers) {
  const DropoutPlace place{.rate = 0.5, .seed = 3, .step = 4, .place = 5, .first_sample = 6};
  const at::Tensor factors = DropoutFactors(place, 1, 1, 4096, at::kCPU);
  std::vector<DropoutPlace> others(4, place);
  ++others[0].seed, ++others[1].step, ++others[2].place, ++others[3].first_sample;
  for (const DropoutPlace& other : others) {
    const at::Tensor its = DropoutFactors(other, 1, 1, 4096, at::kCPU);
    const double equal = its.eq(factors).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(equal, 0.5, 0.05) << "as chance has it";
  }
}

Train DroppingJob(bool llama, uint32_t window = 0) {
  Train train;
  if (llama) {
    Llama& m = *train.mutable_model()->mutable_llama();
    m.set_layers(1), m.set_heads(4), m.set_key_value_heads(2), m.set_width(16), m.set_head_width(6), m.set_inner(21);
    m.set_vocabulary(19), m.set_context(70);
    if (window > 0) m.set_window(window);
  } else {
    Gpt2& m = *train.mutable_model()->mutable_gpt2();
    m.set_layers(1), m.set_heads(3), m.set_width(12), m.set_vocabulary(19), m.set_context(70);
  }
  return train;
}

// Forward, recomputation and backward of one unit.
struct DroppingUnit {
  std::vector<Parameter> parameters;
  std::unique_ptr<UnitModule> module;
  at::Tensor y, dx;

  DroppingUnit(const Inventory& inventory, int index, UnitOptions options, const Context& context, const at::Tensor& x,
               const at::Tensor& d) {
    options.index = index;
    int seed = 1;
    for (const Tensor& tensor : inventory.units(index).tensors()) {
      const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
      const at::Tensor value = NormalNumbers(shape, at::kDouble, ++seed, 0.3);
      parameters.push_back({value, at::zeros_like(value)});
    }
    module = MakeUnit(inventory, inventory.units(index), parameters, options).value();
    const c10::AutoGradMode off(false);
    const Activations in = x.defined() ? Activations{x} : Activations{};
    Saved saved, again;
    y = module->Forward(context, in, saved)[0].clone();
    Context recompute = context;
    recompute.mode = Mode::kRecompute;
    EXPECT_TRUE(module->Forward(recompute, in, again)[0].equal(y)) << "computed again";
    const Activations back = module->Backward(context, std::move(again), {d.clone()});
    if (!back.empty()) dx = back[0];
  }
};

double Off(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

TEST(Dropout, FusedBlocksDropAsThoseOfOperators) {
  for (const auto& [llama, window] : {std::pair(false, 0u), std::pair(true, 0u), std::pair(true, 9u)}) {
    const Inventory inventory = models::MakeInventory(DroppingJob(llama, window).model()).value();
    const int64_t samples = 3, tokens = 70, width = llama ? 16 : 12;
    const at::Tensor x = NormalNumbers({samples, tokens, width}, at::kDouble, 50),
                     d = NormalNumbers({samples, tokens, width}, at::kDouble, 51);
    Context context;
    context.samples = samples;
    for (const auto& [attention, residual] : {std::pair(0.0, 0.2), std::pair(0.3, 0.0), std::pair(0.25, 0.1)}) {
      context.dropout = {.attention = attention, .residual = residual, .seed = 9, .step = 4, .first_sample = 11};
      const DroppingUnit right(inventory, 1, {.portable = true}, context, x, d);
      Context none = context;
      none.dropout = {};
      EXPECT_GT(Off(DroppingUnit(inventory, 1, {.portable = true}, none, x, d).y, right.y), 0.1) << "nothing dropped";
      for (const RowCode rows : {RowCode::kVector, RowCode::kDevice}) {
        const DroppingUnit ours(inventory, 1, {.rows = rows}, context, x, d);
        EXPECT_LT(Off(ours.y, right.y), 1e-12) << llama << attention << window;
        EXPECT_LT(Off(ours.dx, right.dx), 1e-10) << llama << attention << window;
        for (size_t p = 0; p < ours.parameters.size(); ++p) {
          EXPECT_LT(Off(ours.parameters[p].gradient, right.parameters[p].gradient), 1e-9)
              << inventory.units(1).tensors(static_cast<int>(p)).name();
        }
      }
    }
  }
}

// Each residual branch against its formula: with the attention's output projection zero, the block adds the network
// alone, and what it adds is what it adds without dropout, times the factors of place 4 * index + 2.
TEST(Dropout, WhatABlockAddsIsMultipliedByItsFactors) {
  const Inventory inventory = models::MakeInventory(DroppingJob(false).model()).value();
  const int64_t samples = 2, tokens = 70, width = 12;
  const at::Tensor x = NormalNumbers({samples, tokens, width}, at::kDouble, 60);
  const auto added = [&](double residual) {
    std::vector<Parameter> parameters;
    int seed = 1;
    for (const Tensor& tensor : inventory.units(1).tensors()) {
      const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
      const bool projection = tensor.name().find("attn.c_proj") != std::string::npos;
      const at::Tensor value = NormalNumbers(shape, at::kDouble, ++seed, projection ? 0 : 0.3);
      parameters.push_back({value, at::zeros_like(value)});
    }
    UnitOptions options;
    options.index = 1;
    Context context;
    context.samples = samples;
    context.dropout = {.residual = residual, .seed = 8, .step = 3, .first_sample = 2};
    Saved saved;
    return MakeUnit(inventory, inventory.units(1), parameters, options).value()->Forward(context, {x}, saved)[0] - x;
  };
  const DropoutPlace place{.rate = 0.4, .seed = 8, .step = 3, .place = 6, .first_sample = 2};
  const at::Tensor factors = DropoutFactors(place, samples, tokens, width, at::kCPU).view(x.sizes());
  EXPECT_LT(Off(added(0.4), added(0) * factors), 1e-12);
}

TEST(Dropout, EmbeddingsDropInBothDirections) {
  const Inventory inventory = models::MakeInventory(DroppingJob(false).model()).value();
  const int64_t samples = 2, tokens = 70, width = 12;
  Context context;
  context.samples = samples;
  context.batch.Set(models::kInputs, at::zeros({samples, tokens}, at::kLong));
  const at::Tensor d = NormalNumbers({samples, tokens, width}, at::kDouble, 61);
  const DroppingUnit plain(inventory, 0, {}, context, {}, d);
  context.dropout = {.embedding = 0.4, .seed = 8, .step = 3, .first_sample = 2};
  const DroppingUnit dropped(inventory, 0, {}, context, {}, d);
  const DropoutPlace place{.rate = 0.4, .seed = 8, .step = 3, .place = 0, .first_sample = 2};
  const at::Tensor factors = DropoutFactors(place, samples, tokens, width, at::kCPU).view(d.sizes());
  EXPECT_LT(Off(dropped.y, plain.y * factors), 1e-12);
  EXPECT_LT(Off(dropped.parameters[1].gradient, (d * factors).sum(0)), 1e-12) << "of the positions";
  EXPECT_LT(Off(dropped.parameters[0].gradient[0], (d * factors).sum(0).sum(0)), 1e-11) << "of the only token";
}

}  // namespace
}  // namespace muster::units
