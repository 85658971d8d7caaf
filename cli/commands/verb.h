// Commands that do one thing to each job or node that they name: pause, resume, cancel, delete, drain, undrain,
// nodes forget.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/client.h"
#include "cli/command.h"
#include "cli/output_format.h"

namespace muster::cli {

struct Verb {
  std::string name;
  std::string description;
  std::string example;
};

// Applies the verb to one job or node and prints the answer. `name` is an id, or a unique prefix of a job's id.
using Apply = std::function<absl::Status(Client& client, const std::string& name, Format format)>;

// Whether the verb can be applied to one job. Changes nothing.
using Check = std::function<absl::Status(Client& client, const std::string& name)>;

// NotFound: `names` lacks the name. `lists`: the command that shows them.
absl::Status CheckNamed(const std::string& name, const std::vector<std::string>& names, const std::string& kind,
                        const std::string& lists);

// JOB...: ids, unique prefixes or @last. NODE...: ids or unique prefixes, which are resolved here.
//
// Tries every name, even after a failure. Prints each failure; the exit code is that of the first. With `check`, for
// what cannot be undone: applied to none unless every name passes it.
CLI::App* AddJobVerb(CLI::App& app, Invocation& invocation, const Verb& verb, Apply apply, Check check = nullptr);
CLI::App* AddNodeVerb(CLI::App& app, Invocation& invocation, const Verb& verb, Apply apply);

}  // namespace muster::cli
