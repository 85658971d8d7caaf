// How a program runs in a container image: a command of the node's administrator, with places to fill in. Pure.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster::exec {

struct Container {
  std::string image;
  std::string workdir;                 // of the program; exists on the node
  std::string rank_dir;                // holds the files that Muster tells the program of
  std::vector<std::string> variables;  // "NAME=value": the program's environment, and the runtime's
  std::set<std::string> of_job;        // names of those that the job sets
};

// The arguments that run `program` as the words of `command` say. In each word {image}, {workdir} and {rank_dir} are
// replaced; a word with {variable} is repeated for the name of each variable that the job sets or that is not about the
// node's own user, as HOME is. Then follow those of `program`.
std::vector<std::string> ContainerArguments(const std::vector<std::string>& command, const Container& container,
                                            const std::vector<std::string>& program);

}  // namespace muster::exec
