// One spelling of flags, --kebab-case, for all programs.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace muster {

// Also accepts --state_dir for --state-dir, as older versions spelled flags: returns `arguments` with the names of
// flags in kebab case. Values, and everything after `--`, stay as typed. `known` says whether a name in kebab case,
// without its dashes, is a flag; other arguments stay as typed.
std::vector<std::string> KebabFlags(std::vector<std::string> arguments,
                                    const std::function<bool(const std::string& name)>& known);

}  // namespace muster
