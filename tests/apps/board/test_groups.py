"""Runs that one command has started are told as a group."""

import pytest

from launcher.apps.board.groups import RunGroup, group_of
from launcher.apps.sweeps.folder import SweepDir, register_sweep
from launcher.run.graphs import GraphDir, register_graph
from launcher.run.records import Labels


@pytest.fixture
def runs(house):
    """The folder of runs of which some are of a sweep, and some of a file with steps."""
    runs = house.root / "runs"
    for folder in (runs / ".sweeps" / "lr-7k3f", runs / ".graphs" / "two-step-qth5"):
        folder.mkdir(parents=True)
    register_sweep(SweepDir(runs / ".sweeps" / "lr-7k3f"))
    register_graph(GraphDir(runs / ".graphs" / "two-step-qth5"))
    return runs


@pytest.mark.parametrize(
    ("run", "tags", "group"),
    [
        ("lr-7k3f-t0007", (), ("lr-7k3f", "sweep")),
        ("lr-7k3f", (), None),
        ("lr-9999-t0007", (), None),
        ("two-step-qth5-train", (), ("two-step-qth5", "steps")),
        ("two-step-qth5-pre-train", (), ("two-step-qth5", "steps")),
        ("two-step-qth6-train", (), None),
        ("vit-2222-alone", ("prove", "vit-2222"), ("vit-2222", "proof")),
        ("vit-2222-alone", ("prove",), None),
        ("vit-3333-n2", ("mine", "scale", "vit-3333"), ("vit-3333", "scaling")),
    ],
)
def test_a_group_is_told_by_names_and_places(runs, run, tags, group):
    assert group_of(run, runs / run, tags) == (group and RunGroup(*group))


def test_a_run_of_another_project_with_such_a_name_is_none_of_them(runs):
    assert group_of("lr-7k3f-t0007", runs.parent / "others" / "lr-7k3f-t0007", ()) is None


def test_the_table_says_so_also_once_a_run_was_tagged(board, house, runs):
    house.run("lr-7k3f-t0001").succeeded()
    proved = house.run("vit-2222-alone").running()
    groups = {"lr-7k3f-t0001": {"id": "lr-7k3f", "kind": "sweep"}, "vit-2222-alone": None}
    board.rows(lambda rows: {row["id"]: row["group"] for row in rows} == groups)
    proved.write(proved.run.labels, Labels(tags=("prove", "vit-2222")))
    groups["vit-2222-alone"] = {"id": "vit-2222", "kind": "proof"}
    board.rows(lambda rows: {row["id"]: row["group"] for row in rows} == groups)
