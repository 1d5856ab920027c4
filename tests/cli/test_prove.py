"""`launch prove`: what is refused before anything is started."""

import pytest

SPEC = "name: x\nrun: {script: train.py, preload: [], args: {lr: 1}}\nresources: {ranks_per_node: 1}\n"


@pytest.fixture
def project(desk):
    (desk.root / "pyproject.toml").write_text("[project]\nname = 'theirs'\n")
    (desk.root / "train.py").write_text("")
    (desk.root / "job.yaml").write_text(SPEC)
    return desk


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["none.yaml"], 2, "none.yaml"),
        (["nobody-7k3f"], 3, "nobody-7k3f"),
        (["job.yaml", "--modes", "warm,cold"], 2, "--modes: expected some of warm, power, hot, got 'cold'"),
        (["job.yaml", "--kills", "0"], 2, "expected a number above 0, got '0'"),
        (
            ["job.yaml", "--steps", "3", "--kills", "5"],
            2,
            "--kills: expected at most 2 of a training of 3 steps, got 5",
        ),
        (["job.yaml", "--steps", "30"], 2, "--steps: its args have none of --max-steps"),
        (["job.yaml", "--set", "resources.nodes=two"], 2, "resources.nodes"),
        (["job.yaml", "--on", "nowhere"], 2, "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(project, words, code, said):
    done = project.launch("prove", *words, check=code)
    assert said in done.stderr
    assert done.stdout == ""
    assert not (project.root / ".launch").exists()


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("{module: trainer.tasks.gpt}", "run.args.max-steps=30"),
        ("{script: train.py, args: {max_steps: 5}}", "run.args.max_steps=30"),
        ("{script: train.py, args: [--total-steps=5]}", "run.args.total-steps=30"),
    ],
)
def test_what_makes_a_training_shorter_is_known_by_its_name(run, expected):
    from launcher.apps.repeated_runs import steps_override
    from launcher.spec.read import parse_spec

    assert steps_override(parse_spec(f"name: x\nrun: {run}\n", "x.yaml").run, 30) == expected


def test_a_script_with_the_trainers_settings_is_made_shorter_by_their_own_option(tmp_path):
    from launcher.apps.repeated_runs import steps_override
    from launcher.errors import BadInput
    from launcher.spec.read import parse_spec

    run = parse_spec("name: x\nrun: {script: train.py, args: {lr: 0.1}}\n", "x.yaml").run
    (tmp_path / "train.py").write_text("from trainer import add_options\n\nadd_options(parser, max_steps=500)\n")
    assert steps_override(run, 30, tmp_path) == "run.args.max-steps=30"
    (tmp_path / "train.py").write_text("from theirs import add_options\n\nadd_options(parser)\n")
    with pytest.raises(BadInput, match="its args have none of"):
        steps_override(run, 30, tmp_path)
