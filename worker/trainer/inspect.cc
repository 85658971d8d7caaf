#include "worker/trainer/inspect.h"

#include <filesystem>

#include <google/protobuf/util/json_util.h>
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/bytes.h"
#include "models/inventory.h"
#include "worker/plugins/library.h"
#include "worker/plugins/measure.h"

namespace muster::trainer {
namespace {

std::string Summary(const Custom& model) {
  Inventory inventory;
  *inventory.mutable_units() = model.units();
  std::string text = absl::StrCat(model.library(), ": ", model.task().name(), ", ", model.units_size(),
                                  model.units_size() == 1 ? " unit, " : " units, ", models::Parameters(inventory),
                                  " parameters; on a sample:\n");
  for (const Unit& unit : model.units()) {
    uint64_t elements = 0;
    for (const Tensor& tensor : unit.tensors()) elements += models::Elements(tensor);
    absl::StrAppend(
        &text, absl::StrFormat("  %-24s %12d parameters  %10.3g FLOPs forward  %10s kept for backward\n", unit.name(),
                               elements, unit.forward_flops(), FormatBytes(unit.saved_bytes())));
  }
  return text;
}

}  // namespace

absl::StatusOr<Inspected> Inspect(const std::string& library, const std::vector<std::string>& options) {
  Custom given;
  std::error_code error;
  given.set_library(std::filesystem::absolute(library, error).lexically_normal());
  for (const std::string& option : options) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--option ", option, ": expected NAME=VALUE"));
    }
    ModelOption& added = *given.add_options();
    added.set_name(option.substr(0, equals));
    added.set_value(option.substr(equals + 1));
  }
  absl::StatusOr<plugins::Loaded> loaded = plugins::LoadStructure(given, {.roots = {}, .named = given.library()});
  if (!loaded.ok()) return loaded.status();
  if (absl::Status measured = plugins::Measure(*loaded); !measured.ok()) return measured;
  Inspected inspected;
  inspected.summary = Summary(loaded->structure);
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.preserve_proto_field_names = true;
  const auto printed = google::protobuf::util::MessageToJsonString(loaded->structure, &inspected.json, print);
  if (!printed.ok()) return absl::InternalError(std::string(printed.message()));
  return inspected;
}

}  // namespace muster::trainer
