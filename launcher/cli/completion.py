"""`launch completion`: print a script by which a shell completes `launch`. Commands and options are in the script; ids
of runs and names of clusters are queried at each completion, by `launch _complete runs`.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.cli.arguments import Arguments, arguments_of
from launcher.cli.commands import ALSO, COMMANDS, GROUPS, shown, shown_in_help, verbs_of
from launcher.cli.shipped import pages, starters
from launcher.errors import Exit

EXAMPLES = """
  launch completion bash > ~/.local/share/bash-completion/completions/launch
  launch completion zsh > ~/.launch-completion.zsh     and in ~/.zshrc: source ~/.launch-completion.zsh
  launch completion fish > ~/.config/fish/completions/launch.fish
"""
_ASKED = {"RUN": "runs", "CLUSTER": "clusters", "POOL": "clusters", "KEY=VALUE": "keys", "NAMES": "columns"}
_FILES = ("FILE", "SPEC", "SCRIPT")
_HELP = "help"


@dataclass(frozen=True, slots=True)
class Candidates:
    """The possible completions of one word: names that `launch _complete ASKED` prints ("": none), fixed words, and
    file names if `files`.
    """

    asked: str = ""  # an argument of `launch _complete`, or ""
    words: tuple[str, ...] = ()  # fixed words
    files: bool = False  # names of files as well


@dataclass(frozen=True, slots=True)
class FlagWords:
    """The names and the help of an option, and the completions of its value (None: it has no value)."""

    names: tuple[str, ...]
    text: str  # its help
    value: Candidates | None  # None: it has no value


@dataclass(frozen=True, slots=True)
class Command:
    """A command with its help and options; `word` are the completions of its first argument."""

    name: str
    text: str  # its help
    flags: tuple[FlagWords, ...]  # its options
    word: Candidates  # completions of the word after it


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch completion`."""
    arguments.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")


def run(options: argparse.Namespace) -> int:
    """Run `launch completion` and return its exit code."""
    commands = [*_commands()]
    print("\n".join(_fish(commands) if options.shell == "fish" else _bash(commands, zsh=options.shell == "zsh")))
    return Exit.OK


def complete(what: str) -> int:
    """Print the names that `launch _complete WHAT` lists, one a line: runs, columns, keys or clusters; return the exit
    code.
    """
    if what == "runs":
        from launcher.run import registry  # late: not for clusters
        from launcher.run.graphs import known_graphs  # late: likewise

        ids = [run_id for run_id, path in registry.registered() if path.is_dir()]
        print("\n".join(["last", *sorted([*ids, *(graph.id for graph in known_graphs())])]))
        return Exit.OK
    if what == "columns":
        from launcher.cli.looking.run_columns import OURS  # late: likewise

        print("\n".join(OURS))
        return Exit.OK
    if what == "keys":
        from launcher.spec.fields import option_keys  # late: likewise

        print("\n".join(f"{key}=" for key in option_keys()))
        return Exit.OK
    from launcher.places.clusters_file import named_clusters  # late: it reads YAML

    print("\n".join(named_clusters()))
    return Exit.OK


def _commands() -> Iterator[Command]:
    """Yield each command of `launch` with its options and completions."""
    for name in (*COMMANDS, *ALSO):
        _, text = shown(name)
        arguments = arguments_of(name)
        words = [_candidates(action) for action in arguments.taken if not action.option_strings]
        flags = [_flag(action) for action in arguments.taken if action.option_strings]
        public = tuple(flag for flag in flags if flag.text != argparse.SUPPRESS)
        yield Command(name, text, public, words[0] if words else Candidates())
    yield Command(
        _HELP,
        "explain a command, or show a page",
        (),
        Candidates(words=(*(name for name in COMMANDS if " " not in name), *GROUPS, *pages())),
    )


def _flag(action: argparse.Action) -> FlagWords:
    """Return the names and the help of an argparse option, and the completions of its value (None: it has no value)."""
    return FlagWords(
        tuple(action.option_strings), action.help or "", None if action.nargs == 0 else _candidates(action)
    )


def _candidates(action: argparse.Action) -> Candidates:
    """Return the completions of an argparse argument's value."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None:
        return Candidates(words=tuple(map(str, action.choices)))
    if metavar == "TEMPLATE":
        return Candidates(words=tuple(starters()))
    if metavar == "STATE":
        from launcher.cli.looking.selection import STATES  # late: only for the script

        return Candidates(words=STATES)
    if "--sort" in action.option_strings and metavar == "NAME":
        return Candidates("columns")
    if metavar == "SPEC" and action.dest == "what":
        from launcher.cli.starting.sweep import VERBS  # late: only for the script

        return Candidates(words=VERBS, files=True)
    return Candidates(_ASKED.get(metavar, ""), files=metavar in _FILES)


def _bash(commands: Sequence[Command], *, zsh: bool) -> list[str]:
    """Return the lines of the completion script for bash. With `zsh`, two lines before them let zsh run the same
    script.
    """
    values = {_case(command, flag): flag.value for command in commands for flag in command.flags if flag.value}
    return [
        *(["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"] if zsh else []),
        "_launch() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}",
        "  local words= one=",
        "  COMPREPLY=()",
        f"  if [ \"$COMP_CWORD\" = 1 ]; then words='{' '.join(_typed(commands))}'",
        *(
            f"  elif [ \"$COMP_CWORD $command\" = '2 {group}' ]; then words='{' '.join(verbs_of(group))}'"
            for group in GROUPS
        ),
        "  else",
        f'  case "$command" in {"|".join(GROUPS)}) command="$command ${{COMP_WORDS[2]}}" ;; esac',
        '  case "$command $before" in',
        *(f"    {case}) {_words_assignment(choice)} ;;" for case, choice in values.items()),
        '    *) case "$command $word" in',
        *(f"      '{one.name} -'*) words='{' '.join(_names(one))}' ;;" for one in commands if one.flags),
        *(f"      '{one.name} '*) {_words_assignment(one.word)} ;;" for one in commands),
        "    esac ;;",
        "  esac; fi",
        '  for one in $words; do case "$one" in "$word"*) COMPREPLY+=("$one") ;; esac; done',
        "}",
        "complete -o default -F _launch launch",
    ]


def _case(command: Command, flag: FlagWords) -> str:
    """Return the shell pattern that matches the command followed by this option."""
    return "|".join(f"'{command.name} {name}'" for name in flag.names)


def _words_assignment(choice: Candidates) -> str:
    """Return the shell code that assigns the possible completions to the shell variable `words`: a fixed list, or the
    output of `launch _complete`.
    """
    if choice.asked:
        return f"words=$(launch _complete {choice.asked} 2>/dev/null)"
    return f"words='{' '.join(choice.words)}'"


def _names(command: Command) -> list[str]:
    """Return the names of the command's options."""
    return [name for flag in command.flags for name in flag.names]


def _typed(commands: Sequence[Command]) -> list[str]:
    """Return the first words that the script completes: the commands, but not under names that they had in older
    versions, and the words with which commands of two words begin.
    """
    return [*(one.name for one in commands if " " not in one.name and shown_in_help(one.name)), *GROUPS]


def _fish(commands: Sequence[Command]) -> list[str]:
    """Return the lines of the completion script for fish."""
    lines = ["complete -c launch -f"]
    for group, text in GROUPS.items():
        verbs = verbs_of(group)
        lines.append(f"complete -c launch -n __fish_use_subcommand -a {group} -d {_quoted(text)}")
        none_yet = f"__fish_seen_subcommand_from {group}; and not __fish_seen_subcommand_from {' '.join(verbs)}"
        lines += [f"complete -c launch -n '{none_yet}' -a {verb} -d {_quoted(of)}" for verb, of in verbs.items()]
    for command in commands:
        if command.name in _typed(commands):
            lines.append(f"complete -c launch -n __fish_use_subcommand -a {command.name} -d {_quoted(command.text)}")
        first, _, verb = command.name.partition(" ")
        also = f"; and __fish_seen_subcommand_from {verb}" if verb else ""
        seen = f"complete -c launch -n '__fish_seen_subcommand_from {first}{also}'"
        if after := _fish_value(command.word):
            lines.append(f"{seen} {after}")
        for flag in command.flags:
            names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
            value = "" if flag.value is None else f" -x {_fish_value(flag.value)}".rstrip()
            lines.append(f"{seen} {' '.join(names)}{value.replace('-x -F', '-r -F')} -d {_quoted(flag.text)}")
    return lines


def _fish_value(choice: Candidates) -> str:
    """Return the arguments for fish's command `complete` by which fish completes a value from `choice`; "" if there are
    none.
    """
    if choice.asked:
        return f"-a '(launch _complete {choice.asked} 2>/dev/null)'"
    words = f"-a '{' '.join(choice.words)}'" if choice.words else ""
    return f"-F {words}".strip() if choice.files else words


def _quoted(text: str) -> str:
    """Return a help text in single quotes for the shell, without its own single quotes and backslashes, and with `%` in
    place of argparse's `%%`.
    """
    return "'" + re.sub(r"[\\']", "", text.replace("%%", "%")) + "'"
