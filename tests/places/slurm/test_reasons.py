"""Every reason that Slurm documents is said in plain words; any other is shown as it is."""

import random
import re
from pathlib import Path

import pytest

from launcher.places.slurm.queries.reasons import plain
from tests.sizes import SEED

RECORDED = Path(__file__).parent / "recorded"
DOCUMENTED = (RECORDED / "reasons.txt").read_text().split()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "waiting for nodes to become free"),
        ("(Resources)", "waiting for nodes to become free"),
        ("Priority", "other jobs are before it"),
        ("BeginTime", "starts after a delay"),
        ("QOSMaxJobsPerUserLimit", "you have as many jobs running as your QOS allows"),
        ("AssocMaxSubmitJobLimit", "you have as many jobs running or waiting as your account allows"),
        ("AssocGrpJobsLimit", "the users of your account together have as many jobs running as your account allows"),
        ("MaxJobsPerAccount", "your account has as many jobs running as your QOS allows"),
        ("AssocGrpCpuLimit", "all users of your account together may use no more CPUs"),
        ("AssocGrpCPUMinutesLimit", "all CPU minutes of your account are used up"),
        ("AssocGrpGRESRunMinutes", "running jobs have claimed all GPU (or other gres) minutes of your account"),
        ("QOSGrpWallLimit", "the run time of your QOS is used up"),
        ("QOSMaxWallDurationPerJobLimit", "its time limit is longer than your QOS allows"),
        ("QOSMaxGRESPerUser", "with it, you would use more GPUs (or other gres) than your QOS allows a user"),
        ("MaxMemoryPerAccount", "with it, your account would use more memory than your QOS allows an account"),
        ("QOSMaxCpuPerNode", "asks for more CPUs on a node than your QOS allows"),
        ("AssocMaxNodePerJobLimit", "asks for more nodes than your account allows a job"),
        ("AssocMaxBBMinutesPerJob", "asks for more burst buffer minutes than your account allows a job"),
        ("QOSMinCpuNotSatisfied", "your QOS demands more CPUs than it asks for"),
        ("MaxMemPerLimit", "asks for more memory on a node, or for a CPU, than allowed"),
        ("RaisedSignal:9(Killed)", "its process was killed by signal 9"),
        ("ReqNodeNotAvail", "a node that it needs is in use, reserved or down"),
        ("ReqNodeNotAvail, UnavailableNodes:", "a node that it needs is in use, reserved or down"),
        (
            "(ReqNodeNotAvail, UnavailableNodes:n[1-3],x7)",
            "a node that it needs is down, drained or does not answer: n[1-3],x7",
        ),
        ("ReqNodeNotAvail(Unavailable:n1)", "a node that it needs is down, drained or does not answer: n1"),
        (
            "ReqNodeNotAvail, Reserved for maintenance",
            "would not end before a maintenance begins: a shorter time limit may let it start",
        ),
        ("ReqNodeNotAvail,_May_be_reserved_for_other_job", "a node that it needs is kept for another job"),
        ("ReqNodeNotAvail, so there", "a node that it needs is in use, reserved or down (Slurm says: so there)"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "the nodes that it may use are down, drained, or kept for more important partitions",
        ),
        ("", "Slurm gives no reason"),
        ("(null)", "Slurm gives no reason"),
        ("ZodiacUnfavourable", "Slurm says: ZodiacUnfavourable"),
        ("wait\x1b[31m for\nit", "Slurm says: wait [31m for it"),
    ],
)
def test_words(reason, words):
    assert plain(reason) == words


@pytest.mark.parametrize("reason", ["JobHeldUser", "launch failed requeued held", "launch_failed_requeued_held"])
def test_what_its_owner_can_release_says_how(reason):
    assert plain(reason).startswith("held")
    assert "`scontrol release" in plain(reason)


def test_what_only_an_administrator_can_release_does_not():
    assert "scontrol" not in plain("JobHeldAdmin")


@pytest.mark.parametrize("reason", DOCUMENTED)
def test_every_documented_reason_has_words(reason):
    words = plain(reason)
    assert "Slurm says" not in words
    assert reason not in words
    assert not re.search(r"[a-z][A-Z]|  |None", words), words


def test_different_limits_have_different_words():
    limits = [reason for reason in DOCUMENTED if re.match("Assoc(Grp|Max)|QOS(Grp|Max|Min)|Max", reason)]
    assert len(limits) > 140
    assert len({plain(reason) for reason in limits}) == len(limits)


def test_garbage_becomes_one_printable_line():
    seed = SEED
    print(f"seed {seed}")
    draw = random.Random(seed)
    pieces = [
        *DOCUMENTED,
        "Assoc",
        "QOS",
        "Grp",
        "Max",
        "Min",
        "Per",
        "Job",
        "ReqNodeNotAvail",
        "Unavailable:",
        "(",
        ")",
    ]
    pieces += [",", " ", "_", "\n", "\x1b", "\x9b", "\0", "é", "Limit", "s", "Minutes", "RaisedSignal:"]
    for _ in range(5_000):
        words = plain("".join(draw.choices(pieces, k=draw.randint(0, 5))))
        assert words
        assert words.isprintable()
