"""The pages that are made from the code: python -m tests.docs.reference writes them into launcher/docs."""

import argparse
import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from launcher.cli.answers import schema_of
from launcher.cli.arguments import arguments_of
from launcher.cli.commands import ALSO, COMMANDS, INSTEAD, WITHOUT_JSON, shown
from launcher.errors import MEANING, Exit
from launcher.spec.rank_variables import WHO_READS_WHAT

Schema = dict[str, Any]
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "launcher" / "docs"
_MADE = "<!-- made by `python -m tests.docs.reference`: change the code, not this page -->"

# Types of answers that have the fields of classes.
_MERGED = {
    "NodeNow": ("NodeLoad",), "PlannedRun": ("Plan",), "PlannedStep": ("Plan",), "RunPage": ("RunStatus", "About"),
    "RunRow": ("RunStatus", "About"),
}  # fmt: skip

# What a user sets for `launch` itself.
OF_THE_USER = {
    "LAUNCH_RUNS": "the folder of runs; by default `.launch/runs` of the project",
    "LAUNCH_CLUSTERS": "the clusters file; by default `~/.config/launch/clusters.yaml`",
    "LAUNCH_SSH_CONFIG": "the configuration file of ssh; by default that of ssh itself",
    "LAUNCH_DEBUG": "`1`: an internal error shows its traceback",
    "NO_COLOR": "if it is set to anything: no colours",
    "TERM": "`dumb`: no colours, no live display, no pager",
    "PAGER": "the program that shows long pages of `launch help`; by default `less`",
    "XDG_STATE_HOME": "the parent folder of the list of runs; by default `~/.local/state`",
    "XDG_CONFIG_HOME": "the parent folder of the clusters file; by default `~/.config`",
    "VIRTUAL_ENV, CONDA_PREFIX": "the active environment: its Python runs the ranks, unless `run.python` names another",
}
# What a rank finds beside all that torchrun sets.
OF_A_RANK = {
    "LAUNCH_RUN_ID": "the id of the run",
    "LAUNCH_RUN_DIR": "the folder of the run; its subfolder `metrics` exists before ranks start",
    "LAUNCH_ATTEMPT": "the number of the attempt, one allocation of the run, from 1",
    "LAUNCH_GENERATION": "the number of the generation, one set of ranks in the attempt, from 1",
    "LAUNCH_NODE": "the number of the node, from 0",
    "LAUNCH_REPEAT": "with `--repeat`: the number of the run, from 0",
    "LAUNCH_PROGRESS": "the pipe into which a rank [reports](reporting.md)",
    "LAUNCH_ARTIFACTS": "the folder `artifacts` in the ranks' working folder: `launch board` shows the files in it",
    "LAUNCH_CHECKPOINT_DIR": "the folder of the run's checkpoints",
    "LAUNCH_CHECKPOINT_EVERY": "`checkpoint.every`, such as `500 steps` or `600 s`",
    "LAUNCH_CHECKPOINT_KEEP": "`checkpoint.keep`",
    "LAUNCH_CHECKPOINT_MEMORY_DIR": "with `checkpoint.memory_every`: the folder of snapshots in the node's memory",
    "LAUNCH_CHECKPOINT_MEMORY_EVERY": "how often a snapshot is made, such as `20 steps` or `5 s`",
    "LAUNCH_CHECKPOINT_MEMORY_LIMIT": "the bytes that snapshots may take",
    "LAUNCH_CHECKPOINT_COPY_LAG": "`checkpoint.copy_lag`, such as `500 steps` or `90 s`, if nodes have disks of "
    "their own",
    "LAUNCH_CHECKPOINT_BUDDY": "with `checkpoint.buddy`: 1, snapshots are copied into another node's memory",
    "LAUNCH_DISK": "`apart` if nodes have disks of their own; absent if they share one",
    "LAUNCH_GROUP_TIMEOUT_S": "the time limit of one operation between ranks",
    "LAUNCH_CONTROL": "with `recovery.mode: auto` or `hot`: the pipe by which a rank learns that another was replaced",
    "LAUNCH_NOTES_DIR": "with `recovery.mode: auto` or `hot`: the folder in memory for each rank's own state",
    "LAUNCH_STAYS": "with `recovery.mode: auto`: `auto`, ranks continue in place only if no step is lost at little "
    "cost",
    "LAUNCH_NOTES_COPIED": "with `recovery.mode: hot` and spares, or a range of nodes: 1, ranks' own states have "
    "copies on other nodes",
    "LAUNCH_LEASE_S": "with `recovery.mode: auto` or `hot` on several nodes: `recovery.lease`",
    "LAUNCH_JOINS": "1 for a rank that joins ranks which continue in place, or replaces one of them",
    "LAUNCH_ROLE": "with [roles](roles.md): the name of this rank's role",
    "LAUNCH_ROLE_RANK": "with roles: the number of the rank in its role, from 0",
    "LAUNCH_PORT": "with roles: the port that is reserved for this rank",
    "LAUNCH_PORT_": "with roles: followed by a name of `ports` in capitals, this port of the rank",
    "LAUNCH_ADDR_": "with roles: followed by a role's name, and the name of a port, in capitals: HOST:PORT of each "
    "rank of that role, separated by commas",
    "LAUNCH_RESERVE": "with `recovery.reserve`, for a process that is not yet a rank: where it reports that it waits",
    "LAUNCH_GRACE_S": "the time between SIGTERM and SIGKILL for a rank",
    "LAUNCH_DEFAULTED": "`NAME=value` of each variable with a default of launch; a run that the rank submits gets "
    "its own defaults",
}
# What a command of `notify:` finds.
OF_A_LISTENER = {
    "LAUNCH_NOTIFY": "the occasion: `started`, `restarted`, `stalled`, `ended`, or `test`",
    "LAUNCH_NOTIFY_TITLE": "the message in one line; the whole message is on stdin, as JSON",
}
_DEFAULTS = (
    ("`OMP_NUM_THREADS`", "the cores of a rank"),
    ("`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`", "the network interface that has the node's address"),
    ("`PYTHONUNBUFFERED`", "1"),
    ("`THP_MEM_ALLOC_ENABLE`", "1: torch uses huge pages for large tensors on the CPU"),
    ("`TORCH_NCCL_ASYNC_ERROR_HANDLING`", "1; 0 with `recovery.mode: hot`, as ranks continue after another was killed"),
    ("`TORCH_NCCL_DUMP_ON_TIMEOUT`", "0 with `recovery.mode: hot`"),
)
_NO_VARIABLES = {"LAUNCH_FAILED"}  # a state of Slurm's
# Between two processes of ours, one of which takes it out of the environment: no user and no rank ever sees it.
_OF_OURS_ALONE = {
    "LAUNCH_AGENT_PLACE",
    "LAUNCH_SHARED_EVENT",
    "LAUNCH_LEASE",
    "LAUNCH_NEXT_AGENT",
    "LAUNCH_TAG_ROOM",
    "LAUNCH_ZYGOTE",
}


def pages() -> dict[str, str]:
    """Name and text of each."""
    made = {"commands.md": _commands, "json.md": _json, "exit-codes.md": _exit_codes, "environment.md": _environment}
    return {name: make() for name, make in made.items()}


def variables_in_the_code() -> set[str]:
    """Every name of a variable of ours that stands in it."""
    texts = [path.read_text() for folder in ("launcher", "trainer") for path in (ROOT / folder).rglob("*.py")]
    strings = {node.value for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    found = {one for one in strings if isinstance(one, str) and re.fullmatch(r"LAUNCH_[A-Z_]+", one)}
    return found - _NO_VARIABLES - _OF_OURS_ALONE


def _commands() -> str:
    listed = ", ".join(f"[`{name}`](#launch-{name.replace(' ', '-')})" for name in COMMANDS if name not in INSTEAD)
    also = ", ".join(f"`{theirs}` is `{ours}`" for theirs, ours in ALSO.items())
    intro = (
        f"All commands: {listed}. {also[0].upper()}{also[1:]}. RUN is a run's id, a unique beginning of one, or "
        "`last`. Data goes to stdout, everything else to stderr; what `--json` prints: [JSON](json.md). How they end: "
        "[exit codes](exit-codes.md)."
    )
    return "\n".join(["# Commands and their options", "", _MADE, "", intro, *_of_each()]) + "\n"


def _of_each() -> Iterator[str]:
    for name in COMMANDS:
        place, summary = shown(name)
        module, arguments = import_module(place), arguments_of(name)
        taken = [one for one in arguments.taken if one.help != argparse.SUPPRESS and "--help" not in one.option_strings]
        yield from ("", f"## launch {name}", "", f"{summary[0].upper()}{summary[1:]}.", "")
        if taken:
            yield from (*_table("option", "is", ((_cell(_names(one)), _cell(one.help or "")) for one in taken)), "")
        yield from ("```", *(line.removeprefix("  ") for line in module.EXAMPLES.strip("\n").splitlines()), "```")


def _names(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _value(action)
    return f"`{', '.join(action.option_strings)}{' ' if action.option_strings and value else ''}{value}`"


def _value(action: argparse.Action) -> str:
    if action.metavar is None and action.choices is not None:
        return f"{{{','.join(map(str, action.choices))}}}"
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    many = {"+": f"{name}...", "*": f"[{name}...]", "?": f"[{name}]", argparse.REMAINDER: f"[{name}...]"}
    return many.get(str(action.nargs), name)


def _json() -> str:
    """Return the page of what each command prints with --json, by the fields of its types."""
    types: dict[str, Schema] = {}
    answers = [line for name in COMMANDS if name not in WITHOUT_JSON for line in _answers_of(name, types)]
    without = [f"| `launch {name}` | {why} |" for name, why in WITHOUT_JSON.items()]
    return "\n".join([
        "# The JSON that commands print", "", _MADE, "",
        "With `--json` stdout holds one JSON document, or where it says so an object on each line. The command",
        "`launch spec schema wait` prints the JSON Schema of one. A later version may add fields, and takes none away.",
        "Times are Unix times; `T[]` is a list, `{KEY: T}` an object with any keys, `field?` may be absent. How to use",
        "it: [for agents](agents.md).",
        "", "| command | prints |", "|---|---|", *answers, "",
        "## Commands without it", "", "| command | because it |", "|---|---|", *without, "",
        "## Types",
        *(line for name, schema in sorted(types.items()) for line in _type_of(name, schema)),
    ]) + "\n"  # fmt: skip


def _answers_of(name: str, types: dict[str, Schema]) -> Iterator[str]:
    arguments = arguments_of(name)
    schema = schema_of(arguments.answers())
    for known, found in schema.get("$defs", {}).items():
        assert types.setdefault(known, found) == found, f"two types of answers are called {known}"
    for one in schema.get("anyOf", [schema]) if "description" in str(schema.get("anyOf")) else [schema]:
        when = f", {one['description']}" if "description" in one and "anyOf" in schema else ""
        line = " on each line" if arguments.answers_by_line else ""
        yield f"| `launch {name}`{when} | `{_cell(_shape(one))}`{line} |"


def _type_of(name: str, schema: Schema) -> Iterator[str]:
    yield from ("", f"### {name}", "")
    if "description" in schema:
        yield from (" ".join(schema["description"].split()), "")
    if "properties" not in schema:
        yield f"`{_shape(schema)}`"
        return
    needed = schema.get("required", [])
    comments = _comments()
    for field, kind in schema["properties"].items():
        about = next((comments[one, field] for one in (name, *_MERGED.get(name, ())) if (one, field) in comments), "")
        optional = "" if field in needed or "default" in kind else "?"
        yield f"- `{field}{optional}`: `{_shape(kind)}`" + (f"; {about}" if about else "")


@cache
def _comments() -> dict[tuple[str, str], str]:
    """Return the comments behind fields in the code, by class and field."""
    found = {}
    for path in (*ROOT.glob("launcher/**/*.py"), *ROOT.glob("trainer/checkpoint_files/*.py")):
        lines = (text := path.read_text()).splitlines()
        for one in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)):
            for field in (each for each in one.body if isinstance(each, ast.AnnAssign)):
                comment = lines[(field.end_lineno or 1) - 1][field.end_col_offset or 0 :].partition("#")[2]
                found[one.name, ast.unparse(field.target)] = comment.strip()
    return found


def _shape(schema: Schema) -> str:
    """A JSON Schema as a type in one line."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(map(_shape, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    match schema.get("type"):
        case "array" if "prefixItems" in schema:
            return f"[{', '.join(map(_shape, schema['prefixItems']))}]"
        case "array":
            item = _shape(schema.get("items", {}))
            return f"({item})[]" if " | " in item else f"{item}[]"
        case "object":
            return f"{{KEY: {_shape(schema.get('additionalProperties', {}))}}}"
        case kind:
            return str(kind or "any")


def _exit_codes() -> str:
    rows = [f"| {code.value} | {code.name.lower()} | {MEANING[code]} |" for code in sorted(Exit)]
    intro = (
        "Codes below 10, 130 and 141 are results of a command. Codes 10 to 24 are results of a run, returned by "
        "`launch wait`, `launch run` and `--follow`. Only a rank exits with 75, never `launch`. If a submit fails "
        "after it has started runs, it prints their ids, and exits with a code other than 2."
    )
    return (
        "\n".join(["# Exit codes", "", _MADE, "", intro, "", "| code | name | when |", "|---|---|---|", *rows]) + "\n"
    )


def _environment() -> str:
    return "\n".join([
        "# Environment variables", "", _MADE, "",
        "## What you may set for launch", "", *_of_variables(OF_THE_USER), "",
        "## What a rank finds", "",
        "A rank has all variables that `torchrun` sets: `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `LOCAL_WORLD_SIZE`,",
        "`GROUP_RANK`, `GROUP_WORLD_SIZE`, `ROLE_*`, `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_*`. It also has:", "",
        *_of_variables(OF_A_RANK), "",
        "These variables have defaults, which `env:` of the spec and your own exports replace:", "",
        *_table("variable", "default", _DEFAULTS), "",
        "## What a command of `notify:` finds", "",
        *_of_variables(OF_A_LISTENER), "",
        "## What is never passed on", "",
        "With these variables a program could take itself for another rank. So a rank does not inherit them, and",
        "`env:` cannot set them. `*` stands for any characters.", "",
        *_table("read by", "names", ((who, _code(", ".join(names))) for who, names in WHO_READS_WHAT)),
    ]) + "\n"  # fmt: skip


def _table(head: str, other: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"| {head} | {other} |", "|---|---|", *(f"| {first} | {second} |" for first, second in rows)]


def _of_variables(words: Mapping[str, str]) -> list[str]:
    return _table("variable", "is", ((_code(names), text) for names, text in words.items()))


def _code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def _cell(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|")


def main() -> None:
    for name, text in pages().items():
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    main()
