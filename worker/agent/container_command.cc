#include "worker/agent/container_command.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/process/find_program.h"

namespace muster::agent {
namespace {

std::string Podman(const std::vector<std::string>& roots) {
  std::string command =
      "podman run --rm --init --network=host --ipc=host --env={variable} --volume={rank_dir}:{rank_dir} "
      "--volume={workdir}:{workdir}";
  for (const std::string& root : roots) absl::StrAppend(&command, " --volume=", root, ":", root);
  return absl::StrCat(command, " --workdir={workdir} {image}");
}

}  // namespace

absl::StatusOr<std::string> ContainerCommand(absl::string_view setting, absl::string_view path,
                                             const std::vector<std::string>& roots) {
  if (setting == "off") return "";
  const bool chosen = setting == "auto";
  const std::string whole = chosen ? Podman(roots) : std::string(absl::StripAsciiWhitespace(setting));
  const absl::string_view program = absl::string_view(whole).substr(0, whole.find(' '));
  if (!absl::StrContains(whole, " {image}")) {
    return absl::InvalidArgumentError(absl::StrCat("--container-command: \"", whole,
                                                   "\" has no word {image}: use auto, off, or a command such as "
                                                   "apptainer exec --pwd={workdir} {image}"));
  }
  const std::string file = FindProgram(program, path);
  if (!file.empty()) return absl::StrCat(file, whole.substr(program.size()));
  if (chosen) return "";
  return absl::NotFoundError(
      absl::StrCat("--container-command: command not found: ", program, " (PATH is ", path, ")"));
}

}  // namespace muster::agent
