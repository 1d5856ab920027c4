"""The checks bite: each of these small breaks of a promise, made in a copy of the launcher, turns its tests red."""

import shutil
from pathlib import Path

import pytest

import launcher
from tests.inner_pytest import assert_can_be_made, assert_noticed, run_tests

pytestmark = pytest.mark.nightly

TESTS = Path(__file__).parents[1]
SABOTAGES = {
    "a fenced coordinator goes on": (
        "run/record_writer.py", "check_fence(self._run, self._attempt.number)", "self._run",
        "local/test_recovery.py", "older_attempt",
    ),
    "a pid is enough to be killed": (
        "run/processes.py", "if alive(process) is not True:", "if False:",
        "run/test_processes.py", "whole_identity",
    ),
    "a tag that only begins alike counts": (
        "run/processes.py", "in wanted.keys() & environment:",
        "in [one for one in wanted if any(word.startswith(one) for word in environment)]:",
        "run/test_processes.py", "whole_folder",
    ),
    "orphans are not looked for": (
        "run/processes.py", "stack.append(pid)", "stack.clear()",
        "run/test_processes.py", "reach_down",
    ),
    "any proof will do": (
        "wire/frames.py", "_check(hmac.compare_digest(proof.mac", "_check(True or hmac.compare_digest(proof.mac",
        "wire/test_frames.py", "wrong_token or recorded",
    ),
    "agents trust any coordinator": (
        "wire/frames.py", "_check(hmac.compare_digest(answer.mac", "_check(True or hmac.compare_digest(answer.mac",
        "wire/test_frames.py", "without_the_token",
    ),
    "a proof opens any server": (
        "wire/frames.py", 'f"{side}|{client}|{server}|{nonces}"', 'f"{side}|{nonces}"',
        "copies/test_server.py", "opens_no_other",
    ),
    "drafts are checkpoints": (
        "copies/choice.py", "return committed_over(((node, held) for",
        ("from dataclasses import replace\n"
        "    inventories = {node: held and [replace(one, committed=True) for one in held] for node, held in"
        " inventories.items()}\n    return committed_over(((node, held) for"),
        "copies/test_choice.py", "nobody_has_committed",
    ),
    "a silent node has nothing": (
        "copies/choice.py", "if certain else ((), newer)", "",
        "copies/test_choice.py", "does_not_answer",
    ),
    "ranks start before all disks are whole": (
        "copies/replication.py", "                await self._wait_for_others(start)\n", "",
        "copies/test_replication.py", "wait_for_the_last",
    ),
    "what came damaged is counted on again": (
        "copies/replication.py", "                        await self._report_damaged(server, get)\n", "",
        "copies/test_replication.py", "chooses_an_older",
    ),
    "a long fetch is a hang": (
        "coordinator/watching.py",
        "attempt.start_by = attempt.mono + START_S\n            megabytes", "megabytes",
        "node/test_disks_apart.py", "as_long_as",
    ),
    "one copy is enough": (
        "coordinator/generation.py", "if len(nodes) == len(self.members):", "if nodes:",
        "node/test_disks_apart.py", "is_safe",
    ),
    "another launcher's variables leak": (
        "node/environment.py", '"SLURM_",', "",
        "node/test_environment.py", "",
    ),
    "late forks outlive their generation": (
        "node/ranks/zygote_link.py", "while self._pending:", "while False:",
        "node/test_ranks.py", "late_fork",
    ),
    "two supervisors carry out one attempt": (
        "supervisor/allocation.py",
        "FileExistsError:\n        return False", "FileExistsError:\n        return True",
        "local/test_submit_kills.py", "two_supervisors",
    ),
    "the supervisor forgets a dead submitter": (
        "places/local/local_supervisor.py", "or _left_behind(self.run)", "or None",
        "local/test_submit_kills.py", "intent_whose",
    ),
    "stacks are not dumped": (
        "node/ranks/group.py", "signal_process(rank.process, DUMP_SIGNAL)\n                signal_process",
        "signal_process",
        "local/test_recovery.py", "hang and asleep",
    ),
    "secrets go into the plan": (
        "plan/build.py", "**spec.env, **which}", "**spec.env, **which, **__import__('os').environ}",
        "local/test_attacks.py", "secrets",
    ),
}  # fmt: skip


@pytest.mark.daily
@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_it_can_be_made(name):
    assert_can_be_made(SABOTAGES[name], Path(launcher.__file__).parent)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(SABOTAGES))
def test_it_is_noticed(name, tmp_path):
    assert_noticed(SABOTAGES[name], tmp_path)


def test_without_sabotage_they_pass(tmp_path):
    """Else the tests above would be red for another reason."""
    shutil.copytree(Path(launcher.__file__).parent, tmp_path / "launcher")
    selected = sorted({f"{TESTS / tests}" for _, _, _, tests, _ in SABOTAGES.values() if not tests.startswith("local")})
    done = run_tests(*selected, path=[tmp_path])
    assert done.returncode == 0, done.stdout
