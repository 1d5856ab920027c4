"""Which private parts of packages are used, and that those packages have an upper bound for it."""

import ast
import importlib
import inspect
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A new release may take any of these away without a word. What is added here needs the bound in pyproject.toml.
USED = {
    "paramiko": {
        ("launcher/remote/paramiko_library.py", "_channel_handler_table"),
        ("launcher/remote/paramiko_library.py", "_check_keepalive"),
        ("launcher/remote/paramiko_library.py", "_close"),
        ("launcher/remote/paramiko_library.py", "_closed"),
        ("launcher/remote/paramiko_library.py", "_connect"),
        ("launcher/remote/paramiko_library.py", "_handle_request"),
        ("launcher/remote/paramiko_library.py", "_send_user_message"),
    },
    "submitit": {
        ("launcher/places/slurm/executor.py", "_get_job_id_from_submission_command"),
        ("launcher/places/slurm/executor.py", "_make_submission_command"),
        ("launcher/places/slurm/executor.py", "_make_submission_file_text"),
        ("launcher/places/slurm/executor.py", "_submitit_command_str"),
    },
    "torch": {
        ("launcher/node/zygote.py", "_C"),  # of any version: where they are not, a rank says so when it is asked
        ("launcher/node/zygote.py", "_distributed_c10d"),
        ("launcher/node/zygote.py", "_world"),
        ("launcher/plan/preload.py", "torch._dynamo"),
        ("trainer/checkpoint/names.py", "_orig_mod"),
        ("trainer/checkpoint_files/weight_files.py", "torch._utils"),  # in files that torch.load reads: it has to stay
        ("trainer/data/workers.py", "_worker_info"),
        ("trainer/strategies/finite.py", "_amp_foreach_non_finite_check_and_unscale_"),
        ("trainer/strategies/gradients.py", "_foreach_clamp_max_"),
        ("trainer/strategies/gradients.py", "_foreach_clamp_min_"),
        ("trainer/strategies/finite.py", "_foreach_mul_"),
        ("trainer/strategies/finite.py", "_step_supports_amp_scaling"),
        ("trainer/strategies/finite.py", "_values"),
        ("trainer/data/workers.py", "torch.utils.data._utils"),
        ("trainer/strategies/replicas.py", "_build_params_for_reducer"),
        ("trainer/strategies/replicas.py", "_inside_ddp_forward"),
        ("trainer/strategies/replicas.py", "_push_all_rebuilt_params"),
        ("trainer/strategies/replicas.py", "_rebuild_buckets"),
        ("trainer/strategies/replicas.py", "_run_ddp_forward"),
        ("trainer/strategies/broadcast.py", "_buffers"),
        ("trainer/strategies/broadcast.py", "_non_persistent_buffers_set"),
        ("trainer/strategies/compiling.py", "torch._dynamo"),
        ("trainer/strategies/compiling.py", "torch._dynamo.utils"),
        ("trainer/strategies/paging.py", "_apply"),
        ("trainer/strategies/paging.py", "_cdata"),
        ("trainer/strategies/paging.py", "_parameters"),
        ("trainer/strategies/paging.py", "torch.utils._python_dispatch"),
        ("trainer/strategies/paging.py", "torch.utils._pytree"),
        ("trainer/strategies/pipeline.py", "_parameters"),
        ("trainer/strategies/precision.py", "_per_optimizer_states"),
        ("trainer/strategies/shards.py", "_flatten"),
        ("trainer/loop/evaluation.py", "torch.utils._pytree"),
        ("trainer/loop/pipeline_loss.py", "torch.utils._pytree"),
        ("trainer/loop/shared_forward.py", "_compiled_call_impl"),
        ("trainer/loop/shared_forward.py", "_version"),
        ("trainer/loop/shared_forward.py", "torch.utils._pytree"),
        ("trainer/strategies/tensor_parallel.py", "torch.utils._pytree"),
        ("trainer/strategies/deferred_init.py", "_cdata"),
        ("trainer/strategies/deferred_init.py", "torch.utils._python_dispatch"),
        ("trainer/tasks/predict.py", "_get_default_store"),
        ("trainer/world.py", "_world"),
    },
}
# Python's own: documented in spite of their names, but for the last three.
OF_PYTHON = {
    "_exit",
    "_current_frames",
    "_fields",
    "_getframe",
    "_replace",
    "_clear",
    "_run_module_as_main",
    "_shutdown",
}


def is_private(name):
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def outside(name):
    return name.split(".")[0] not in ("launcher", "trainer")


def is_compiled(kind):
    return kind.__module__.startswith("torch._C")


class Uses(ast.NodeVisitor):
    """The private names of others in one file."""

    def __init__(self, ours):
        self.ours, self.found, self.known = ours, set(), {}

    def visit_Import(self, node):
        for alias in node.names:
            self.known[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else (alias.name.partition(".")[0])
            )
            self._note(alias.name, outside(alias.name))

    def visit_ImportFrom(self, node):
        for alias in node.names:
            self.known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            self._note(node.module if is_private(node.module or "") else alias.name, outside(node.module or ""))

    def visit_Attribute(self, node):
        """Note a private attribute of an object that is not the file's own."""
        on_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        self._note(node.attr, isinstance(node.value, ast.Attribute) or not (on_self or node.attr in self.ours))
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, str):
            self._note(node.value, re.fullmatch(r"(torch|paramiko|submitit)(\.\w+)+", node.value))

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr", "setattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            self._note(name, name not in self.ours)
        self.generic_visit(node)

    def visit_ClassDef(self, node):
        """Note private names of foreign base classes that a class replaces or uses."""
        theirs = {name for base in node.bases for name in self._privates_of(ast.unparse(base))}
        names = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
        names |= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        for name in names & theirs:
            self._note(name, True)
        self.generic_visit(node)

    def _privates_of(self, base):
        first, _, rest = base.partition(".")
        name = f"{self.known.get(first, '')}{'.' if rest else ''}{rest}"
        if name.split(".", maxsplit=1)[0] not in USED:
            return set()
        module, _, kind = name.rpartition(".")
        found = getattr(importlib.import_module(module), kind)
        theirs = [one for one in found.__mro__ if one.__module__.split(".")[0] in USED and not is_compiled(one)]
        sources = [inspect.getsource(one) for one in theirs]
        return set(re.findall(r"(?<=[. ])_[a-z]\w*", "\n".join(sources)))

    def _note(self, name, counts):
        if counts and is_private(name) and name not in OF_PYTHON:
            self.found.add(name)


def own_names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
                yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def uses_in(texts):
    found = set()
    for path, text in texts.items():
        tree = ast.parse(text)
        uses = Uses(set(own_names(tree)))
        uses.visit(tree)
        found |= {(path, name) for name in uses.found}
    return found


def test_every_private_name_of_a_package_that_is_used_is_listed_and_no_other():
    paths = [path for folder in ("launcher", "trainer") for path in (ROOT / folder).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    assert uses_in(texts) == {use for uses in USED.values() for use in uses}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from torch._inductor import config", "torch._inductor"),
        ("import torch.nn as nn\nnn._reduction.legacy()", "_reduction"),
        ("import torch\ngetattr(torch, '_C')", "_C"),
        ("import paramiko\nclass Mine(paramiko.Transport):\n  def _send_kex_init(self): self._x = 1", "_send_kex_init"),
        ("import paramiko\nclass Mine(paramiko.Transport):\n  def go(self): self._log(1, '')", "_log"),
        ("MODULES = ['torch._refs']", "torch._refs"),
    ],
)
def test_one_that_is_not_listed_is_noticed(text, name):
    assert uses_in({"launcher/new.py": text}) == {("launcher/new.py", name)}


@pytest.mark.parametrize("package", USED)
def test_a_package_of_which_private_parts_are_used_has_an_upper_bound(package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for more in project["optional-dependencies"].values() for one in more)]
    (of_it,) = [one for one in wanted if re.match(rf"{package}\b(?!-)", one)]
    assert re.search(r",<[0-9.]+$", of_it), of_it
