#include <cstdio>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "drivers/options/command_line.hpp"
#include "drivers/runtime/commands.hpp"

/// `katt completion SHELL`: a script that asks `katt complete WORD…` for candidates while a command
/// is typed. The words come from the programs' own options (drivers/options/completion.hpp).
namespace katt::impl {
namespace {

// Bash cuts words at "=" and ":": the function joins them again.
constexpr std::string_view bash_script = R"sh(# source <(katt completion bash)
_katt() {
  local IFS=$' \t\n' words=() typed=${COMP_WORDS[COMP_CWORD]} line name ending i
  for ((i = 1; i <= COMP_CWORD; i++)); do
    if ((${#words[@]})) && [[ ${COMP_WORDS[i]} == [=:]* || ${COMP_WORDS[i - 1]} == *[=:] ]]; then
      words[${#words[@]} - 1]+=${COMP_WORDS[i]}
    else
      words+=("${COMP_WORDS[i]}")
    fi
  done
  [[ $typed == [=:]* ]] && typed=
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :*)
        compopt -o filenames 2> /dev/null
        while IFS= read -r name; do COMPREPLY+=("$name"); done < <(
          case $line in
            :folders) compgen -d -- "$typed" ;;
            :files) compgen -f -- "$typed" ;;
            *)
              compgen -d -- "$typed"
              for ending in ${line#:files}; do compgen -f -X "!*$ending" -- "$typed"; done
              ;;
          esac
        )
        ;;
      *) COMPREPLY+=("$line") ;;
    esac
  done < <("${COMP_WORDS[0]/#~\//$HOME/}" complete "${words[@]}" 2> /dev/null)
}
complete -F _katt katt katt-report
)sh";

constexpr std::string_view zsh_script = R"sh(# source <(katt completion zsh)
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_katt() {
  local line
  local -a found endings typed
  typed=("${(@Q)words[2,CURRENT]}")
  for line in ${(f)"$(${~words[1]} complete "${typed[@]}" 2> /dev/null)"}; do
    case $line in
      (:files) endings=('*') ;;
      (':files '*) endings=('*'${^${=line#:files }}) ;;
      (:folders) endings=(/) ;;
      (*) found+=("$line") ;;
    esac
  done
  [[ $PREFIX == -*=* ]] && compset -P '*='
  (( $#found )) && compadd -- "${found[@]}"
  case $endings[1] in
    ('') ;;
    (/) _files -/ ;;
    (*) _files -g "${(j: :)endings}" ;;
  esac
}
compdef _katt katt katt-report
)sh";

}  // namespace

int completion_command(const Invocation& invocation) {
  CommandLine line("katt completion",
                   "Print a script that completes commands, options, operators, variants and files "
                   "of katt and katt-report in a shell");
  line.positional("shell", "bash or zsh", one_of({"bash", "zsh"}));
  line.example("source <(katt completion bash)", "in this shell; in ~/.bashrc for every one");
  line.example("source <(katt completion zsh)", "the same for zsh, in ~/.zshrc");
  if (!line.parse(invocation)) return 0;
  const std::string& shell = line.required("shell", "katt completion bash|zsh");
  if (shell != "bash" && shell != "zsh") {
    throw InputError("katt completion " + shell + ": unknown shell, expected bash or zsh");
  }
  const std::string_view script = shell == "bash" ? bash_script : zsh_script;
  std::fwrite(script.data(), 1, script.size(), stdout);
  return 0;
}

}  // namespace katt::impl
