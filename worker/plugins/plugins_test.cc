#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "models/custom/custom.h"
#include "testing/temporary_folder.h"
#include "worker/plugins/library.h"
#include "worker/plugins/measure.h"
#include "worker/plugins/meta_device.h"
#include "worker/plugins/note.h"

namespace muster::plugins {
namespace {

constexpr char kLibrary[] = "worker/plugins/libtrial_models.so";

Custom GivenKind(const std::string& kind) {
  Custom given;
  given.set_library("/opt/models/trial.so");
  ModelOption& option = *given.add_options();
  option.set_name("kind");
  option.set_value(kind);
  return given;
}

absl::StatusOr<Loaded> LoadKind(const std::string& kind) {
  return LoadStructure(GivenKind(kind), {.roots = {}, .named = kLibrary});
}

std::string UnitsText(const Custom& model) {
  return absl::StrJoin(model.units(), "; ", [](std::string* out, const Unit& unit) {
    absl::StrAppend(out, unit.name(), ":");
    for (const Tensor& tensor : unit.tensors()) absl::StrAppend(out, " ", tensor.name());
    for (const Borrow& borrow : unit.borrows()) absl::StrAppend(out, " (", borrow.tensor(), ")");
    for (const Tensor& buffer : unit.buffers()) absl::StrAppend(out, " [", buffer.name(), "]");
  });
}

TEST(WrapPolicies, CutASequential) {
  const auto units = [](const std::vector<std::pair<std::string, std::string>>& options) {
    Custom given;
    given.set_library("/trial.so");
    for (const auto& [name, value] : options) {
      ModelOption& option = *given.add_options();
      option.set_name(name);
      option.set_value(value);
    }
    const auto loaded = LoadStructure(given, {.roots = {}, .named = kLibrary});
    return loaded.ok() ? UnitsText(loaded->structure) : std::string(loaded.status().message());
  };
  EXPECT_EQ(units({{"kind", "images"}}),
            "0: 0.weight; 1: 1.weight 1.bias [1.running_mean] [1.running_var]; 3: 3.weight 3.bias; "
            "6: 6.weight 6.bias; 8: 8.weight 8.bias");
  EXPECT_EQ(units({{"kind", "images"}, {"min_parameters", "200"}}),
            "0: 0.weight 1.weight 1.bias 3.weight 3.bias [1.running_mean] [1.running_var]; 6: 6.weight 6.bias "
            "8.weight 8.bias");
  EXPECT_EQ(units({{"kind", "images by type"}}),
            "0: 0.weight 1.weight 1.bias 3.weight 3.bias [1.running_mean] [1.running_var]; 6: 6.weight 6.bias; "
            "8: 8.weight 8.bias");
  EXPECT_EQ(units({{"kind", "images"}, {"min_parameters", "many"}}),
            "/trial.so: option min_parameters: \"many\" is not a whole number");
  EXPECT_EQ(units({{"kind", "images"}, {"width", "3"}}),
            "/trial.so: the model has no option \"width\"; it has kind, min_parameters");
}

TEST(PluginModels, TiedWeightsAreBorrowed) {
  const auto loaded = LoadKind("tied language");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Unit& head = loaded->structure.units(4);
  ASSERT_EQ(head.borrows_size(), 1);
  EXPECT_EQ(head.borrows(0).unit(), "embedding");
  EXPECT_EQ(head.borrows(0).tensor(), "embedding.weight");
  EXPECT_EQ(head.tensors_size(), 2);
}

TEST(PluginModels, StartAsTorchsDo) {
  const auto loaded = LoadKind("images");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Unit& linear = loaded->structure.units(3);
  EXPECT_EQ(linear.tensors(0).init().kind(), Initialisation::NORMAL);
  EXPECT_NEAR(linear.tensors(0).init().standard_deviation(), 1 / std::sqrt(3.0 * 180), 1e-12);
  EXPECT_TRUE(linear.tensors(0).decay());
  EXPECT_EQ(linear.tensors(1).init().kind(), Initialisation::ZEROS);
  EXPECT_FALSE(linear.tensors(1).decay());
  const Unit& norm = loaded->structure.units(1);
  EXPECT_EQ(norm.tensors(0).init().kind(), Initialisation::ONES);
  EXPECT_EQ(norm.buffers(1).init().kind(), Initialisation::ONES);
}

// What the library's author has to change is said when the library is inspected, not after hours of training.
TEST(PluginModels, WhatCannotTrainIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"dropout", "1: torch::nn::DropoutImpl draws random numbers"},
      {"functional dropout", "unit all: draws random numbers from LibTorch's generator"},
      {"cumulative norm", "0: torch::nn::BatchNorm2dImpl without a momentum"},
      {"double", "1.weight: is of Double"},
      {"mask", "1.mask: has no default for how it starts"},
      {"constructed constant", "use muster::Constant"},
      {"unused parameter", "unit all: has no gradient of all.bias"},
      {"wrong classes", "the last unit gives [4, 9]"},
      {"changes the samples", "the first dimension must be the samples"},
      {"unstable", "unit all: gives other bits for the same inputs"},
      {"frozen", "1.bias: does not require a gradient"},
      {"no default", "call Initialize(\"1.scale\", muster::Ones())"},
      {"misnamed initialize", "Initialize: there is no tensor 0.wait"},
      {"no units", "the model has no units"},
      {"one class", "its model has a wrong task: an image_classification's"},
      {"another", "there is no kind another"},
      {"tensors without a loss", "a model of Tensors has a loss of its own"},
      {"tensors with a mean", "unit head: the loss is not a sum over the samples"},
      {"tensors with a mean metric", "unit head: the metric mean is not a sum over the samples"},
      {"tensors with a root metric", "unit head: the metric root is not a sum over the samples"},
      {"tensors with a metric called rank", "task.metrics[2]: \"rank\" is what another number is called"},
      {"tensors with a vector of losses", "unit head: the model's loss is not one number, but has the shape [4]"},
      {"tensors of another name", "there is no tensor \"stars\" here; there are rating, clicked"},
      {"tensors with a metric called loss", "task.metrics[2]: \"loss\" is what another number is called"},
      {"tensors twice", "user: is twice in the same list of Tensors"},
      {"tensors that differ", "user: is an input of another shape or type than the target"},
      {"tensors without inputs", "task.tensors: none is an input"},
      {"tensors without a bound", "task.tensors[1].bound: integers are 0 to bound - 1"},
      {"integers without a bound", "items: integers are 0 to bound - 1, and the bound is 0"},
      {"tensors with too many inputs", "unit towers: "},
      {"images with metrics", "a loss of a Batch, and metrics, are for models of Tensors"},
  };
  for (const auto& [kind, message] : cases) {
    absl::StatusOr<Loaded> loaded = LoadKind(kind);
    const absl::Status status = loaded.ok() ? Measure(*loaded) : loaded.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << kind << ": " << status;
    EXPECT_TRUE(absl::StrContains(status.message(), message)) << kind << ": " << status;
  }
}

TEST(PluginModels, AreMeasured) {
  absl::StatusOr<Loaded> loaded = LoadKind("images");
  ASSERT_TRUE(loaded.ok());
  ASSERT_TRUE(Measure(*loaded).ok());
  const Unit &convolution = loaded->structure.units(0), &head = loaded->structure.units(4);
  EXPECT_EQ(convolution.forward_flops(), 2.0 * 3 * 9 * 6 * 64);
  EXPECT_EQ(convolution.saved_bytes(), 4u * 3 * 64) << "its input";
  EXPECT_EQ(convolution.output_bytes(), 4u * 6 * 64);
  EXPECT_EQ(head.forward_flops(), 2.0 * 11 * 7);
  EXPECT_EQ(head.output_bytes(), 0u);
  for (const Unit& unit : loaded->structure.units()) EXPECT_LT(unit.saved_bytes(), 20'000u) << unit.name();
  // The library's model can be used again: its tensors have no memory.
  for (const plugin::Unit* unit : loaded->model->Units()) {
    for (const plugin::Tensor& tensor : unit->Parameters()) EXPECT_TRUE(tensor.tensor.is_meta()) << tensor.name;
  }
}

TEST(Plugins, LoadOnlyWhatTheSpecDescribes) {
  Model model;
  EXPECT_EQ(*LoadPlugin(model, {}), nullptr) << "a built-in family";
  *model.mutable_custom() = LoadKind("images")->structure;
  EXPECT_TRUE(LoadPlugin(model, {.roots = {}, .named = kLibrary}).ok());
  model.mutable_custom()->mutable_units(0)->mutable_tensors(0)->set_shape(0, 5);
  const absl::Status other = LoadPlugin(model, {.roots = {}, .named = kLibrary}).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(other.message(), "0.weight has the shape [6, 3, 3, 3], but [5, 3, 3, 3] here"))
      << other;
}

TEST(Plugins, LoadOnlyBelowRoots) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() + "/roots");
  const std::string library = folder.path() + "/roots/trial.so";
  std::filesystem::copy_file(kLibrary, library);
  chmod(library.c_str(), 0755);
  Model model;
  *model.mutable_custom() = LoadKind("images")->structure;
  model.mutable_custom()->set_library(library);
  EXPECT_TRUE(absl::IsPermissionDenied(LoadPlugin(model, {}).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(LoadPlugin(model, {.roots = {"/usr"}, .named = ""}).status()));
  const LoadOptions roots{.roots = {folder.path() + "/roots"}, .named = ""};
  EXPECT_TRUE(LoadPlugin(model, roots).ok()) << LoadPlugin(model, roots).status();
  chmod(library.c_str(), 0777);
  EXPECT_TRUE(absl::IsPermissionDenied(LoadPlugin(model, roots).status()));
}

// ---- The note, which is read before any code runs. ----

std::string FileText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

absl::StatusOr<plugin::Note> NoteOf(const std::string& bytes) {
  const TemporaryFolder folder;
  folder.Write("a.so", bytes);
  const int fd = open((folder.path() + "/a.so").c_str(), O_RDONLY | O_CLOEXEC);
  absl::StatusOr<plugin::Note> note = ReadNote(fd, "a.so");
  close(fd);
  return note;
}

TEST(Notes, SayWhatTheLibraryWasBuiltFor) {
  const auto note = NoteOf(FileText(kLibrary));
  ASSERT_TRUE(note.ok()) << note.status();
  EXPECT_EQ(std::memcmp(&*note, std::vector<plugin::Note>(1).data(), sizeof *note), 0);
  EXPECT_TRUE(CheckNote(*note, "a.so").ok());
  const auto refused = [&](auto change, const std::string& message) {
    plugin::Note other = *note;
    change(other);
    const absl::Status status = CheckNote(other, "a.so");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(status.message(), message)) << status;
  };
  refused([](plugin::Note& n) { n.abi = 99; }, "a.so was built for version 99 of libmuster-sdk's ABI; this trainer");
  refused([](plugin::Note& n) { std::strcpy(n.torch, "1.13.1"); }, "LibTorch 1.13.1; this trainer has LibTorch 2.");
  refused([](plugin::Note& n) { std::memset(n.torch, '\n', sizeof n.torch); }, "LibTorch ????");
  refused([](plugin::Note& n) { n.cxx11_abi = 0; }, "_GLIBCXX_USE_CXX11_ABI=0");
}

// A library of another ABI is refused by its file: it is never loaded. Version 1 had no tasks of named tensors.
TEST(Notes, AnotherAbiIsRefusedBeforeItsCodeRuns) {
  std::string bytes = FileText(kLibrary);
  const plugin::Note ours;
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(&ours), sizeof ours));
  ASSERT_NE(at, std::string::npos);
  for (const char abi : {1, 77}) {
    bytes[at + offsetof(plugin::Note, abi)] = abi;
    const TemporaryFolder folder;
    folder.Write("old.so", bytes);
    const auto loaded = LoadStructure(GivenKind("images"), {.roots = {}, .named = folder.path() + "/old.so"});
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition) << loaded.status();
    EXPECT_TRUE(
        absl::StrContains(loaded.status().message(), absl::StrCat("was built for version ", static_cast<int>(abi),
                                                                  " of libmuster-sdk's ABI; this trainer (muster ")))
        << loaded.status();
    EXPECT_TRUE(absl::StrContains(loaded.status().message(), "has version 2: build it again")) << loaded.status();
  }
}

TEST(Notes, OfDamagedFilesAreErrors) {
  const std::string whole = FileText(kLibrary);
  for (const std::string& bytes : {std::string(),
                                   std::string("\x7f"
                                               "ELF"),
                                   whole.substr(0, 64), whole.substr(0, 5000), whole.substr(0, whole.size() - 1),
                                   FileText("/bin/true"), FileText("/etc/passwd")}) {
    EXPECT_EQ(NoteOf(bytes).status().code(), absl::StatusCode::kInvalidArgument) << bytes.size();
  }
  // Any change of the headers: an error or a note, no crash. The section headers are at the end.
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    for (int change = 0; change < 3; ++change) {
      const size_t window = change == 0 ? 64 : std::min<size_t>(4096, bytes.size());
      const size_t from = change == 0 ? 0 : bytes.size() - window;
      bytes[from + random() % window] = static_cast<char>(random());
    }
    const auto note = NoteOf(bytes);
    if (!note.ok()) {
      EXPECT_EQ(note.status().code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(MetaDevice, TensorsHaveNoMemoryInsideOnly) {
  {
    const OnMetaDevice meta;
    EXPECT_TRUE(at::empty({int64_t{1} << 40}).is_meta());
  }
  EXPECT_TRUE(at::empty({3}).is_cpu());
}

}  // namespace
}  // namespace muster::plugins
