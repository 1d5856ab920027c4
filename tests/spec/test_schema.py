"""The JSON Schema says what the reader does: never narrower, and as narrow as JSON Schema and YAML 1.2 can be."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no stubs of its own
import pytest

from launcher.cli.shipped import shipped, starter, starters
from launcher.errors import BadInput
from launcher.spec.fields import schema
from launcher.spec.read import parse_spec
from launcher.spec.tree import Mapping, Node, Scalar, Sequence
from launcher.spec.yaml_reader import read_tree

FULL = (Path(__file__).parent / "full.yaml").read_text()
HEAD = "name: a\nrun: {script: t.py}\n"


def as_editor(node: Node) -> Any:
    """Return the values that an editor's YAML 1.2 reads."""
    match node:
        case Mapping():
            return {entry.key.text: as_editor(entry.value) for entry in node}
        case Sequence():
            return [as_editor(item) for item in node.items]
        case Scalar(text, plain=True):
            return _core(text)
        case Scalar(text):
            return text
    raise AssertionError(node)


def _core(text: str) -> Any:
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?[0-9]+", text):
        return int(text)
    return float(text) if re.fullmatch(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", text) else text


def accepts(text: str) -> bool:
    root = read_tree(text).root
    assert root is not None
    return bool(jsonschema.Draft202012Validator(schema({})).is_valid(as_editor(root)))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema({}))


def test_the_shipped_one_is_of_this_table() -> None:
    shown = (shipped("templates") / "job.schema.json").read_text()
    assert shown == json.dumps(schema({}), indent=2) + "\n", "launch spec schema > templates/job.schema.json"


GOOD = [
    FULL,
    HEAD,
    "name: a\nrun: {module: a.b, args: [1, yes, ''], preload: []}\n",
    "name: a\nrun: {command: [./x, 1]}\n",
    "name: 007\nrun: {command: ./x}\n",
    HEAD + "resources:\nenv:\nsecrets:\ncode:\ncheckpoint:\nrecovery:\nslurm:\nssh:\n",
    HEAD + "env: {A: 1, B: true, C: 1e5, D: no}\n",
    HEAD + "checkpoint: {every: 10m}\n",
    HEAD + "slurm: {nodelist: [a, b], mail_type: [END]}\n",
    *(starter(name) for name in starters()),
]

BAD = [
    "run: {script: a}\n",
    "name: a\n",
    "name: A\nrun: {script: a}\n",
    "name: a\nrun:\n",
    "name: a\nrun: {}\n",
    "name: a\nrun: {script: a, module: b}\n",
    "name: a\nrun: {script: /a}\n",
    "name: a\nrun: {script: a/../b}\n",
    "name: a\nrun: {script: a, args: true}\n",
    "name: a\nrun: {script: a, args: {x: {}}}\n",
    "name: a\nrun: {script: a, args: {x y: 1}}\n",
    "name: a\nrun: {script: a, preload: torch}\n",
    "name: a\nrun: {module: a/b}\n",
    "name: a\nrun: {module: train.py}\n",
    HEAD + "resource: {}\n",
    HEAD + "resources: {nodes: two}\n",
    HEAD + "resources: {nodes: 0}\n",
    HEAD + "resources: {nodes: 2-4}\n",
    HEAD + "resources: {ranks_per_node: all}\n",
    HEAD + "resources: {ranks_per_node: '4'}\n",
    HEAD + "resources: {memory_gb: 0}\n",
    HEAD + "resources: {time: 90}\n",
    HEAD + "resources: {time: 2 h}\n",
    HEAD + "env: {A: }\n",
    HEAD + "env: {A: [b]}\n",
    HEAD + "env: {RANK: 1}\n",
    HEAD + "env: {SLURM_STEP_X: 1}\n",
    HEAD + "env: {A-B: 1}\n",
    HEAD + "secrets: A\n",
    HEAD + "secrets: [A-B]\n",
    HEAD + "secrets: [{A: b, C: d}]\n",
    HEAD + "code: {max_size: 100}\n",
    HEAD + "code: {max_size: 100mb}\n",
    HEAD + "checkpoint: {every: 500}\n",
    HEAD + "checkpoint: {keep: 0}\n",
    HEAD + "recovery: {killed: many}\n",
    HEAD + "recovery: {killed: {restart: 1}}\n",
    HEAD + "recovery: {killed: {backoff: 1}}\n",
    HEAD + "recovery: {hang_after: never}\n",
    HEAD + "slurm: {partition: a b}\n",
    HEAD + "slurm: {mail_type: end}\n",
    HEAD + "slurm: {extra: {wrap: x}}\n",
    HEAD + "ssh: {hosts: [-x]}\n",
    HEAD + "ssh: {hosts: [{port: 1}]}\n",
    HEAD + "ssh: {shared: yes}\n",
]


@pytest.mark.parametrize("text", GOOD, ids=lambda text: ascii(text[:60]))
def test_what_is_read_fits(text: str) -> None:
    parse_spec(text, "job.yaml")
    assert accepts(text)


@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text[:60]))
def test_what_does_not_fit_is_not_read(text: str) -> None:
    assert not accepts(text)
    with pytest.raises(BadInput):
        parse_spec(text, "job.yaml")


def test_editors_have_words_and_defaults_to_show() -> None:
    nodes = schema({})["properties"]["resources"]["properties"]["nodes"]
    assert nodes["default"] == 1
    assert "nodes" in nodes["description"]
    recovery = schema({})["properties"]["recovery"]["properties"]
    assert (recovery["hang_after"]["default"], recovery["preempted"]["default"]) == ("auto", "unlimited")
