#include "common/flags/spelling.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace muster {

std::vector<std::string> KebabFlags(std::vector<std::string> arguments,
                                    const std::function<bool(const std::string& name)>& known) {
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (!absl::StartsWith(argument, "--")) continue;
    const size_t equals = std::min(argument.find('='), argument.size());
    std::string name = argument.substr(2, equals - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    if (known(name)) argument.replace(0, equals, absl::StrCat("--", name));
  }
  return arguments;
}

}  // namespace muster
