// Loads libraries of users' models (sdk/muster/plugin.h).
//
//   PluginModel model = LoadPlugin(spec.train().model(), {.roots = {"/opt/models"}}).value();  // null: no custom model
//
// A library that was loaded stays loaded: its code may be on a stack, or registered with LibTorch.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "proto/spec.pb.h"
#include "sdk/muster/plugin.h"

namespace muster::plugins {

struct LoadOptions {
  // Below which libraries may lie (common/file/trusted_file.h); none: no library may be loaded.
  std::vector<std::string> roots;
  // A library that this process's user named himself, in place of the spec's; it need not lie below a root.
  std::string named;
};

// A new model, made by the library with the spec's options; its tensors are on the meta device. Null: `model` is of a
// built-in family. PermissionDenied, NotFound, InvalidArgument: as TrustedFile::Open. FailedPrecondition: the library
// was built for another ABI, the loader refuses it, or its model is not the one of the spec; names the first
// difference. InvalidArgument: the library refuses the options.
absl::StatusOr<std::shared_ptr<plugin::Model>> LoadPlugin(const Model& model, const LoadOptions& options);

// The spec's part that describes a library's model, its task and units but no bytes and FLOPs. `given`: library (as the
// spec is to have it) and options. Errors as LoadPlugin.
struct Loaded {
  std::shared_ptr<plugin::Model> model;
  Custom structure;
};
absl::StatusOr<Loaded> LoadStructure(const Custom& given, const LoadOptions& options);

}  // namespace muster::plugins
