#include "cli/spec/schema.h"

#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/output_format.h"

namespace muster::cli {

void RegisterSchema(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(app, "schema", kGroupRun, "Print the JSON Schema of job files, for editors",
                                 "muster schema > job.schema.json");
  OnRun(command, invocation, []() -> absl::StatusOr<ExitCode> {
    PrintTree(SpecSchema(), Format::kJson);
    return kOk;
  });
}

}  // namespace muster::cli
