"""Ranks import the project's own packages from the frozen code, whatever is edited and resumed afterwards."""

import package_layouts as layouts

WAITS = """
import os, sys, time
while os.path.exists(sys.argv[1]):
    time.sleep(0.01)
import imgproj
print("from", imgproj.__file__, imgproj.WORD)
sys.exit("fails")
"""


def test_what_is_edited_after_submit_reaches_neither_a_start_nor_a_resume(lab):
    made = layouts.uv_package(lab.project)
    lab.script("scripts/train.py", WAITS)
    run_as = f"script: scripts/train.py\n  python: .venv/bin/python\n  args: [{lab.brake}]"
    lab.spec(f"name: own\nrun:\n  {run_as}\nresources: {{ranks_per_node: 1}}\nrecovery: {{user_error: 0}}\n")
    lab.brake.touch()
    run = lab.submit("job.yaml")
    made.edit()
    lab.brake.unlink()
    lab.wait(run, check=10)
    lab.launch("resume", run)
    lab.wait(run, check=10)
    source = f"from {lab.run_dir(run)}/code/src/imgproj/__init__.py as submitted"
    assert lab.rank_logs(run).count(source) == 2, lab.rank_logs(run)


def test_a_package_that_cannot_be_frozen_is_named_at_submit(lab, tmp_path):
    made = layouts.uv_app(lab.project)
    theirs = tmp_path / "elsewhere" / "theirs"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").touch()
    made.path_file("theirs.pth", theirs.parent)
    lab.script("scripts/train.py", "import theirs\n")
    lab.spec("name: own\nrun: {script: scripts/train.py, python: .venv/bin/python}\nresources: {ranks_per_node: 1}\n")
    said = lab.launch("submit", "job.yaml", "--dry-run").stderr
    assert said.startswith(f"warning: theirs would be imported from {theirs}, which is not frozen")
