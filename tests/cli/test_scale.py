"""`launch scale`: what is refused before anything is started."""

import pytest

SPEC = "name: x\nrun: {script: train.py, preload: [], args: {steps: 5}}\nresources: {ranks_per_node: 1}\n"


@pytest.fixture
def project(desk):
    (desk.root / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    (desk.root / "train.py").write_text("")
    (desk.root / "options.py").write_text("from trainer.loop import add_options\n")
    (desk.root / "job.yaml").write_text(SPEC)
    return desk


OURS = "run.script=options.py"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["none.yaml"], 2, "none.yaml"),
        (["nobody-7k3f"], 3, "nobody-7k3f"),
        (["job.yaml", "--ranks", "1,two"], 2, "expected a number above 0, got 'two'"),
        (["job.yaml", "--rounds", "0"], 2, "expected a number above 0, got '0'"),
        (["job.yaml", "--strategies", "ddp"], 2, "--strategies: expected a script with the trainer's options"),
        (["job.yaml", "--weak"], 2, "--strong, --weak: expected a script with the trainer's options"),
        (["job.yaml", "--set", "run.args={}"], 2, "--steps: its args have none of --max-steps"),
        (["job.yaml", "--strategies", "ddp,dpd"], 2, "--strategies: expected some of none, dp, ddp,"),
        (
            ["job.yaml", "--set", OURS, "--strategies", "dp,master", "--per-node", "2", "--ranks", "1,4"],
            2,
            "--strategies: dp is one process on one node: expected up to 2 ranks, got 4",
        ),
        (
            ["job.yaml", "--set", OURS, "--set", "resources.nodes=2", "--set", "resources.ranks_per_node=auto"],
            2,
            "--per-node",
        ),
        (
            ["job.yaml", "--set", OURS, "--per-node", "2", "--ranks", "1,3"],
            2,
            "--ranks: expected whole nodes of 2 ranks, got 3",
        ),
        (["job.yaml", "--set", "resources.nodes=two"], 2, "resources.nodes"),
        (["job.yaml", "--on", "nowhere"], 2, "nowhere"),
        (["job.yaml", "--role", "workers"], 2, "--role: no role 'workers'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(project, words, code, said):
    done = project.launch("scale", *words, check=code)
    assert said in done.stderr
    assert done.stdout == ""
    assert not (project.root / ".launch").exists()
