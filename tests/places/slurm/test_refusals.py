"""Test the message for a job that sbatch (Slurm 22.05) refuses."""

import pytest

from launcher.places.slurm.queries.refusals import refusal

FAILED = "sbatch: error: Batch job submission failed:"
NOWHERE = f"{FAILED} Requested node configuration is not available\n"
POLICY = f"{FAILED} Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"


@pytest.mark.parametrize(
    ("said", "why", "cure"),
    [
        (f"{FAILED} Invalid account or account/partition combination specified\n", "its account", "slurm.account"),
        (f"{FAILED} Invalid qos specification\n", "its QOS", "slurm.qos"),
        (f"sbatch: error: invalid partition specified: x\n{FAILED} Invalid partition name specified\n",
         "no such partition", "slurm.partition"),
        (f"{FAILED} Required partition not available (inactive or drain)\n", "takes no jobs now", "slurm.partition"),
        (f"{FAILED} Requested time limit is invalid (missing or exceeds some limit)\n", "time limit", "resources.time"),
        (f"{FAILED} Memory required by task is not available\n", "more memory", "resources.memory_gb"),
        (f"sbatch: error: Memory specification can not be satisfied\n{NOWHERE}",
         "more memory than a node has", "resources.memory_gb"),
        (f"{FAILED} Node count specification invalid\n", "nodes than its partition", "resources.nodes"),
        (f"{FAILED} More processors requested than permitted\n", "more CPUs", "resources.cpus_per_rank"),
        (f"{FAILED} Invalid feature specification\n", "feature", "slurm.constraint"),
        ("sbatch: error: Invalid generic resource (gres) specification\n", "generic resource", "slurm.gres"),
        (f"{FAILED} Requested reservation is invalid\n", "reservation", "slurm.reservation"),
        (f"{FAILED} Invalid node name specified\n", "does not exist", "sinfo -N"),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}",
         "its time limit is longer than your QOS allows", "sacctmgr"),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}",
         "you have as many jobs running or waiting as your account allows", "sacctmgr"),
        (POLICY, "a limit of your account or QOS forbids it", "sacctmgr"),
        ("allocation failure: Requested node configuration is not available\n", "no node", "sinfo"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_reason_slurms_words_and_a_cure(said, why, cure):
    first, words, hint = refusal(said)
    assert why in first
    assert words.startswith("Slurm says: ") and "sbatch:" not in words and "submission failed" not in words
    assert hint.startswith("hint: ") and cure in hint


def test_what_is_not_known_is_shown_as_it_is_the_last_line_first():
    assert refusal("sbatch: error: our site's filter\nsbatch: error: comes on Tuesdays\n") == [
        "comes on Tuesdays",
        "our site's filter",
    ]


def test_an_empty_word_is_said_to_be_one():
    assert refusal("\n \n") == ["it does not say why"]


def test_nothing_that_moves_a_terminals_cursor_is_shown():
    assert all(line.isprintable() for line in refusal("sbatch: error: a\x1b[2Jb\r\nsbatch: error: c\x07\n"))
