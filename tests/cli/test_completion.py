"""What the shells themselves make of the scripts, and how soon ids are there."""

import os
import subprocess
import sys

import pytest

from launcher.cli.commands import COMMANDS, GROUPS, shown_in_help

# What takes a tenth of a second to import, or more.
HEAVY = {"asyncio", "ssl", "http", "email", "multiprocessing", "paramiko", "submitit", "torch", "numpy", "starlette"}
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
    assert complete("") >= {
        *(name for name in COMMANDS if " " not in name and shown_in_help(name)), *GROUPS, "ls", "ps", "stop", "help",
    }  # fmt: skip
    assert complete("ha") == complete("tag") == set()
    assert complete("nodes", "") == {"list", "trust", "drain", "move", "include"}
    assert complete("nodes", "drain", "res") == complete("drain", "res") == {"resnet-4ykr", "resnet-9x2d"}
    assert complete("spec", "init", "ss") == {"ssh"}
    assert complete("can") == {"cancel"}
    assert complete("status", "--state", "fai") == {"failed"}
    assert complete("status", "--columns", "che") == complete("status", "--sort", "che") == {"checkpoint"}
    assert complete("sweep", "be") == {"best"}
    assert complete("submit", "job.yaml", "--set", "resources.no") == {"resources.nodes="}
    assert complete("help", "chec") == {"checkpoints"}
    assert complete("logs", "res") == complete("logs", "-f", "res") == {"resnet-4ykr", "resnet-9x2d"}
    assert complete("stop", "") == {"resnet-4ykr", "resnet-9x2d", "last"}
    assert complete("submit", "job.yaml", "--on", "my") == {"mypool"}
    assert complete("submit", "--dry") == {"--dry-run"}
    assert complete("init", "ss") == {"ssh"}
    assert complete("doctor", "--backend", "") == {"auto", "gloo", "nccl"}


@pytest.mark.parametrize("what", ["runs", "clusters"])
def test_candidates_are_there_at_once(desk, what):
    """What would make them late is not imported, and no folder of a run is gone through. How long they take by the
    clock depends on the machine."""
    for number in range(100):
        desk.run(f"job-{number:04d}").succeeded()
    (desk.root / "clusters.yaml").write_text("mypool: {kind: ssh, hosts: [gpu01]}\n")
    look = (
        "import sys; from launcher.cli.main import main; opened = set();"
        "sys.addaudithook(lambda event, args: opened.add(str(args[0])) if event in ('open', 'os.listdir') else None);"
        "main(sys.argv[1:]); print(*sorted(sys.modules), sep='\\n', file=sys.stderr);"
        "print(*[path for path in opened if 'job-0' in path], sep='\\n', file=sys.stderr)"
    )
    env = {**desk.env, "LAUNCH_CLUSTERS": str(desk.root / "clusters.yaml")}
    words = [sys.executable, "-c", look, "_complete", what]
    done = subprocess.run(words, env=env, cwd=desk.root, capture_output=True, text=True, check=True)
    assert ("job-0099" if what == "runs" else "mypool") in done.stdout.split()
    told = {line.partition(".")[0] for line in done.stderr.splitlines()}
    assert "launcher" in told and not told & HEAVY
    assert "job-0" not in done.stderr
