"""The points of grids, of files and of searches that look at no result."""

import pytest

from launcher.apps.sweeps.points import grid, override_of, points_in, space_of
from launcher.apps.sweeps.trial_book import foreseen
from launcher.errors import BadInput
from launcher.spec.model import Dimension, SweepOptions
from launcher.spec.read import parse_spec

SPACE = {
    "run.args.model": Dimension(values=("resnet", "gpt")),
    "run.args.depth": Dimension(low=2, high=6, step=2, whole=True, when=("run.args.model", "resnet")),
    "run.args.lr": Dimension(low=1e-5, high=1e-1, log=True),
}


def test_a_grid_leaves_out_what_does_not_apply():
    space = {key: SPACE[key] for key in ("run.args.model", "run.args.depth")}
    model, depth = space
    assert grid(space) == [*({model: "resnet", depth: value} for value in (2, 4, 6)), {model: "gpt"}]
    assert grid({"a.b": Dimension(low=0.1, high=0.3, step=0.1)}) == [{"a.b": 0.1}, {"a.b": 0.2}, {"a.b": 0.3}]
    with pytest.raises(BadInput, match="more than 100000 points"):
        grid({f"run.args.a{n}": Dimension(values=tuple(range(100))) for n in range(3)})


@pytest.mark.parametrize("value", [True, False, 32, 1e-5, "resnet", "true", "no", "a: b # 'c'", "12:30"])
def test_a_value_comes_to_the_script_as_it_was_written(value):
    args = parse_spec("name: a\nrun: {script: t.py}\n", "job.yaml", (override_of("run.args.x", value),)).run.args
    expected = {True: ("--x",), False: ()}.get(value) if isinstance(value, bool) else ("--x", str(value))
    assert args == expected


@pytest.mark.parametrize("search", ["random", "qmc"])
def test_the_same_seed_gives_the_same_points_however_many_are_wanted(search):
    options = SweepOptions("acc", "max", search, space=SPACE)
    few, many = foreseen(options, 7, 5), foreseen(options, 7, 12)
    assert many[:5] == few
    assert foreseen(options, 8, 5) != few
    assert all(("run.args.depth" in point) == (point["run.args.model"] == "resnet") for point in many)
    assert len({point["run.args.lr"] for point in many}) == 12


def test_a_file_of_points(tmp_path):
    file = tmp_path / "points.csv"
    file.write_text("run.args.lr, run.args.model\n1e-3, resnet\n2, \n")
    points = points_in(file)
    assert points == [{"run.args.lr": 1e-3, "run.args.model": "resnet"}, {"run.args.lr": 2}]
    assert space_of(points) == {
        "run.args.lr": Dimension(values=(1e-3, 2)),
        "run.args.model": Dimension(values=("resnet",)),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\n", "got 1 lines"),
        ("a,b\n1\n", "points.csv:2:1: expected 2 values, got 1"),
        ("a,b\n1,2\n,\n", "points.csv:3:1: expected a point, got ','"),
    ],
)
def test_a_file_that_is_none(tmp_path, text, said):
    file = tmp_path / "points.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=said):
        points_in(file)
