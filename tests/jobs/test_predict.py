"""`launch predict`: what a run has trained answers for each sample, in the run's own frozen code."""

import json

import pytest

from tests.docs.blocks import DOCS, block

pytestmark = pytest.mark.nightly

SPEC = """
name: words
run:
  module: {module}
  args: {layers: 1, width: 16, heads: 2, context: 32, max-steps: 4, batch-size: 4, strategy: none, text: some.txt,
    validate-every: 2, keep-best: true}
resources: {ranks_per_node: 1}
checkpoint: {every: 2 steps}
"""
TASK = "import sys\nfrom trainer.tasks.gpt import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.mark.daily
@pytest.mark.timeout(400)
def test_the_best_checkpoint_answers_in_the_code_as_it_was(lab):
    lab.script("task.py", TASK)
    (lab.project / "some.txt").write_text("".join(f"line {number}\n" for number in range(2000)))
    run = lab.submit(lab.spec(SPEC.replace("{module}", "task")))
    lab.wait(run)
    lab.script("task.py", "raise SystemExit('the code as it is now')\n")
    listed = json.loads(lab.launch("checkpoints", run, "--json").stdout)
    best = next(one["step"] for one in listed if one["kind"] == "best")
    prediction = lab.launch("predict", run, "-o", "out.jsonl").stdout.strip()
    assert prediction.startswith("words-predict-")
    lab.wait(prediction)
    about = json.loads((lab.project / "out.jsonl.about.json").read_text())
    lines = (lab.project / "out.jsonl").read_text().splitlines()
    assert (about["step"], about["samples"]) == (best, len(lines))
    assert [json.loads(line)["index"] for line in lines] == list(range(len(lines)))


@pytest.mark.timeout(400)
def test_of_other_data(lab):
    (lab.project / "some.txt").write_text("".join(f"line {number}\n" for number in range(2000)))
    (lab.project / "other.txt").write_text("".join(f"another {number}\n" for number in range(4000)))
    run = lab.submit(lab.spec(SPEC.replace("{module}", "trainer.tasks.gpt")))
    lab.wait(run)
    counts = []
    for name, words in (("own", ()), ("other", ("--data", "other.txt"))):
        lab.wait(lab.launch("predict", run, "-o", f"{name}.jsonl", *words).stdout.strip())
        counts.append(len((lab.project / f"{name}.jsonl").read_text().splitlines()))
    assert 0 < 2 * counts[0] < counts[1]


@pytest.mark.timeout(400)
def test_a_script_of_ones_own_predicts_as_the_page_shows_it(lab):
    lab.script("line.py", block(DOCS / "predictions.md", "python", "def answer"))
    run = lab.submit(lab.spec("name: line\nrun:\n  script: line.py\nresources:\n  ranks_per_node: 2\n"))
    lab.wait(run)
    prediction = json.loads(lab.launch("predict", run, "-o", "out.jsonl", "--json").stdout)["run"]
    lab.wait(prediction)
    lines = [json.loads(line) for line in (lab.project / "out.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(200))
    assert lines[0]["y"] == pytest.approx(-3, abs=0.2) and lines[-1]["y"] == pytest.approx(3, abs=0.2)
    assert json.loads((lab.project / "out.jsonl.about.json").read_text())["error"] < 0.2


def test_what_cannot_predict_is_said(lab):
    lab.script("plain.py", "")
    run = lab.submit(lab.spec("name: x\nrun:\n  script: plain.py\nresources:\n  ranks_per_node: 1\n"))
    lab.wait(run)
    assert "has no checkpoints here" in lab.launch("predict", run, "-o", "out", check=4).stderr
    (lab.run_dir(run) / "checkpoints" / "step-00000001").mkdir(parents=True)
    assert "plain.py has no --predict" in lab.launch("predict", run, "-o", "out", check=2).stderr
    command = lab.submit(lab.spec("name: z\nrun:\n  command: 'true'\nresources:\n  ranks_per_node: 1\n"))
    lab.wait(command)
    assert "a command is not known to predict" in lab.launch("predict", command, "-o", "out", check=2).stderr
    lab.script("task.py", "")
    other = lab.submit(lab.spec("name: y\nrun:\n  module: task\nresources:\n  ranks_per_node: 1\n"))
    lab.wait(other)
    assert "has no checkpoints here" in lab.launch("predict", other, "-o", "out", check=4).stderr
