#include "worker/agent/container_command.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/process/find_program.h"

namespace muster::agent {
namespace {

std::vector<std::string> Podman(const std::vector<std::string>& roots) {
  std::vector<std::string> command = {"podman",
                                      "run",
                                      "--rm",
                                      "--init",
                                      "--network=host",
                                      "--ipc=host",
                                      "--env={variable}",
                                      "--volume={rank_dir}:{rank_dir}",
                                      "--volume={workdir}:{workdir}"};
  for (const std::string& root : roots) command.push_back(absl::StrCat("--volume=", root, ":", root));
  command.insert(command.end(), {"--workdir={workdir}", "{image}"});
  return command;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ContainerCommand(absl::string_view setting, absl::string_view path,
                                                          const std::vector<std::string>& roots) {
  std::vector<std::string> words;
  if (setting == "off") return words;
  const bool chosen = setting == "auto";
  words = chosen ? Podman(roots) : absl::StrSplit(setting, ' ', absl::SkipEmpty());
  const auto names_image = [](const std::string& word) { return absl::StrContains(word, "{image}"); };
  if (words.empty() || names_image(words[0]) || std::none_of(words.begin(), words.end(), names_image)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--container-command: \"", setting,
                     "\" has no {image} after its program: use auto, off, or a command such as "
                     "apptainer exec --pwd={workdir} {image}"));
  }
  const std::string file = FindProgram(words[0], path);
  if (file.empty() && chosen) return std::vector<std::string>();
  if (file.empty()) {
    return absl::NotFoundError(
        absl::StrCat("--container-command: command not found: ", words[0], " (PATH is ", path, ")"));
  }
  words[0] = file;
  return words;
}

}  // namespace muster::agent
