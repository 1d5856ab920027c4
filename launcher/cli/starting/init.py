"""`launch spec init`: write a commented spec to start from, with the JSON Schema for editors, or a skill: a folder
(agentskills.io) from which a coding agent learns to use `launch`.

A coding agent reads a skill only when a task asks for it, so no file of the user's, such as AGENTS.md, has to change.
Claude Code looks in `.claude/skills`; Codex, Copilot, Cursor, Gemini CLI and others in `.agents/skills`.
"""

import argparse
import contextlib
import json
import os
import re
import sys
from pathlib import Path

from launcher.cli.arguments import Arguments
from launcher.cli.shipped import pages, shipped, starter, starters
from launcher.cli.starting.script_options import job_name, scalar
from launcher.cli.terminal import columns, safe
from launcher.errors import BadInput, Exit, Refused, said_by_the_system
from launcher.run.durable import make_dir, write_bytes
from launcher.run.registry import hide_from_git
from launcher.spec.fields import schema

EXAMPLES = """
  launch spec init                        writes job.yaml with the options that every job needs
  launch spec init ddp --output big.yaml  another template, to another file
  launch spec init --list                 lists the templates
  launch spec init --from train.py        with the script's own options, and their defaults, as args
  launch init --agents                    teaches coding agents `launch`: a skill in .claude/skills and .agents/skills
"""
_SKILLS = (Path(".claude", "skills", "launch"), Path(".agents", "skills", "launch"))
_SKILL_HEAD = """---
name: launch
description: Start, follow, compare, resume and tune training jobs with the `launch` command, on this machine, on SSH
  hosts or on Slurm. Use it whenever a script trains a model, runs for longer than a minute or needs several GPUs, when
  variants are to be compared, and when a run has failed or was interrupted.
---

"""
_SCHEMA = Path(".launch") / "job.schema.json"


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch spec init`."""
    arguments.add_argument(
        "template", metavar="TEMPLATE", nargs="?", default="minimal", help="the template (default: minimal)"
    )
    arguments.add_argument(
        "--output", "-o", metavar="FILE", default="job.yaml", help="the file, or a folder for job.yaml; -: print"
    )
    arguments.add_argument(
        "--from", metavar="SCRIPT", dest="script", help="write a spec for this script, with its argparse options"
    )
    arguments.add_argument("--list", action="store_true", help="show the templates; write nothing")
    arguments.add_argument("--agents", action="store_true", help="write a skill for coding agents into the project")
    arguments.add_argument("--force", action="store_true", help="with --agents: overwrite an existing skill")


def run(options: argparse.Namespace) -> int:
    """Run `launch spec init` and return its exit code."""
    if options.list:
        print("\n".join(columns(list(starters().items()))))
        return Exit.OK
    if options.agents:
        return _write_skill(overwrite=options.force)
    file = Path(options.output)
    if options.output == "-":
        text = starter(options.template) if options.script is None else _for_script(options.script, file)
        print(text.partition("\n")[2], end="")  # without the schema, which is beside a file
        return Exit.OK
    if options.output.endswith("/") or file.is_dir():
        file /= "job.yaml"
    text = starter(options.template) if options.script is None else _for_script(options.script, file)
    _write_new(file, text.replace("{{schema}}", _SCHEMA.as_posix()))
    try:
        _write_schema(file.parent / _SCHEMA)
    except BaseException:
        file.unlink()  # half of it would be in the way of the next
        raise
    print(safe(str(file)))
    print(f"edit it, then: launch submit {safe(str(file))}", file=sys.stderr)
    return Exit.OK


def _write_skill(*, overwrite: bool) -> int:
    """Write the skill for coding agents into the project: a page and a script; return the exit code. Raise Refused if a
    file cannot be written.

    Existing files that differ are replaced only with `overwrite`; without it, raise BadInput before anything is
    written.
    """
    from launcher.submission.project import project_of  # late: only for this

    page = pages()["agents"].read_text(encoding="utf-8")
    page = re.sub(r"\[([^\]]+)\]\(([\w-]+)\.md\)", r"\1 (`launch help \2`)", page)
    script = (shipped("templates") / "hill_climb.py").read_text(encoding="utf-8")
    project = project_of(Path("job.yaml"))
    files = {
        project / skill / name: text
        for skill in _SKILLS
        for name, text in (("SKILL.md", _SKILL_HEAD + page), ("scripts/hill_climb.py", script))
    }
    other = [file for file, text in files.items() if os.path.lexists(file) and not _has(file, text)]
    if other and not overwrite:
        raise BadInput(f"{other[0]} exists already, and is different", "hint: --force writes over it")
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise Refused(f"cannot write {file}: {said_by_the_system(error)}") from error
        print(safe(str(file)))
    return Exit.OK


def _has(file: Path, text: str) -> bool:
    """Return whether the file exists and its content is exactly this text."""
    return file.is_file() and file.read_bytes() == text.encode()


def _for_script(script: str, file: Path) -> str:
    """Return the text of a spec for the script, with the options that the script declares.

    Required options are to be filled in by the user; options without a known default are comments. `file` is where the
    spec will be.
    """
    from launcher.cli.starting.script_options import script_options  # late: only for --from
    from launcher.submission.project import project_of  # late: likewise

    lines, rest = list[str](), list[str]()
    for one in script_options(Path(script)):
        about = f"  # {' '.join(one.help.split())}" if one.help else ""
        if one.positional:
            rest.append(one.name)
        elif one.value is None and one.required:
            lines.append(f"    {one.name}: FILL_IN{about}")
        else:
            value = f" {one.value}" if one.value is not None else ""
            lines.append(f"    {'' if value else '#'}{one.name}:{value}{about}")
    path = os.path.relpath(script, project_of(file))
    given = any(not line.startswith("    #") for line in lines)
    return "\n".join([
        "# yaml-language-server: $schema={{schema}}",
        f"# {path}, with its own defaults",
        f"name: {scalar(job_name(script))}",
        "",
        "run:",
        f"  script: {scalar(path)}",
        *(["  args:"] if given else ["  #args:"] if lines else []),
        *lines,
        *([f"  # it takes {' '.join(rest)} too: args as a list, [--key, value, ...], can hold that"] if rest else []),
        "",
    ])  # fmt: skip


def _write_schema(file: Path) -> None:
    """Write the JSON Schema of specs to `file`, and let git ignore everything in its folder, which is created if it is
    missing. Raise Refused if that fails.
    """
    made = not file.parent.exists()
    try:
        make_dir(file.parent)
        write_bytes(file, json.dumps(schema({}), indent=2).encode() + b"\n")
        hide_from_git(file.parent)
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                file.parent.rmdir()
        raise Refused(f"cannot write {file}: {said_by_the_system(error)}") from error


def _write_new(file: Path, text: str) -> None:
    """Write a new file; raise BadInput if it exists."""
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        there = "exists already" if file.exists() else "is a link that leads nowhere"
        raise BadInput(f"{file} {there}", "hint: `--output FILE` writes to another") from None
    except OSError as error:
        hint = "hint: its folder has to exist; `--output FILE` writes to another place"
        raise BadInput(f"cannot write {file}: {error.strerror}", hint) from None
