"""Specs that programs make."""

import dataclasses
from pathlib import Path
from types import MappingProxyType

import msgspec
import pytest

from launcher.errors import BadInput
from launcher.spec.read import parse_spec
from launcher.spec.written import written


@dataclasses.dataclass
class Entry:
    script: Path = Path("train.py")
    module: str | None = None
    args: dict = dataclasses.field(default_factory=lambda: {"lr": 1e-5, "amp": True, "betas": (0.9, 0.99)})


@dataclasses.dataclass
class Job:
    name: str = "job"
    run: Entry = dataclasses.field(default_factory=Entry)
    resources: MappingProxyType | None = None


def test_an_object_is_read_as_what_would_stand_in_yaml():
    spec = parse_spec(written(Job(resources=MappingProxyType({"nodes": "1..2", "time": "2h"}))), "spec")
    assert (spec.name, spec.run.script, spec.run.module) == ("job", "train.py", None)
    assert spec.run.args == ("--lr", "1e-05", "--amp", "--betas", "0.9", "0.99")
    assert (spec.resources.nodes.max, spec.resources.time_s) == (2, 7200.0)


@pytest.mark.parametrize("text", ["yes", "1e3", "null", "a: b", "# no", "two\nlines", "ü", "'\"\\"])
def test_text_stays_this_very_text(text):
    spec = parse_spec(written({"name": "job", "run": {"script": "train.py"}, "env": {"A": text}}), "spec")
    assert spec.env == {"A": text}


def test_a_struct_and_none():
    job = msgspec.defstruct("Job", ["name", "run", ("description", str | None, None)])
    spec = parse_spec(written(job("job", {"command": ["true"], "setup": None})), "spec")
    assert (spec.run.command, spec.run.setup, spec.description) == (("true",), None, "")


@pytest.mark.parametrize("spec", [3, None, [1], "text"])
def test_what_is_no_mapping(spec):
    with pytest.raises(BadInput, match="expected the path of a file, a dict or an object with its fields, got"):
        written(spec)


def test_what_no_spec_can_hold():
    with pytest.raises(BadInput, match="spec: cannot be written down"):
        written({"name": "job", "run": {"script": open}})
    endless: dict = {}
    endless["run"] = endless
    with pytest.raises(BadInput, match="spec: cannot be written down"):
        written(endless)
