#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"

namespace muster::cli {
namespace {

constexpr char kBash[] = R"(# Completion of muster for bash.   source <(muster completion bash)
_muster() {
  local current=${COMP_WORDS[COMP_CWORD]} value path before=
  # bash splits words at these, and replaces only what follows.
  if [[ $current == : ]]; then
    before=${COMP_WORDS[COMP_CWORD - 1]}:
  elif ((COMP_CWORD > 1)) && [[ ${COMP_WORDS[COMP_CWORD - 1]} == : ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}:
  fi
  [[ $current == [=:] ]] && current=
  COMPREPLY=()
  while IFS=$'\t' read -r value _; do
    if [[ $value == :files ]]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen -f -- "$current")
    else
      COMPREPLY+=("${value#"$before"}")
    fi
  done < <(command muster __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o nosort -F _muster muster
)";

constexpr char kZsh[] = R"(#compdef muster
# Completion of muster for zsh.   source <(muster completion zsh), or as a file _muster in a folder of $fpath
_muster() {
  local -a described
  local line files=
  for line in "${(@f)$(command muster __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      '') ;;
      :files) files=1 ;;
      *) described+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}") ;;
    esac
  done
  (( $#described )) && _describe -V muster described
  [[ -n $files ]] && _files
  return 0
}
if [[ ${funcstack[1]} == _muster ]]; then _muster; else compdef _muster muster; fi
)";

constexpr char kFish[] = R"(# Completion of muster for fish.   muster completion fish | source
function __muster_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (command muster __complete $words[2..-1] 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path (commandline -ct)
        else
            echo $line
        end
    end
end
complete -c muster -f -k -a '(__muster_complete)'
)";

const std::map<std::string, const char*>& Scripts() {
  static const auto& scripts = *new std::map<std::string, const char*>{{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};
  return scripts;
}

}  // namespace

void RegisterCompletion(CLI::App& app, Invocation& invocation) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, "completion", kGroupService, "Print the completion script of a shell",
                                 "source <(muster completion bash)\nmuster completion fish | source");
  command->add_option("SHELL", *shell, "bash|zsh|fish")->required();
  OnRun(command, invocation, [shell]() -> absl::StatusOr<ExitCode> {
    const auto script = Scripts().find(*shell);
    if (script == Scripts().end()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no completion for \"", *shell, "\": bash, zsh or fish"));
    }
    Print(script->second);
    return kOk;
  });
}

}  // namespace muster::cli
