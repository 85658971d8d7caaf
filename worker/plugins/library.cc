#include "worker/plugins/library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file/trusted_file.h"
#include "models/custom/custom.h"
#include "models/inventory_build.h"
#include "models/task.h"
#include "worker/plugins/meta_device.h"
#include "worker/plugins/note.h"

namespace muster::plugins {
namespace {

absl::StatusOr<plugin::EntryPoint> LoadEntryPoint(const std::string& library, const LoadOptions& options) {
  absl::StatusOr<TrustedFile> file =
      options.named.empty() ? TrustedFile::Open(library, options.roots) : TrustedFile::OpenNamed(options.named);
  if (!file.ok()) return file.status();
  const std::string path = file->path();
  const absl::StatusOr<plugin::Note> note = ReadNote(file->fd(), path);
  if (!note.ok()) return note.status();
  if (absl::Status status = CheckNote(*note, path); !status.ok()) return status;
  // By the descriptor, so that the file that was checked is the one that is loaded.
  void* const handle = dlopen(absl::StrCat("/proc/self/fd/", file->fd()).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("cannot load ", path, ": ", dlerror()));
  }
  // The loader knows a library by its path: no other file may get this descriptor's.
  static_cast<void>(new TrustedFile(*std::move(file)));
  void* const entry = dlsym(handle, plugin::kEntryPoint);
  if (entry != nullptr) return reinterpret_cast<plugin::EntryPoint>(entry);
  return absl::FailedPreconditionError(absl::StrCat(path, " has no ", plugin::kEntryPoint));
}

void AddTensors(const std::vector<plugin::Tensor>& tensors, google::protobuf::RepeatedPtrField<Tensor>& out) {
  for (const plugin::Tensor& from : tensors) {
    Tensor& tensor = *out.Add();
    tensor.set_name(from.name);
    for (const int64_t n : from.tensor.sizes()) tensor.add_shape(static_cast<uint64_t>(n));
    Initialisation& init = *tensor.mutable_init();
    init.set_kind(static_cast<Initialisation::Kind>(from.initial.kind));
    init.set_standard_deviation(from.initial.standard_deviation);
    tensor.set_decay(from.decay);
  }
}
static_assert(static_cast<int>(plugin::Initial::kZeros) == Initialisation::ZEROS);
static_assert(static_cast<int>(plugin::Initial::kOnes) == Initialisation::ONES);
static_assert(static_cast<int>(plugin::Initial::kNormal) == Initialisation::NORMAL);

uint64_t Size(int64_t n) { return static_cast<uint64_t>(std::max<int64_t>(0, n)); }

Task TensorsTask(const plugin::Task& from) {
  Task task;
  task.set_name(models::kTensors);
  for (const plugin::BatchTensor& own : from.tensors) {
    std::vector<uint64_t> shape;
    for (const int64_t n : own.shape) shape.push_back(Size(n));
    BatchTensor& tensor =
        models::AddBatchTensor(task, own.name, own.bound == 0 ? BatchTensor::FLOAT : BatchTensor::INT64, shape);
    tensor.set_bound(Size(own.bound));
    tensor.set_input(own.input);
    tensor.set_target(own.target);
  }
  for (const std::string& metric : from.metrics) task.add_metrics(metric);
  task.set_targets_per_sample(Size(from.targets_per_sample));
  return task;
}

void AddTask(const plugin::Task& from, Custom& out) {
  Inventory inventory;
  switch (from.kind) {
    case plugin::Task::kLanguageModel:
      models::SetLanguageTask(inventory, Size(from.vocabulary), Size(from.context));
      break;
    case plugin::Task::kImageClassification:
      models::SetImageTask(inventory, Size(from.channels), Size(from.height), Size(from.width), Size(from.classes));
      break;
    case plugin::Task::kTensors:
      *inventory.mutable_task() = TensorsTask(from);
      break;
  }
  *out.mutable_task() = std::move(*inventory.mutable_task());
}

}  // namespace

absl::StatusOr<Loaded> LoadStructure(const Custom& given, const LoadOptions& options) {
  const absl::StatusOr<plugin::EntryPoint> entry = LoadEntryPoint(given.library(), options);
  if (!entry.ok()) return entry.status();
  plugin::Options values;
  for (const ModelOption& option : given.options()) values.emplace_back(option.name(), option.value());
  Loaded loaded;
  loaded.structure.set_library(given.library());
  *loaded.structure.mutable_options() = given.options();
  try {
    std::string error = "it gives no model";
    {
      const OnMetaDevice meta;
      loaded.model.reset((*entry)(values, error));
    }
    if (loaded.model == nullptr) return absl::InvalidArgumentError(absl::StrCat(given.library(), ": ", error));
    const plugin::Task task = loaded.model->task();
    if (task.kind < plugin::Task::kLanguageModel || task.kind > plugin::Task::kTensors) {
      return absl::InvalidArgumentError(
          absl::StrCat(given.library(), ": it names task kind ", task.kind, ", which this build does not know"));
    }
    AddTask(task, loaded.structure);
    for (const plugin::Unit* from : loaded.model->Units()) {
      Unit& unit = *loaded.structure.add_units();
      unit.set_name(from->name());
      unit.set_kind(models::kCustomKind);
      AddTensors(from->Parameters(), *unit.mutable_tensors());
      AddTensors(from->Buffers(), *unit.mutable_buffers());
      for (const plugin::Borrowed& borrowed : from->Borrows()) {
        Borrow& borrow = *unit.add_borrows();
        borrow.set_unit(borrowed.unit);
        borrow.set_tensor(borrowed.name);
      }
    }
  } catch (const c10::Error& e) {
    return absl::InvalidArgumentError(absl::StrCat(given.library(), ": ", e.what_without_backtrace()));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(given.library(), ": ", e.what()));
  }
  // As the coordinator will: the message says which unit or tensor it does not take.
  Model checked;
  *checked.mutable_custom() = loaded.structure;
  if (const auto resolved = models::CustomFamily().Resolve(checked); !resolved.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(given.library(), ": its model has a wrong ", resolved.status().message()));
  }
  return loaded;
}

absl::StatusOr<std::shared_ptr<plugin::Model>> LoadPlugin(const Model& model, const LoadOptions& options) {
  if (!model.has_custom()) return nullptr;
  absl::StatusOr<Loaded> loaded = LoadStructure(model.custom(), options);
  if (!loaded.ok()) {
    return absl::Status(loaded.status().code(), absl::StrCat("model.library: ", loaded.status().message()));
  }
  if (absl::Status same = models::CheckSameStructure(loaded->structure, model.custom()); !same.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model.library: ", model.custom().library(), " is not the library that the job's inventory was made of: in it ",
        same.message(), "; run `muster model inspect` again, or give the workers the same library"));
  }
  return std::move(loaded->model);
}

}  // namespace muster::plugins
