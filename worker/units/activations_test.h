// Compares what the units of a model hand on with what their inventory declares. Included by the tests that do so.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/units/activations.h"
#include "worker/units/unit.h"

namespace muster::units {

// One rank that synchronizes with itself.
class OneSampleRank final : public SampleRanks {
 public:
  at::Tensor Gather(const at::Tensor& values) override { return values.unsqueeze(0); }
  void Sum(const at::Tensor&) override {}
};

inline Context RandomContext(const Task& task, int64_t samples) {
  Context context;
  context.samples = samples;
  for (const BatchTensor& tensor : task.tensors()) {
    std::vector<int64_t> shape = {samples};
    shape.insert(shape.end(), tensor.shape().begin(), tensor.shape().end());
    const bool integers = tensor.type() == BatchTensor::INT64;
    context.batch.Set(tensor.name(), integers ? at::randint(static_cast<int64_t>(tensor.bound()), shape, at::kLong)
                                              : at::randn(shape));
  }
  context.loss_sum = at::zeros({}, at::kDouble);
  context.loss_scale = 1.0 / static_cast<double>(samples);
  return context;
}

// The type is spelled out here, not taken from the code under test. `outputs`: of `unit`, or the gradients of them.
inline void ExpectDeclared(const Unit& unit, int64_t samples, at::ScalarType compute, const Activations& outputs,
                           const std::string& what) {
  ASSERT_EQ(outputs.size(), static_cast<size_t>(unit.outputs_size())) << what << unit.name();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Activation& declared = unit.outputs(static_cast<int>(i));
    std::vector<int64_t> shape(declared.shape().begin(), declared.shape().end());
    shape.insert(shape.begin(), samples);
    EXPECT_EQ(outputs[i].sizes(), at::IntArrayRef(shape)) << what << unit.name();
    EXPECT_EQ(outputs[i].scalar_type(), declared.type() == Activation::FP32 ? at::kFloat : compute)
        << what << unit.name();
    EXPECT_TRUE(outputs[i].is_contiguous()) << what << unit.name();
  }
  EXPECT_TRUE(CheckActivations(unit, samples, compute, outputs).ok());
}

// A microbatch forward and backward, with parameters in `compute`: each unit's outputs, also those of a forward that
// saves nothing, and their gradients.
inline void ExpectDeclaredActivations(const Inventory& inventory, at::ScalarType compute, UnitOptions options,
                                      Context context, const std::string& name) {
  const c10::AutoGradMode off(false);
  const int64_t samples = context.samples;
  std::map<std::string, Parameter> parameters;
  std::vector<std::unique_ptr<UnitModule>> units;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) {
      const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
      parameters[tensor.name()] = {at::randn(shape).mul_(0.1).to(compute), at::zeros(shape)};
    }
  }
  for (int u = 0; u < inventory.units_size(); ++u) {
    const Unit& unit = inventory.units(u);
    std::vector<Parameter> own;
    for (const Tensor& tensor : unit.tensors()) own.push_back(parameters.at(tensor.name()));
    for (const Borrow& borrow : unit.borrows()) own.push_back(parameters.at(borrow.tensor()));
    options.index = u;
    options.buffers.clear();
    for (const Tensor& buffer : unit.buffers()) {
      const std::vector<int64_t> shape(buffer.shape().begin(), buffer.shape().end());
      options.buffers.push_back(at::full(shape, buffer.init().kind() == Initialisation::ONES ? 1 : 0, at::kFloat));
    }
    auto made = MakeUnit(inventory, unit, std::move(own), options);
    ASSERT_TRUE(made.ok()) << name << made.status();
    units.push_back(*std::move(made));
  }
  std::vector<Saved> saved(units.size());
  Activations flow;
  for (size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = inventory.units(static_cast<int>(u));
    Saved none;
    context.mode = Mode::kTrainUnsaved;
    ExpectDeclared(unit, samples, compute, units[u]->Forward(context, flow, none), name + ", unsaved: ");
    context.mode = Mode::kTrain;
    flow = units[u]->Forward(context, flow, saved[u]);
    ExpectDeclared(unit, samples, compute, flow, name + ": ");
  }
  for (size_t u = units.size(); u-- > 0;) {
    flow = units[u]->Backward(context, std::move(saved[u]), flow);
    if (u == 0) continue;
    ExpectDeclared(inventory.units(static_cast<int>(u) - 1), samples, compute, flow, name + ", gradient of ");
  }
  EXPECT_TRUE(flow.empty()) << name << ": the first unit's inputs have no gradients";
}

}  // namespace muster::units
