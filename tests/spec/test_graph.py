"""Files with `steps:`: their order, what one step is given of another, and what is wrong, all at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from launcher.errors import BadInput
from launcher.spec.graph.reading import GraphSpec, block_text, is_graph, place_of, read_graph
from launcher.spec.graph.references import StepOutputs
from launcher.spec.model import Predecessor
from launcher.spec.order import circle, in_order, needed_by
from launcher.spec.read import parse_spec
from launcher.spec.tree import Entry, Mapping, Mark, Node, Scalar, Sequence
from launcher.spec.yaml_reader import read_tree

Read = Callable[..., GraphSpec]
HERE = Mark(1, 1)
TWO = """\
name: two
run:
  module: my.train
  args: {lr: 0.1, deterministic: true}
env: {A: '1', B: x}
steps:
  test:
    needs: train
    run:
      script: test.py
      args: {weights: "${steps.train.best_checkpoint}"}
    env: {B: ~, C: "${steps.train.run}:${steps.train.run_dir}"}
    queue: {after: other-7k3f}
  train:
    run:
      args: {lr: 0.5, steps: 10}
    checkpoint: {dir: saved}
"""
OUTPUTS = {"train": StepOutputs("two-7k3f-train", "/runs/t", "/runs/t/saved", "/runs/t/saved/best")}


@pytest.fixture
def read(tmp_path: Path) -> Read:
    file = tmp_path / "g.yaml"

    def of(text: str, *overrides: str) -> GraphSpec:
        file.write_text(text)
        return read_graph(file, overrides)

    return of


def problems(read: Read, text: str, *overrides: str) -> list[str]:
    with pytest.raises(BadInput) as error:
        read(text, *overrides)
    return [line.rpartition("g.yaml:")[2] for line in error.value.lines]


def test_every_step_comes_after_those_that_it_needs_and_else_as_in_the_file() -> None:
    assert in_order({"c": ["a", "b"], "b": ["a"], "d": [], "a": []}) == ["d", "a", "b", "c"]
    assert in_order({"b": [], "a": []}) == ["b", "a"]


def test_a_circle_is_found_and_what_only_hangs_on_it_is_none_of_it() -> None:
    assert circle({"a": [], "b": ["a"]}) == []
    assert circle({"a": ["a"]}) == ["a"]
    assert circle({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}) == ["a", "b", "c"]


def test_what_is_needed_by_way_of_others_is_needed() -> None:
    assert needed_by("c", {"a": [], "b": ["a"], "c": ["b"], "d": []}) == {"a", "b"}


def test_a_step_is_what_holds_for_all_with_its_own_words_laid_over_it(read: Read) -> None:
    train, test = read(TWO).steps
    assert (train.name, train.needs, test.name, test.needs) == ("train", (), "test", ("train",))
    assert train.spec.name == "two-train"
    assert train.spec.run.module == "my.train"
    assert train.spec.run.args == ("--lr", "0.5", "--deterministic", "--steps", "10")
    assert (test.spec.run.script, test.spec.run.module) == ("test.py", None), "who names a script takes no module over"
    assert train.spec.env == {"A": "1", "B": "x"}
    assert test.spec.env.keys() == {"A", "C"}, "null takes out what is common"


def test_the_text_of_a_step_is_a_spec_with_all_filled_in(read: Read) -> None:
    graph = read(TWO)
    spec = parse_spec(graph.text_of(graph.steps[1], OUTPUTS, ["two-7k3f-train"]), "test.yaml")
    assert spec.run.args[-2:] == ("--weights", "/runs/t/saved/best")
    assert spec.env["C"] == "two-7k3f-train:/runs/t"
    assert spec.queue.after == (Predecessor("other-7k3f"), Predecessor("two-7k3f-train"))


def test_overrides_are_of_all_steps_or_of_one(read: Read) -> None:
    train, test = read(TWO, "env.A=2", "steps.train.run.args.lr=9", "steps.test.needs=[]", "steps.test.run.args=[]",
                       "steps.test.env.C=x").steps[::-1]  # fmt: skip
    assert (train.name, train.spec.run.args[1], train.spec.env["A"]) == ("train", "9", "2")
    assert (test.needs, test.spec.run.args, test.spec.env["A"]) == ((), (), "2")


def test_a_circle_and_an_unknown_need_are_told_with_their_places(read: Read) -> None:
    text = "name: a\nrun: {script: x.py}\nsteps:\n  one:\n    needs: [two]\n  two: {needs: [one, twoo]}\n"
    assert problems(read, text) == [
        "5:12: steps.one.needs: none of these could ever start: one needs two, two needs one",
        "6:16: steps.two.needs: no step 'twoo'",
        "hint: did you mean two?",
    ]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("trian.run_dir", ["no step 'trian'", "did you mean train?"]),
        ("train.rundir", ["expected one of run, run_dir, checkpoints, best_checkpoint", "did you mean run_dir?"]),
        ("train", ["expected one of run, run_dir, checkpoints, best_checkpoint", None]),
        ("other.run", ["test does not need other", "write other into its `needs`"]),
        ("test.run", ["a step is given nothing of itself", "LAUNCH_RUN_DIR is its own folder"]),
    ],
)
def test_a_reference_that_leads_nowhere_is_told(read: Read, reference: str, said: list[str | None]) -> None:
    text = (
        "name: a\nrun: {script: x.py}\nsteps:\n  train: {}\n  other: {}\n  test:\n    needs: train\n"
        f'    run: {{args: [--x, "${{steps.{reference}}}"]}}\n'
    )
    first, hint = problems(read, text)
    assert first == f"8:23: steps.test.run.args[1]: ${{steps.{reference}}}: {said[0]}"
    assert said[1] is None or hint == f"hint: {said[1]}"


def test_of_what_holds_for_all_a_mistake_is_told_once_and_of_a_step_as_its_own(read: Read) -> None:
    text = (
        "name: a\nresources: {nodes: two}\nsteps:\n  one: {run: {script: x.py}}\n  two: {code: {}, resource: {}}\n"
        "  three: {}\n"
    )
    assert problems(read, text) == [
        "2:20: resources.nodes: expected an integer or a range like 2..4, got 'two'",
        "5:9: steps.two.code: is of all steps",
        "hint: write code beside `steps`",
        "5:19: steps.two.resource: unknown option",
        "hint: did you mean resources?",
        "6:10: steps.three.run: missing",
        "hint: write run: {script: train.py}",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: {a: {run: {script: x.py}}}\n", "1:1: name: expected a name of a-z, 0-9, _ and -, at most 63 long"),
        ("name: a\nsteps: {}\n", "2:8: steps: expected a mapping from the names of steps to their specs"),
        ("name: a\nsteps: [a]\n", "2:8: steps: expected a mapping from the names of steps to their specs"),
        ("name: a\nsteps: {A: {}}\n", "2:9: steps.A: expected the name of a step"),
        ("name: a\nsteps: {a: x}\n", "2:12: steps.a: expected a mapping of options, got 'x'"),
        ("name: a\nsteps: {a: {needs: {}}}\n", "2:20: steps.a.needs: expected the name of a step"),
        ("name: a\nrun: {script: x}\nqueue: {max_parallel: 2}\nsteps: {a: {}}\n", "3:23: queue.max_parallel: does not"),
    ],
)
def test_what_are_no_steps(read: Read, text: str, said: str) -> None:
    assert problems(read, text)[0].startswith(said)


def test_where_one_job_is_expected_a_file_with_steps_says_who_takes_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="x:6:1: steps: several jobs, where a single one is expected"):
        parse_spec(TWO, "x")
    (tmp_path / "a.yaml").write_text(TWO)
    (tmp_path / "b.yaml").write_text("name: b\nsteps:\n")
    assert [is_graph(tmp_path / name) for name in ("a.yaml", "b.yaml", "none.yaml")] == [True, False, False]


def test_a_place_is_looked_for_in_the_step_and_then_in_what_holds_for_all() -> None:
    assert place_of(TWO, "test", "run.script") == (10, 15, "steps.test.run.script")
    assert place_of(TWO, "train", "env.A") == (5, 10, "env.A")
    assert place_of(TWO, "train", "run.module") == (3, 11, "run.module"), "of the same mapping, and not its own"
    assert place_of(TWO, "train", "run.python") == (15, 5, "steps.train.run.python")
    assert place_of(TWO, "train", "queue.after.0")[2] == "queue.after.0", "it needs nothing"
    needs = TWO.replace("    queue: {after: other-7k3f}\n", "")
    assert place_of(needs, "test", "queue.after.0") == (8, 12, "steps.test.needs")


def as_read(node: Node) -> object:
    """Return the node as dicts, lists and pairs (text, plain), without places."""
    match node:
        case Mapping():
            return {key: as_read(entry.value) for key, entry in node.entries.items()}
        case Sequence():
            return [as_read(item) for item in node.items]
        case Scalar(text, plain):
            return text, plain
    raise AssertionError(node)


TEXTS = some.text(some.characters(min_codepoint=32, max_codepoint=0x24F, exclude_categories=["C"]), max_size=8)
SCALARS = TEXTS.map(lambda text: Scalar(text, False, HERE)) | some.sampled_from(
    [Scalar(text, True, HERE) for text in ("", "1", "true", "1e-3", "~", "a b", "2..4", "90s", "a#b", "x:y")]
)


def mapping(pairs: dict[str, Any]) -> Mapping:
    return Mapping({key: Entry(Scalar(key, False, HERE), value) for key, value in pairs.items()}, HERE)


NODES = some.recursive(
    SCALARS,
    lambda inner: (
        some.lists(inner, max_size=3).map(lambda items: Sequence(items, HERE))
        | some.dictionaries(TEXTS.filter(bool), inner, max_size=3).map(mapping)
    ),
    max_leaves=8,
)


@given(some.dictionaries(TEXTS.filter(bool), NODES, min_size=1, max_size=4).map(mapping))
def test_a_tree_reads_as_the_same_tree_again(tree: Mapping) -> None:
    read = read_tree(block_text(tree))
    assert read.problems == []
    assert read.root is not None
    assert as_read(read.root) == as_read(tree)
