"""The page about a plan that `launch submit --dry-run` prints."""

import posixpath
import shlex
from collections.abc import Sequence

from launcher.cli import figures
from launcher.cli.terminal import columns, paint, safe
from launcher.places.place import Preview
from launcher.plan.model import NodePlan, Plan
from launcher.plan.placement import (
    crosses_nodes,
    groups_of_node,
    pipeline_parallel,
    stages_of_ranks,
    tensor_parallel,
)
from launcher.run.code.listing import CodeList

_LARGEST = 5


def plan_page(plan: Plan, code: CodeList, preview: Preview | None = None) -> list[str]:
    """Return the lines of the page about a plan and the `code` to be frozen; `preview` is what the batch system would
    receive (None: there is no batch system).
    """
    return [
        f"{paint(safe(plan.name), 'bold')} would run on {safe(plan.cluster)}; nothing was started",
        "",
        *columns(_facts(plan), indent="  "),
        *_section("nodes", [_node(plan, node) for node in plan.nodes]),
        *_section("roles beside the main one", [_role(role) for role in plan.roles]),
        *_section("environment of every rank", _environment(plan)),
        *_section(
            f"code: {figures.count(len(code.files), 'file')}, {figures.size(code.bytes)}; the largest", _largest(code)
        ),
        *_handed(preview),
    ]


def _role(plan: Plan) -> tuple[str, ...]:
    """Return the table row (name, command, nodes and ranks, GPUs) of a role other than the main one. `plan` is that of
    the role or, if each of its ranks restarts alone, that of one rank, which gets a row of its own.
    """
    name = posixpath.basename(plan.run_dir)
    ranks = figures.count(plan.ranks_per_node * plan.nodes_max, "rank")
    if plan.one_machine:
        gpus = " ".join(safe(",".join(node.gpus or ())) or "none" for node in plan.nodes)
    else:
        gpus = _span([*range(plan.first_gpu, plan.first_gpu + plan.gpus_per_node)]) or "none"
    nodes = figures.count(plan.nodes_max, "node")
    where = "" if plan.one_machine else f" ({_span([*range(plan.first_host, plan.first_host + plan.nodes_max)])})"
    return name, safe(_command(plan)), f"{nodes}{where}, {ranks}", f"GPUs {gpus}"


def _span(numbers: Sequence[int]) -> str:
    """Return consecutive numbers as text: `2-4` for 2, 3, 4; "" for none."""
    return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else "".join(map(str, numbers))


def _handed(preview: Preview | None) -> list[str]:
    """Return the lines with exactly what the batch system would receive, or an empty list for clusters without one."""
    if preview is None:
        return []
    lines = [f"  {safe(line)}" for line in preview.script.splitlines()]
    return ["", paint("batch script", "bold"), *lines, "", safe(preview.answer)]


def _facts(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows (name, text) of facts about the plan, such as its command, project, numbers of nodes and ranks,
    and run folder.
    """
    nodes = str(plan.nodes_max) if plan.nodes_min == plan.nodes_max else f"{plan.nodes_min}..{plan.nodes_max}"
    many = figures.count(plan.nodes_max, "node").replace(str(plan.nodes_max), nodes, 1)
    world = f"{many}, {figures.count(plan.ranks_per_node, 'rank')} each"
    each = f"{figures.count(plan.cpus_per_rank, 'CPU')} a rank, {figures.count(plan.gpus_per_node, 'GPU')} a node"
    rows = [
        ("command", safe(_command(plan))),
        ("project", f"{safe(plan.project)}: paths of the spec begin there, and its code is frozen"),
        ("in", f"{safe(plan.run_dir)}/{safe(plan.workdir)}: the frozen code; relative outputs land there"),
        *([("first role" if plan.ends_with_all else "main role", safe(plan.role))] if plan.role else []),
        ("world", f"{world} ({each})"),
        *_mesh(plan),
        ("run folder", f"{safe(plan.run_dir)}, for example: the end of its name is drawn anew by every submit"),
    ]
    if plan.setup is not None:
        rows.insert(0, ("setup", safe(plan.setup.strip().replace("\n", "; "))))
    if plan.spec.resources.time_s is not None:
        rows.append(("time limit", figures.duration(plan.spec.resources.time_s)))
    if plan.told:
        rows.append(("tells", safe(", ".join(plan.told))))
    if plan.own_folders:
        rows.append(("imports from", safe(", ".join(posixpath.normpath(f"code/{one}") for one in plan.own_folders))))
    if plan.entry.preload:
        rows.append(("preloads", safe(", ".join(plan.entry.preload))))
    return rows


def _mesh(plan: Plan) -> list[tuple[str, str]]:
    """Return rows (name, text) that tell which ranks share layers (tensor parallel) and which stages ranks have
    (pipeline parallel); an empty list if neither is used.
    """
    tp, pp, ranks = tensor_parallel(plan.entry.args), pipeline_parallel(plan.entry.args), plan.ranks_per_node
    rows = [("mesh", crosses_nodes(tp, ranks) or groups_of_node(tp, ranks))] if tp > 1 else []
    return rows + ([("stages", stages_of_ranks(pp, ranks * plan.nodes_max))] if pp > 1 else [])


def _command(plan: Plan) -> str:
    """Return the command line that each rank runs."""
    entry = plan.entry
    match entry.kind:
        case "script":
            words = [entry.python, entry.target]
        case "module":
            words = [entry.python, "-m", entry.target]
        case "command":
            words = [entry.target]
    return shlex.join([*words, *entry.args])


def _node(plan: Plan, node: NodePlan) -> tuple[str, ...]:
    """Return the table row of a node."""
    ranks = "spare" if node.spare else figures.count(plan.ranks_per_node, "rank")
    gpus = "" if node.gpus is None else f"GPUs {','.join(node.gpus) or 'none'}"
    return (f"node {node.index}", safe(node.address) or "named by the cluster", ranks, safe(gpus))


def _environment(plan: Plan) -> list[tuple[str, ...]]:
    """Return the rows (name, value) of environment variables; the values of secrets are not shown."""
    rows: list[tuple[str, ...]] = [(safe(name), safe(value)) for name, value in plan.env.items()]
    return rows + [(safe(name), "(secret: its value is read at submit and never shown)") for name in plan.secrets]


def _largest(code: CodeList) -> list[tuple[str, ...]]:
    """Return the rows (size, path) of the five largest files of code."""
    largest = sorted(code.files, key=lambda entry: (-entry.size, entry.path))[:_LARGEST]
    return [(figures.size(entry.size), safe(entry.path)) for entry in largest]


def _section(title: str, rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table of these rows of cells below its title, or an empty list if it has no rows."""
    return ["", paint(title, "bold"), *columns(rows, indent="  ")] if rows else []
