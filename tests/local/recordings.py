"""Run folders as a version of `launch` has left them, for the versions that come after it to go on with.

    uv run python tests/local/recordings.py     records those of this version, once, when it is released

What differs between machines is written as `{{name}}`.
"""

import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from lab import Lab

from launcher.run.identity import boot_id, host
from launcher.states import VERSION

RECORDED = Path(__file__).parent / "recorded"
SPEC = "name: {name}\nrun:\n  script: count.py\n  args: {{{args}}}\nresources: {{ranks_per_node: 2}}\n"
RUNS = {"failed": "to: 6, fail-at: 3", "succeeded": "to: 3", "cut-off": "to: 6, wait-at: 3"}


def replay(version, name, lab):
    """A recorded run, in the project and the registry of this lab; gives its id."""
    run_id, project = f"{name}-4ykr", lab.project
    here = {"project": str(project), "python": sys.executable, "host": host(), "run": run_id, "boot": "another-boot"}
    for file in sorted((RECORDED / version / name).rglob("*")):
        there = project / ".launch" / "runs" / run_id / file.relative_to(RECORDED / version / name)
        if file.is_dir():
            there.mkdir(parents=True, exist_ok=True, mode=0o700)
            continue
        text = file.read_text()
        for word, value in here.items():
            text = text.replace(f"{{{{{word}}}}}", value)
        there.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        there.write_text(text)
    known = Path(lab.env["XDG_STATE_HOME"]) / "launch" / "runs"
    known.mkdir(parents=True, exist_ok=True, mode=0o700)
    (known / run_id).symlink_to(project / ".launch" / "runs" / run_id)
    return run_id


def record():
    """Record the folders of all RUNS; of the waiting run while it runs, as a power cut would leave it."""
    with tempfile.TemporaryDirectory() as root:
        lab = Lab(Path(root))
        lab.script("count.py")
        for name, args in RUNS.items():
            run = lab.submit(lab.spec(SPEC.format(name=name, args=args)))
            if name == "cut-off":
                lab.until_step(run, 3)
            else:
                lab.launch("wait", run, check=None)
            _keep(lab, run, RECORDED / VERSION / name)
        lab.launch("cancel", run)


def _keep(lab, run, there):
    python = os.path.abspath(sys.executable)
    words = {str(lab.project): "project", python: "python", host(): "host", run: "run", boot_id(): "boot"}
    shutil.rmtree(there, ignore_errors=True)
    for file in lab.run_dir(run).rglob("*"):
        if not file.is_file() or file.suffix == ".pyc":
            continue
        text = file.read_text()
        for value, word in words.items():
            text = text.replace(value, f"{{{{{word}}}}}")
        kept = there / file.relative_to(lab.run_dir(run))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(text)


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"launch {VERSION} on Python {platform.python_version()}")
    record()
