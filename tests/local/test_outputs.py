"""`launch fetch --outputs`: what a script writes to relative paths."""

SCRIPT = """
from pathlib import Path
Path("results").mkdir(exist_ok=True)
Path("results/out.csv").write_text("1,2")
Path("notes.txt").write_text("hello")
"""


def job(lab, more=""):
    lab.script("train.py", SCRIPT)
    return lab.spec(f"name: writes\nrun: {{script: train.py{more}}}\nresources: {{ranks_per_node: 1}}\n")


def brought(lab, run):
    folder = lab.run_dir(run) / "fetched-outputs"
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_all_that_is_written_beside_the_code(lab):
    run = lab.submit(job(lab))
    lab.wait(run)
    said = lab.launch("fetch", run, "--outputs").stdout
    assert f"outputs, 2 files: {lab.run_dir(run)}/fetched-outputs" in said
    assert brought(lab, run) == ["notes.txt", "results/out.csv"]
    assert not (lab.project / "notes.txt").exists()


def test_what_the_spec_points_at(lab):
    run = lab.submit(job(lab, ", outputs: [results/]"))
    lab.wait(run)
    assert "outputs, 1 file: " in lab.launch("fetch", run, "--outputs").stdout
    assert brought(lab, run) == ["results/out.csv"]


def test_where_nothing_was_written(lab):
    run = lab.submit(job(lab, ", outputs: [figures/]"))
    lab.wait(run)
    assert "no outputs: ranks have written nothing of figures/" in lab.launch("fetch", run, "--outputs").stdout
