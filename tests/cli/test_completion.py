"""What the shells themselves make of the scripts, and how soon ids are there."""

import os
import resource
import subprocess
import sys

import pytest

from launcher.cli.commands import COMMANDS

_BUDGET_S = 0.1
# Each completes a line that ends where the cursor is, and prints one candidate a line.
SHELLS = {
    "bash": [
        "bash", "--norc", "-c",
        'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _launch; printf "%s\\n" "${COMPREPLY[@]}"',
    ],
    "zsh": [
        "zsh", "-fc",
        # What bashcompinit does before it calls a function of bash's.
        'source "$0"; emulate sh; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _launch; printf "%s\\n" "${COMPREPLY[@]}"',
    ],
    "fish": ["fish", "--no-config", "-c", 'source $argv[1]; complete -C (string join " " -- $argv[2..])'],
}  # fmt: skip


@pytest.fixture(params=sorted(SHELLS))
def complete(request, desk):
    """The candidates for these words."""
    script = desk.root / "script"
    script.write_text(desk.launch("completion", request.param).stdout)
    (desk.root / "launch").write_text(f'#!/bin/sh\nexec {sys.executable} -m launcher.cli.main "$@"\n')
    (desk.root / "launch").chmod(0o755)
    (desk.root / "clusters.yaml").write_text("mypool: {kind: ssh, hosts: [gpu01]}\n")
    env = {
        **desk.env, "PATH": f"{desk.root}:{os.environ['PATH']}", "HOME": str(desk.root), "ZDOTDIR": str(desk.root),
        "LAUNCH_CLUSTERS": str(desk.root / "clusters.yaml"), "LC_ALL": "C.UTF-8",
    }  # fmt: skip

    def candidates(*words):
        done = subprocess.run(
            [*SHELLS[request.param], str(script), "launch", *words],
            env=env, cwd=desk.root, capture_output=True, text=True, check=False, timeout=150,
        )  # fmt: skip
        assert done.stderr == ""
        return {line.partition("\t")[0] for line in done.stdout.splitlines() if line}

    return candidates


def test_a_shell_completes(complete, desk):
    desk.run("resnet-4ykr").succeeded()
    desk.run("resnet-9x2d").succeeded()
    desk.run("gone-aaaa").path.rmdir()
    assert complete("") >= {*COMMANDS, "ls", "ps", "stop", "help"}
    assert complete("can") == {"cancel"}
    assert complete("help", "chec") == {"checkpoints"}
    assert complete("logs", "res") == complete("logs", "-f", "res") == {"resnet-4ykr", "resnet-9x2d"}
    assert complete("stop", "") == {"resnet-4ykr", "resnet-9x2d", "last"}
    assert complete("submit", "job.yaml", "--on", "my") == {"mypool"}
    assert complete("submit", "--dry") == {"--dry-run"}
    assert complete("init", "ss") == {"ssh"}
    assert complete("doctor", "--backend", "") == {"auto", "gloo", "nccl"}


@pytest.mark.parametrize("what", ["runs", "clusters"])
def test_candidates_are_there_at_once(desk, what):
    """By the time of the processor: what else this machine does is not counted. The best of some, and on a slow one
    measured by what Python itself takes there."""
    for number in range(100):
        desk.run(f"job-{number:04d}").succeeded()
    (desk.root / "clusters.yaml").write_text("mypool: {kind: ssh, hosts: [gpu01]}\n")
    took, alone = [], []
    for _ in range(5):
        began = spent()
        subprocess.run([sys.executable, "-c", ""], check=True)
        alone.append(spent() - began)
        began = spent()
        shown = desk.launch("_complete", what, env={"LAUNCH_CLUSTERS": str(desk.root / "clusters.yaml")}).stdout
        took.append(spent() - began)
    assert ("job-0099" if what == "runs" else "mypool") in shown.split()
    assert min(took) < max(_BUDGET_S, 8 * min(alone))


def spent():
    """Of the processor, by all that was started here and has ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
