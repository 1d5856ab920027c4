"""The checks bite: each of these small breaks of a promise, made in a copy of the launcher, turns its tests red."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import launcher

pytestmark = pytest.mark.nightly

TESTS = Path(__file__).parents[1]
PYTEST = [sys.executable, "-P", "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
SABOTAGES = {
    "a fenced coordinator goes on": (
        "agent/scribe.py", "check_fence(self._run, self._attempt.number)", "self._run",
        "local/test_recovery.py", "older_attempt",
    ),
    "a pid is enough to be killed": (
        "agent/processes.py", "if alive(process) is not True:", "if False:",
        "agent/test_processes.py", "whole_identity",
    ),
    "a tag that only begins alike counts": (
        "agent/processes.py", "in wanted.keys() & environment:",
        "in [one for one in wanted if any(word.startswith(one) for word in environment)]:",
        "agent/test_processes.py", "whole_folder",
    ),
    "orphans are not looked for": (
        "agent/processes.py", "stack.append(pid)", "stack.clear()",
        "agent/test_processes.py", "reach_down",
    ),
    "any proof will do": (
        "agent/wire.py", "_check(hmac.compare_digest(proof.mac", "_check(True or hmac.compare_digest(proof.mac",
        "agent/test_wire.py", "wrong_token or recorded",
    ),
    "agents trust any coordinator": (
        "agent/wire.py", "_check(hmac.compare_digest(answer.mac", "_check(True or hmac.compare_digest(answer.mac",
        "agent/test_wire.py", "without_the_token",
    ),
    "a proof opens any server": (
        "agent/wire.py", 'f"{side}|{client}|{server}|{nonces}"', 'f"{side}|{nonces}"',
        "agent/replication/test_server.py", "opens_no_other",
    ),
    "drafts are checkpoints": (
        "agent/replication/choice.py", "if found.committed]", "]",
        "agent/replication/test_choice.py", "nobody_has_committed",
    ),
    "a silent node has nothing": (
        "agent/replication/choice.py", "if certain else ((), newer)", "",
        "agent/replication/test_choice.py", "does_not_answer",
    ),
    "ranks start before all disks are whole": (
        "agent/replication/replication.py", "                await self._wait_for_others(start)\n", "",
        "agent/replication/test_replication.py", "wait_for_the_last",
    ),
    "what came damaged is counted on again": (
        "agent/replication/replication.py", "                        await self._doubt(server, get)\n", "",
        "agent/replication/test_replication.py", "chooses_an_older",
    ),
    "a long fetch is a hang": (
        "agent/coordination/watching.py",
        "attempt.start_by = attempt.mono + START_S\n            megabytes", "megabytes",
        "agent/test_disks_apart.py", "as_long_as",
    ),
    "one copy is enough": (
        "agent/coordination/generation.py", "if len(nodes) == len(self.members):", "if nodes:",
        "agent/test_disks_apart.py", "is_safe",
    ),
    "another launcher's variables leak": (
        "agent/environment.py", '"SLURM_",', "",
        "agent/test_environment.py", "",
    ),
    "late forks outlive their generation": (
        "agent/ranks/zygote_link.py", "while self._wishes:", "while False:",
        "agent/test_ranks.py", "late_fork",
    ),
    "two keepers carry out one attempt": (
        "supervisor/allocation.py",
        "FileExistsError:\n        return False", "FileExistsError:\n        return True",
        "local/test_submit_kills.py", "two_keepers",
    ),
    "the keeper forgets a dead submitter": (
        "clusters/local/local_supervisor.py", "or _left_behind(self.run)", "or None",
        "local/test_submit_kills.py", "intent_whose",
    ),
    "stacks are not dumped": (
        "agent/ranks/group.py", "signal_process(rank.process, DUMP_SIGNAL)", "rank.process.pid",
        "local/test_recovery.py", "hang and asleep",
    ),
    "secrets go into the plan": (
        "plan/build.py", "**spec.env, **which}", "**spec.env, **which, **__import__('os').environ}",
        "local/test_runs.py", "secrets",
    ),
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_it_is_noticed(name, tmp_path):
    file, sound, broken, tests, which = SABOTAGES[name]
    copy = tmp_path / "launcher"
    shutil.copytree(Path(launcher.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert text.count(sound) == 1, f"{file} has changed: {sound!r}"
    (copy / file).write_text(text.replace(sound, broken))
    for kind in ("templates", "jobs"):
        (tmp_path / kind).symlink_to(TESTS.parent / kind)
    done = subprocess.run(
        [*PYTEST, "-x", "--timeout", "60", str(TESTS / tests), "-k", which],
        cwd=TESTS.parent,
        env={**environment(), "PYTHONPATH": str(tmp_path), "LAUNCH_TEST_BOUND_S": "15"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 1, done.stdout
    assert " failed" in done.stdout, done.stdout


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}


def test_without_sabotage_they_pass(tmp_path):
    """Else the tests above would be red for another reason."""
    shutil.copytree(Path(launcher.__file__).parent, tmp_path / "launcher")
    selected = sorted({f"{TESTS / tests}" for _, _, _, tests, _ in SABOTAGES.values() if tests.startswith("agent")})
    done = subprocess.run(
        [*PYTEST, *selected],
        cwd=TESTS.parent,
        env={**environment(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
