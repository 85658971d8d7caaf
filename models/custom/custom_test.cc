#include "models/custom/custom.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "models/inventory.h"
#include "models/inventory_build.h"

namespace muster::models {
namespace {

Unit& AddCustomUnit(Custom& model, const std::string& name) {
  Unit& unit = *model.add_units();
  unit.set_name(name);
  unit.set_kind(kCustomKind);
  AddTensor(unit, name + ".weight", {4, 3}, Initialisation::NORMAL, 0.1);
  AddTensor(unit, name + ".bias", {4}, Initialisation::ZEROS);
  return unit;
}

Model GoodCustom() {
  Model model;
  Custom& custom = *model.mutable_custom();
  custom.set_library("/opt/models/libmine.so");
  ModelOption& option = *custom.add_options();
  option.set_name("width");
  option.set_value("4");
  Inventory task;
  SetLanguageTask(task, 61, 16);
  *custom.mutable_task() = task.task();
  AddOutput(AddCustomUnit(custom, "embedding"), "output", {16, 3}, Activation::COMPUTE);
  Unit& head = AddCustomUnit(custom, "head");
  head.set_forward_flops(100);
  head.set_saved_bytes(64);
  Tensor& mean = *head.add_buffers();
  mean.set_name("head.running_mean");
  mean.add_shape(4);
  mean.mutable_init()->set_kind(Initialisation::ZEROS);
  Borrow& borrow = *head.add_borrows();
  borrow.set_unit("embedding");
  borrow.set_tensor("embedding.weight");
  return model;
}

TEST(CustomModel, TheInventoryIsTheSpecs) {
  const Model good = GoodCustom();
  const absl::StatusOr<Model> resolved = Resolve(good);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->SerializeAsString(), good.SerializeAsString());
  const Inventory inventory = *MakeInventory(good);
  EXPECT_EQ(inventory.family(), "custom");
  EXPECT_EQ(Parameters(inventory), 32u);
  EXPECT_EQ(Buffers(inventory), 4u);
  EXPECT_EQ(TargetsPerSample(inventory), 16u);
  EXPECT_EQ(inventory.units(1).SerializeAsString(), good.custom().units(1).SerializeAsString());
  EXPECT_EQ(Describe(good), "custom libmine");
}

// A spec or a manifest of a build whose inventories had no outputs.
TEST(CustomModel, AnInventoryWithoutOutputsIsRead) {
  Model older = GoodCustom();
  older.mutable_custom()->mutable_units(0)->clear_outputs();
  ASSERT_TRUE(Resolve(older).ok()) << Resolve(older).status();
  EXPECT_TRUE(CheckSame(older, GoodCustom()).ok());
  EXPECT_FALSE(CheckOutputs(*MakeInventory(older)).ok());
  EXPECT_TRUE(CheckOutputs(*MakeInventory(GoodCustom())).ok());
}

TEST(CustomModel, ImagesAreATaskToo) {
  Model model = GoodCustom();
  Inventory task;
  SetImageTask(task, 3, 32, 24, 10);
  *model.mutable_custom()->mutable_task() = task.task();
  EXPECT_TRUE(Resolve(model).ok());
}

// What the job says is refused when the job is planned, before its trainers load the library.
TEST(CustomModel, BuffersNeedFp32) {
  Train train;
  *train.mutable_model() = GoodCustom();
  EXPECT_TRUE(MakeInventory(train).ok()) << "nothing is said of a dtype yet";
  train.mutable_precision()->set_compute(DTYPE_FP32);
  EXPECT_TRUE(MakeInventory(train).ok());
  for (const Dtype compute : {DTYPE_BF16, DTYPE_FP16}) {
    train.mutable_precision()->set_compute(compute);
    EXPECT_EQ(MakeInventory(train).status(),
              absl::InvalidArgumentError("precision.compute: unit head has buffers (head.running_mean), and a custom "
                                         "model with buffers computes in fp32 only"));
  }
  train.mutable_model()->mutable_custom()->mutable_units(1)->clear_buffers();
  EXPECT_TRUE(MakeInventory(train).ok());
}

// Two inputs, one of them a target too.
Model GoodTensors() {
  Model model = GoodCustom();
  Task& task = *model.mutable_custom()->mutable_task();
  task.Clear();
  task.set_name(kTensors);
  AddBatchTensor(task, "user", BatchTensor::FLOAT, {8}).set_input(true);
  BatchTensor& item = AddBatchTensor(task, "item", BatchTensor::INT64, {3, 2});
  item.set_bound(50);
  item.set_input(true);
  item.set_target(true);
  task.add_metrics("top_10");
  task.set_targets_per_sample(6);
  return model;
}

TEST(CustomModel, NamedTensorsAreATaskToo) {
  const absl::StatusOr<Inventory> inventory = MakeInventory(GoodTensors());
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_EQ(TargetsPerSample(*inventory), 6u);
  EXPECT_EQ(DescribeSample(inventory->task()), "user float [8], item int64 [3, 2]");
  EXPECT_EQ(Find(inventory->task(), "item").bound(), 50u);
  EXPECT_EQ(Find(inventory->task(), "rating").shape_size(), 0);
}

// What builds wrote whose tasks had two tensors: a spec in a checkpoint's manifest or in the coordinator's database.
TEST(CustomModel, ATaskOfAnOlderBuildIsTheSame) {
  Model older = GoodCustom();
  Task& task = *older.mutable_custom()->mutable_task();
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(name: "language_model"
         inputs { name: "tokens" type: INT64 shape: 16 bound: 61 }
         targets { name: "next_tokens" type: INT64 shape: 16 bound: 61 })",
      &task));
  const Model good = GoodCustom();
  const absl::StatusOr<Model> resolved = Resolve(older);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->SerializeAsString(), good.SerializeAsString());
  EXPECT_TRUE(CheckSame(older, good).ok()) << CheckSame(older, good);
  EXPECT_TRUE(CheckSame(good, older).ok());
  task.mutable_targets()->set_bound(60);
  EXPECT_FALSE(Resolve(older).ok());
  EXPECT_FALSE(CheckSame(older, good).ok());
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(name: "image_classification"
         inputs { name: "images" type: FLOAT shape: 3 shape: 32 shape: 24 }
         targets { name: "labels" type: INT64 bound: 10 }
         metrics: "top1" metrics: "top5")",
      &task));
  Inventory expected;
  SetImageTask(expected, 3, 32, 24, 10);
  EXPECT_EQ(Current(task).SerializeAsString(), expected.task().SerializeAsString());
  EXPECT_TRUE(Resolve(older).ok());
}

struct BadCustom {
  const char* error;  // its beginning
  std::function<void(Custom&)> change;
};

// What a client that is no friend may send.
const std::vector<BadCustom>& BadCustoms() {
  static const auto& cases = *new std::vector<BadCustom>{
      {"library: missing", [](Custom& m) { m.clear_library(); }},
      {"library: \"a.so\" is relative", [](Custom& m) { m.set_library("a.so"); }},
      {"library: holds", [](Custom& m) { m.set_library(std::string("/a\0b", 4)); }},
      {"library: is longer", [](Custom& m) { m.set_library("/" + std::string(5000, 'a')); }},
      {"inventory: ", [](Custom& m) { m.set_inventory("/mine.json"); }},
      {"options: at most",
       [](Custom& m) {
         for (int i = 0; i < 64; ++i) m.add_options()->set_name(absl::StrCat("o", i));
       }},
      {"options[0].name: missing", [](Custom& m) { m.mutable_options(0)->clear_name(); }},
      {"options[0].value: is too long", [](Custom& m) { m.mutable_options(0)->set_value(std::string(300, 'x')); }},
      {"options[1].name: occurs twice", [](Custom& m) { *m.add_options() = m.options(0); }},
      {"task: missing: `muster model inspect /opt/models/libmine.so", [](Custom& m) { m.clear_task(); }},
      {"task: \"sing\"", [](Custom& m) { m.mutable_task()->set_name("sing"); }},
      {"task: a language_model's", [](Custom& m) { m.mutable_task()->mutable_tensors(0)->set_bound(0); }},
      {"task: a language_model's",
       [](Custom& m) { m.mutable_task()->mutable_tensors(0)->set_shape(0, uint64_t{1} << 60); }},
      {"task: a language_model's", [](Custom& m) { m.mutable_task()->mutable_tensors(0)->clear_shape(); }},
      {"task: is not what", [](Custom& m) { m.mutable_task()->mutable_tensors(1)->set_bound(9); }},
      {"task: is not what", [](Custom& m) { m.mutable_task()->add_metrics("top1"); }},
      {"task: an image_classification's", [](Custom& m) { m.mutable_task()->set_name(kImageClassification); }},
      {"units: missing", [](Custom& m) { m.clear_units(); }},
      {"units: at most",
       [](Custom& m) {
         for (int i = 0; i <= kMaxCustomUnits; ++i) m.add_units();
       }},
      {"units: take",
       [](Custom& m) {
         for (int i = 0; i < 1000; ++i) AddCustomUnit(m, absl::StrCat(i, std::string(100, 'u')));
       }},
      {"units[1].name: \"embedding\" occurs twice", [](Custom& m) { m.mutable_units(1)->set_name("embedding"); }},
      {"units[0].name: may hold", [](Custom& m) { m.mutable_units(0)->set_name("a b"); }},
      {"units[0].kind: ", [](Custom& m) { m.mutable_units(0)->set_kind("gpt2.block"); }},
      {"units[0].tensors: missing", [](Custom& m) { m.mutable_units(0)->clear_tensors(); }},
      {"units[0].tensors[0].name: missing", [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->clear_name(); }},
      {"units[0].tensors[0].name: may hold",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->set_name("a\nb"); }},
      {"units[0].tensors[0].name: has 300 bytes",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->set_name(std::string(300, 'x')); }},
      {"units[0].tensors[0].name: \"optimizer.exp_avg.w\"",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->set_name("optimizer.exp_avg.w"); }},
      {"units[0].tensors[0].name: \"__metadata__\"",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->set_name("__metadata__"); }},
      {"units[1].tensors[0].name: \"embedding.bias\" occurs twice",
       [](Custom& m) { m.mutable_units(1)->mutable_tensors(0)->set_name("embedding.bias"); }},
      {"units[1].buffers[0].name: \"head.bias\" occurs twice",
       [](Custom& m) { m.mutable_units(1)->mutable_buffers(0)->set_name("head.bias"); }},
      {"units[0].tensors[0].shape: a dimension is 0",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->set_shape(0, 0); }},
      // 2^33 * 2^33 * 4 would be 16 after 2^64.
      {"units[0].tensors[0].shape: is larger",
       [](Custom& m) {
         for (int i = 0; i < 2; ++i) m.mutable_units(0)->mutable_tensors(0)->set_shape(i, uint64_t{1} << 33);
       }},
      {"units[0].tensors[1].shape: with it",
       [](Custom& m) {
         for (int i = 0; i < 2; ++i) m.mutable_units(0)->mutable_tensors(i)->set_shape(0, kMaxCustomElements / 3);
       }},
      {"units[0].tensors[0].shape: at most 8",
       [](Custom& m) {
         for (int i = 0; i < 7; ++i) m.mutable_units(0)->mutable_tensors(0)->add_shape(1);
       }},
      {"units[0].tensors[0].init.kind",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->mutable_init()->clear_kind(); }},
      {"units[0].tensors[0].init.standard_deviation",
       [](Custom& m) {
         m.mutable_units(0)->mutable_tensors(0)->mutable_init()->set_standard_deviation(
             std::numeric_limits<double>::quiet_NaN());
       }},
      {"units[0].tensors[1].init: only a normal",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(1)->mutable_init()->set_standard_deviation(1); }},
      {"units[0].tensors[0].frozen", [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->set_frozen(true); }},
      {"units[0].tensors[0].atom", [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->set_atom(ATOM_WHOLE); }},
      {"units[1].buffers[0].init",
       [](Custom& m) {
         m.mutable_units(1)->mutable_buffers(0)->mutable_init()->set_kind(Initialisation::NORMAL);
         m.mutable_units(1)->mutable_buffers(0)->mutable_init()->set_standard_deviation(1);
       }},
      {"units[1].borrows[0]: no earlier unit \"tail\"",
       [](Custom& m) { m.mutable_units(1)->mutable_borrows(0)->set_unit("tail"); }},
      {"units[1].borrows[0]: no earlier unit \"head\"",
       [](Custom& m) { m.mutable_units(1)->mutable_borrows(0)->set_unit("head"); }},
      {"units[1].borrows[1]: occurs twice",
       [](Custom& m) { *m.mutable_units(1)->add_borrows() = m.units(1).borrows(0); }},
      {"units[1].forward_flops", [](Custom& m) { m.mutable_units(1)->set_forward_flops(-1); }},
      {"units[1].forward_flops",
       [](Custom& m) { m.mutable_units(1)->set_forward_flops(std::numeric_limits<double>::infinity()); }},
      {"units[1].saved_bytes", [](Custom& m) { m.mutable_units(1)->set_saved_bytes(~uint64_t{0}); }},
      {"units[1].backward_constant_bytes",
       [](Custom& m) { m.mutable_units(1)->set_backward_constant_bytes(~uint64_t{0}); }},
      {"units[0].output_bytes: must be the 192 of outputs, got 191",
       [](Custom& m) { m.mutable_units(0)->set_output_bytes(191); }},
      {"units[0].outputs: a custom unit has one",
       [](Custom& m) { *m.mutable_units(0)->add_outputs() = m.units(0).outputs(0); }},
      {"units[1].outputs: the last unit",
       [](Custom& m) { *m.mutable_units(1)->add_outputs() = m.units(0).outputs(0); }},
      {"units[0].outputs[0].name: missing", [](Custom& m) { m.mutable_units(0)->mutable_outputs(0)->clear_name(); }},
      {"units[0].outputs[0].type: must be", [](Custom& m) { m.mutable_units(0)->mutable_outputs(0)->clear_type(); }},
      {"units[0].outputs[0].shape: a dimension is 0",
       [](Custom& m) { m.mutable_units(0)->mutable_outputs(0)->set_shape(0, 0); }},
      // 2^33 * 2^33 would be 4 after 2^64.
      {"units[0].outputs[0].shape: a sample has more",
       [](Custom& m) {
         for (int i = 0; i < 2; ++i) m.mutable_units(0)->mutable_outputs(0)->set_shape(i, uint64_t{1} << 33);
       }},
      {"units[0].outputs[0].shape: at most 8",
       [](Custom& m) {
         for (int i = 0; i < 7; ++i) m.mutable_units(0)->mutable_outputs(0)->add_shape(1);
       }},
      {"units[1]: has a field", [](Custom& m) { m.mutable_units(1)->set_piece_rows(1); }},
      {"units[1]: has a field", [](Custom& m) { m.mutable_units(1)->set_backward_without_parameters(true); }},
      {"units[1]: has a field", [](Custom& m) { m.mutable_units(1)->set_frees_output(true); }},
  };
  return cases;
}

TEST(CustomModel, WhatDoesNotFitIsNamed) {
  for (const BadCustom& bad : BadCustoms()) {
    Model model = GoodCustom();
    bad.change(*model.mutable_custom());
    const absl::Status status = Resolve(model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.error;
    EXPECT_TRUE(absl::StartsWith(status.message(), bad.error)) << bad.error << "\n" << status.message();
  }
}

TEST(CustomModel, WhatDoesNotFitANamedTensorIsNamed) {
  using Change = std::function<void(Task&)>;
  const std::vector<std::pair<const char*, Change>> cases = {
      {"task.tensors: must be 1 to 32", [](Task& t) { t.clear_tensors(); }},
      {"task.tensors: must be 1 to 32",
       [](Task& t) {
         for (int i = 0; i < 31; ++i) *t.add_tensors() = t.tensors(0);
       }},
      {"task.tensors: none is an input",
       [](Task& t) {
         for (BatchTensor& tensor : *t.mutable_tensors()) tensor.set_input(false), tensor.set_target(true);
       }},
      {"task.tensors[0]: is neither", [](Task& t) { t.mutable_tensors(0)->set_input(false); }},
      {"task.tensors[0].name: missing", [](Task& t) { t.mutable_tensors(0)->clear_name(); }},
      {"task.tensors[0].name: \"__metadata__\"", [](Task& t) { t.mutable_tensors(0)->set_name("__metadata__"); }},
      {"task.tensors[1].name: \"user\" occurs twice", [](Task& t) { t.mutable_tensors(1)->set_name("user"); }},
      {"task.tensors[0].type: must be", [](Task& t) { t.mutable_tensors(0)->clear_type(); }},
      {"task.tensors[0].bound: only integers", [](Task& t) { t.mutable_tensors(0)->set_bound(5); }},
      {"task.tensors[1].bound: integers are 0", [](Task& t) { t.mutable_tensors(1)->clear_bound(); }},
      {"task.tensors[1].bound: integers are 0", [](Task& t) { t.mutable_tensors(1)->set_bound(~uint64_t{0}); }},
      {"task.tensors[1].shape: a dimension is 0", [](Task& t) { t.mutable_tensors(1)->set_shape(0, 0); }},
      // 2^33 * 2^33 would be 4 after 2^64.
      {"task.tensors[1].shape: a sample has more",
       [](Task& t) {
         for (int i = 0; i < 2; ++i) t.mutable_tensors(1)->set_shape(i, uint64_t{1} << 33);
       }},
      {"task.tensors[0].shape: at most 8",
       [](Task& t) {
         for (int i = 0; i < 8; ++i) t.mutable_tensors(0)->add_shape(1);
       }},
      {"task: has fields that only older", [](Task& t) { t.mutable_inputs()->set_name("tokens"); }},
      {"task.targets_per_sample: must be", [](Task& t) { t.clear_targets_per_sample(); }},
      {"task.targets_per_sample: must be", [](Task& t) { t.set_targets_per_sample(~uint64_t{0}); }},
      {"task.metrics: at most 32",
       [](Task& t) {
         for (int i = 0; i < 32; ++i) t.add_metrics(absl::StrCat("m", i));
       }},
      {"task.metrics[1]: \"top_10\" occurs twice", [](Task& t) { t.add_metrics("top_10"); }},
      {"task.metrics[1]: \"loss\" is what another", [](Task& t) { t.add_metrics("loss"); }},
      {"task.metrics[1]: \"a b\" is not a name", [](Task& t) { t.add_metrics("a b"); }},
      {"task.metrics[1]: \"1a\" is not a name", [](Task& t) { t.add_metrics("1a"); }},
      {"task.metrics[1]: \"\" is not a name", [](Task& t) { t.add_metrics(""); }},
  };
  for (const auto& [error, change] : cases) {
    Model model = GoodTensors();
    change(*model.mutable_custom()->mutable_task());
    const absl::Status status = Resolve(model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << error;
    EXPECT_TRUE(absl::StartsWith(status.message(), error)) << error << "\n" << status.message();
  }
}

// Whatever the bytes of a spec are, they are refused or make an inventory whose sums do not overflow.
TEST(CustomModel, NoBytesBreakIt) {
  std::mt19937 random(7);
  const std::string goods[] = {GoodCustom().SerializeAsString(), GoodTensors().SerializeAsString()};
  int parsed = 0, resolved = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = goods[i % 2];
    for (int change = 0; change <= i % 4; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (i % 5 == 0) bytes.resize(random() % bytes.size());
    Model model;
    if (!model.ParseFromString(bytes) || !model.has_custom()) continue;
    ++parsed;
    const absl::StatusOr<Inventory> inventory = MakeInventory(model);
    if (!inventory.ok()) continue;
    ++resolved;
    EXPECT_LE(Parameters(*inventory) + Buffers(*inventory), kMaxCustomElements);
  }
  EXPECT_GT(parsed, 1000);
  EXPECT_GT(resolved, 100);
}

TEST(CustomModel, TheFirstDifferenceIsNamed) {
  const Custom ours = GoodCustom().custom();
  EXPECT_TRUE(CheckSameStructure(ours, ours).ok());
  Custom other = ours;
  other.mutable_units(0)->set_forward_flops(5);  // measured elsewhere
  other.mutable_units(1)->set_saved_bytes(5);
  EXPECT_TRUE(CheckSameStructure(other, ours).ok());
  const std::vector<std::pair<std::string, std::function<void(Custom&)>>> cases = {
      {"the task is", [](Custom& m) { m.mutable_task()->mutable_tensors(0)->set_bound(5); }},
      {"unit 1 is tail, but head here", [](Custom& m) { m.mutable_units(1)->set_name("tail"); }},
      {"there are 1 units, but 2 here", [](Custom& m) { m.mutable_units()->RemoveLast(); }},
      {"unit head: tensor 1 is \"b\", but \"head.bias\" here",
       [](Custom& m) { m.mutable_units(1)->mutable_tensors(1)->set_name("b"); }},
      {"unit embedding: embedding.weight has the shape [4, 5], but [4, 3] here",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->set_shape(1, 5); }},
      {"unit embedding: embedding.weight starts with",
       [](Custom& m) { m.mutable_units(0)->mutable_tensors(0)->mutable_init()->set_standard_deviation(5); }},
      {"unit head: has 1 tensors, but 2 here", [](Custom& m) { m.mutable_units(1)->mutable_tensors()->RemoveLast(); }},
      {"unit head: has 0 buffers, but 1 here", [](Custom& m) { m.mutable_units(1)->clear_buffers(); }},
      {"unit head borrows nothing, but embedding.weight here", [](Custom& m) { m.mutable_units(1)->clear_borrows(); }},
  };
  for (const auto& [message, change] : cases) {
    Custom theirs = ours;
    change(theirs);
    const absl::Status status = CheckSameStructure(theirs, ours);
    EXPECT_TRUE(absl::StartsWith(status.message(), message)) << message << "\n" << status;
    Model a, b;
    *a.mutable_custom() = theirs, *b.mutable_custom() = ours;
    EXPECT_EQ(CheckSame(a, b).code(), absl::StatusCode::kFailedPrecondition) << message;
  }
}

TEST(CustomModel, ConfigHoldsAllOfIt) {
  const Model model = GoodCustom();
  const nlohmann::json config = nlohmann::json::parse(CustomFamily().ToConfig(model).dump());
  EXPECT_EQ(FamilyOfConfig(config), &CustomFamily());
  const absl::StatusOr<Model> back = CustomFamily().FromConfig(config);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->SerializeAsString(), model.SerializeAsString());
  EXPECT_FALSE(CustomFamily().FromConfig({{"model_type", "muster_custom"}, {"model", {{"units", 5}}}}).ok());
}

}  // namespace
}  // namespace muster::models
