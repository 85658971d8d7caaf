#include "worker/exec/container.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace muster::exec {
namespace {

constexpr const char* kOfTheNode[] = {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "TZ"};

bool IsOfTheNode(absl::string_view name) {
  return std::any_of(std::begin(kOfTheNode), std::end(kOfTheNode), [&](const char* other) { return name == other; });
}

}  // namespace

std::vector<std::string> ContainerArguments(const std::vector<std::string>& command, const Container& container,
                                            const std::vector<std::string>& program) {
  std::vector<std::string> arguments;
  for (const std::string& word : command) {
    const auto add = [&](absl::string_view variable) {
      arguments.push_back(absl::StrReplaceAll(word, {{"{image}", container.image},
                                                     {"{workdir}", container.workdir},
                                                     {"{rank_dir}", container.rank_dir},
                                                     {"{variable}", variable}}));
    };
    if (!absl::StrContains(word, "{variable}")) {
      add("");
      continue;
    }
    for (const absl::string_view variable : container.variables) {
      const std::string name(variable.substr(0, variable.find('=')));
      if (container.of_job.contains(name) || !IsOfTheNode(name)) add(name);
    }
  }
  arguments.insert(arguments.end(), program.begin(), program.end());
  return arguments;
}

}  // namespace muster::exec
