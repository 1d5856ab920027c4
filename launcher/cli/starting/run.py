"""`launch run`: start a script without a spec, with torchrun's options, and show the spec that they stand for."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher import api
from launcher.cli.answers import StartedRun, started
from launcher.cli.arguments import Arguments
from launcher.cli.looking.logs import numbers
from launcher.cli.starting.script_options import flow, job_name, scalar
from launcher.cli.terminal import safe, show_news, to_json
from launcher.errors import BadInput, Exit
from launcher.run.attempts import read_plan
from launcher.run.layout import RunDir
from launcher.spec.model import Recovery
from launcher.states import LOCAL

EXAMPLES = """
  launch run train.py --lr 0.1                     a rank on each GPU, else one; shows its log, ends with its code
  launch run --nproc 4 train.py --lr 0.1           four ranks; what follows the script is the script's
  launch run --nnodes 2 --on mypool train.py       two nodes of a pool
  launch run --nproc 2 -m package.train            a module
  launch run --dry-run train.py --lr 0.1 > job.yaml    only print the spec of this command
"""
_PER_GPU = ("auto", "gpu")
_OF_PROGRAMS = ("user_error", "killed", "out_of_memory", "hang", "communication")
_MOST_NODES, _MOST_RANKS = 4096, 4096
# torchrun's own ways to find the other nodes: each node is started from here, and has them without.
_NEEDLESS = (
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port", "local-addr",
    "monitor-interval", "start-method", "role", "log-dir", "redirects", "tee",
)  # fmt: skip


def declare(arguments: Arguments) -> None:
    """Declare the arguments of `launch run`."""
    arguments.takes_place(default=LOCAL)
    arguments.of_the_script = "options of the script's come behind the script"
    arguments.add_argument(
        "--nproc", "--nproc-per-node", metavar="N", default="auto", type=_ranks,
        help="ranks on each node: a number, or auto for one per GPU, else 1 (default: auto)",
    )  # fmt: skip
    arguments.add_argument(
        "--nnodes", metavar="N", default="1", type=_nodes, help="nodes: a number, or MIN:MAX (default: 1)"
    )
    arguments.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module")
    arguments.add_argument("--no-python", action="store_true", help="SCRIPT is a program that is not Python")
    arguments.add_argument(
        "--max-restarts", metavar="N", type=_count,
        help="N restarts each after errors, signals, hangs and lost connections (default: those of the spec)",
    )  # fmt: skip
    arguments.add_argument(
        "--local-ranks-filter",
        metavar="N",
        type=numbers,
        help="show only the output of these ranks of each node: 0,2-3",
    )
    arguments.add_argument("--name", metavar="NAME", help="name of the job (default: that of the script)")
    arguments.add_argument("--detach", action="store_true", help="print the run's id and exit; the run continues")
    arguments.add_argument("--dry-run", action="store_true", help="print the spec; start and write nothing")
    arguments.prints_json(lambda: {"": StartedRun}, "with --detach: the run, as JSON")
    _declare_other_words(arguments)
    arguments.add_argument("program", metavar="SCRIPT", help="the file of the script")
    arguments.add_argument("words", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="arguments of the script")


def _declare_other_words(arguments: Arguments) -> None:
    """Declare torchrun's options that the help does not show: second spellings such as `--max_restarts`, and options
    such as `--rdzv-backend` that are accepted but not needed.
    """
    hidden, same = argparse.SUPPRESS, argparse.SUPPRESS
    arguments.add_argument("--standalone", action="store_true", help=hidden)
    arguments.add_argument("--node-rank", "--node_rank", default="0", help=hidden)
    arguments.add_argument("--nproc_per_node", dest="nproc", type=_ranks, default=same, help=hidden)
    arguments.add_argument("--no_python", dest="no_python", action="store_true", default=same, help=hidden)
    arguments.add_argument("--local_ranks_filter", dest="local_ranks_filter", type=numbers, default=same, help=hidden)
    arguments.add_argument("--max_restarts", dest="max_restarts", type=_count, default=same, help=hidden)
    for name in _NEEDLESS:
        short = ["-r"] if name == "redirects" else ["-t"] if name == "tee" else []
        arguments.add_argument(f"--{name}", f"--{name.replace('-', '_')}", *short, help=hidden)


def run(options: argparse.Namespace) -> int:
    """Run `launch run` and return its exit code."""
    if options.node_rank != "0":
        hint = "hint: run this once, and not on each node; --on POOL names the hosts"
        raise BadInput(f"--node-rank {options.node_rank}: all nodes are started from here", hint)
    if options.json and not options.detach:
        raise BadInput("--json goes with --detach", "hint: without it the log of the run is shown")
    place = _place(options)
    text = _spec(options, place)
    if options.dry_run:
        print(text, end="")
        return Exit.OK
    show_news()
    for line in text.splitlines():
        print(f"  {safe(line)}", file=sys.stderr)
    if not Path.cwd().is_relative_to(place.project):
        print(f"the script's project is {safe(str(place.project))}: ranks begin there", file=sys.stderr)
    with _written(text, place.project, job_name(options.program)) as file:
        one = api.submit(file, on=options.on, overrides=options.overrides)
    if told := _project_python(RunDir(one.path)):
        print(told, file=sys.stderr)
    print(to_json(started(one)) if options.json else one.id, flush=True)
    if options.detach:
        print(f"watch it: launch logs {one.id} -f", file=sys.stderr)
        return Exit.OK
    # late: not for --detach
    from launcher.cli.looking.follow import follow  # late: see above
    from launcher.status.log_choice import LogChoice  # late: see above

    return follow(one, LogChoice(ranks=_on_each_node(RunDir(one.path), options.local_ranks_filter)))


def _project_python(run: RunDir) -> str:
    """Return a note that the ranks use the project's own Python environment, if the user neither named nor activated
    it; else "".
    """
    plan = read_plan(run, 1)
    home = Path(plan.entry.python).parent.parent
    asked = plan.spec.run.python is not None or os.environ.get("VIRTUAL_ENV") == str(home)
    own = home == Path(plan.project, ".venv")
    return f"ranks run with the project's own Python: {safe(str(home))}" if own and not asked else ""


def _on_each_node(run: RunDir, local: Sequence[int] | None) -> frozenset[int] | None:
    """Return the ranks whose local rank, on any node, is in `local`; None, for all ranks, if that is None."""
    if local is None:
        return None
    plan = read_plan(run, 1)
    each = plan.ranks_per_node
    return frozenset(rank for rank in range(plan.nodes_max * each) if rank % each in local)


@dataclass(frozen=True, slots=True)
class _Place:
    """The project whose code is copied at submit (frozen), and the `folder` in it in which ranks start."""

    project: Path
    folder: Path

    @property
    def workdir(self) -> str:
        """The folder in which ranks start, relative to the project."""
        return self.folder.relative_to(self.project).as_posix()


def _place(options: argparse.Namespace) -> _Place:
    """Return the project whose code is frozen and the folder in which ranks start: the project of the current directory
    and that directory. If the script belongs to another project, both are that project's top folder.
    """
    from launcher.submission.project import (  # late: `launch run --help` would take as long as these
        marked_above,
        project_of,
    )

    here = Path.cwd()
    project, script = project_of(here / "job.yaml"), Path(os.path.abspath(options.program))
    ours = script.is_relative_to(project) and marked_above(here) is not None
    if options.module or options.no_python or ours or not script.is_file():
        return _Place(project, here)
    own = marked_above(script.parent.resolve())
    return _Place(project, here) if own is None or here.is_relative_to(own) else _Place(own, own)


def _spec(options: argparse.Namespace, place: _Place) -> str:
    """Return the text of the spec that the command's options stand for, with ranks that start in `place.folder`. What
    the command was not told is left out of the spec, so that the spec's defaults apply.

    Raise BadInput if the script does not exist or is not below that folder.
    """
    lines = [f"name: {scalar(options.name or job_name(options.program))}", "run:"]
    if options.no_python:
        lines.append(f"  command: {flow([options.program, *options.words])}")
    else:
        entry = (
            f"module: {scalar(options.program)}"
            if options.module
            else f"script: {scalar(_script(options.program, place.folder))}"
        )
        lines += [f"  {entry}", *([f"  args: {flow(options.words)}"] if options.words else [])]
    if place.workdir != ".":
        lines.append(f"  workdir: {scalar(place.workdir)}")
    lines += ["resources:", f"  nodes: {options.nnodes}", f"  ranks_per_node: {options.nproc}"]
    if options.max_restarts is not None:
        lines.append(f"recovery: {{{', '.join(_restarts(options.max_restarts))}}}")
    return "\n".join([*lines, ""])


def _restarts(most: str) -> list[str]:
    """Return entries of the spec's `recovery`, each as YAML, that allow `most` restarts for every cause that lies in
    the program, such as an exception or a hang.

    If that is more than the usual number of restarts in a row without a newer checkpoint (`no_progress`), an entry
    allows so many of those too.
    """
    usual = Recovery().no_progress
    causes = [f"{cause}: {most}" for cause in _OF_PROGRAMS]
    return [*causes, f"no_progress: {most}"] if usual is not None and int(most) > usual else causes


def _script(program: str, folder: Path) -> str:
    """Return the path, relative to `folder`, of the script that the user calls `program`; ranks start in `folder`.

    Raise BadInput if the script does not exist or is not below `folder`.
    """
    file = Path(program)
    if not file.is_file():
        hint = "hint: -m takes a module, --no-python a program" if file.suffix != ".py" else "hint: ls *.py"
        raise BadInput(f"{program}: no such file", hint)
    ways = Path(os.path.abspath(file)), file.parent.resolve() / file.name
    below = next((path for path in ways if path.is_relative_to(folder)), None)
    if below is None:
        raise BadInput(f"{program}: is not below {folder}", f"hint: cd {ways[0].parent}")
    return below.relative_to(folder).as_posix()


@contextmanager
def _written(text: str, project: Path, name: str) -> Iterator[Path]:
    """Write the spec to a temporary file in the project, whose name begins with `name`, and yield the file.

    It is deleted on exit; a BadInput raised inside is reported without the file's name and position.
    """
    from launcher.run.durable import make_dir, write_bytes  # late: what starts nothing does without
    from launcher.run.registry import hide_from_git  # late: likewise

    folder = project / ".launch"
    make_dir(folder)
    hide_from_git(folder)
    file = folder / f"{name}-{os.urandom(4).hex()}.yaml"
    write_bytes(file, text.encode())
    try:
        yield file
    except BadInput as error:
        raise BadInput(*(_without_place(line, file) for line in error.lines)) from error
    finally:
        file.unlink(missing_ok=True)


def _without_place(line: str, file: Path) -> str:
    """Return an error's line without the temporary file's name and position at its start."""
    return line.removeprefix(f"{file}:").lstrip("0123456789:").lstrip() if line.startswith(f"{file}:") else line


def _ranks(text: str) -> str:
    """Return torchrun's --nproc-per-node as a spec writes it: a number, or `auto` for one rank per GPU.

    `cpu` becomes the number of this machine's processors, `gpu` becomes `auto`. Raise ArgumentTypeError for any other
    text.
    """
    if text == "cpu":
        return str(os.cpu_count() or 1)
    if text in _PER_GPU:
        return "auto"
    return _number(text, _MOST_RANKS, "a number of ranks, auto, gpu or cpu")


def _nodes(text: str) -> str:
    """Return torchrun's --nnodes (`N` or `MIN:MAX`) as a spec writes it (`N` or `MIN..MAX`); raise ArgumentTypeError
    for any other text.
    """
    least, colon, most = text.partition(":")
    wanted = "a number of nodes, or MIN:MAX"
    return "..".join(_number(part, _MOST_NODES, wanted) for part in ((least, most) if colon else (least,)))


def _count(text: str) -> str:
    """Return the text if it is a number of at least 0; raise ArgumentTypeError for any other text."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return text


def _number(text: str, most: int, wanted: str) -> str:
    """Return the text unchanged if it is a number from 1 to `most`; else raise ArgumentTypeError with the message that
    `wanted` is expected.
    """
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= most):
        raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r}")
    return text
