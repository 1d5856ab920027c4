"""Whatever text comes from a scheduler's programs: a value or a named error, soon, and in little memory.

The recorded answers are the corpus: they are cut, spliced, doubled and damaged. --nightly makes it longer.
"""

import signal
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.errors import Unreachable
from launcher.places.batch.answers import read_settings, read_submitted
from launcher.places.gridengine import gridengine
from launcher.places.kubernetes import kubernetes
from launcher.places.lsf import lsf
from launcher.places.pbs import pbs
from launcher.places.slurm.queries import jobs, nodes, reasons, site, states, values
from launcher.places.slurm.queries.values import FIELD, JOB_ID, ROW
from tests.sizes import NIGHTLY, SCALE

HERE = Path(__file__).parent
SLURM = [path.read_text() for path in sorted((HERE / "slurm/recorded").glob("*.txt"))]
GRIDENGINE = [path.read_text() for path in sorted((HERE / "gridengine/recorded").glob("*.*"))]
PBS = [path.read_text() for path in sorted((HERE / "pbs/recorded").glob("*.json"))]
KUBERNETES = [path.read_text() for path in sorted((HERE / "kubernetes/recorded").glob("*.json"))]
LSF = [path.read_text() for path in sorted((HERE / "lsf/recorded").glob("b*.*"))]
LISTED = (HERE / "gridengine/recorded/qstat-running.xml").read_text()

PARSERS = {
    "squeue": (jobs.read_jobs, SLURM),
    "sacct": (lambda text: jobs.read_sacct(0, text, text), SLURM),
    "sbatch": (read_submitted, SLURM),
    "sbatch --test-only": (jobs.read_test_only, SLURM),
    "sbatch --version": (site.read_version, SLURM),
    "scontrol show job": (lambda text: jobs.fate_of(text, 0), SLURM),
    "scontrol show hostnames": (nodes.read_hostnames, SLURM),
    "scontrol show node": (nodes.read_nodes, SLURM),
    "scontrol show partition": (site.read_rules, SLURM),
    "scontrol show config": (site.read_config, SLURM),
    "scontrol ping": (site.read_ping, SLURM),
    "sinfo of nodes": (nodes.read_partition_nodes, SLURM),
    "sinfo of partitions": (nodes.read_partitions, SLURM),
    "a state": (states.read_state, SLURM),
    "a node's state": (nodes.read_node_state, SLURM),
    "a reason": (reasons.plain, SLURM),
    "gres": (nodes.gpu_count, SLURM),
    "a time": (values.read_time, SLURM),
    "a duration": (values.read_duration, SLURM),
    "qstat": (lambda text: gridengine.read_jobs(text, ""), GRIDENGINE),
    "qstat -j": (lambda text: gridengine.read_jobs(LISTED, text), GRIDENGINE),
    "qacct": (gridengine.read_account, GRIDENGINE),
    "qhost": (gridengine.read_hosts, GRIDENGINE),
    "qconf": (read_settings, GRIDENGINE),
    "kubectl get": (kubernetes.read_jobs, KUBERNETES),
    "kubectl get nodes": (lambda text: kubernetes.read_nodes(text, "nvidia.com/gpu"), KUBERNETES),
    "bjobs": (lambda text: lsf.read_jobs(text, 0.0), LSF),
    "bhosts": (lsf.read_hosts, LSF),
    "bhist": (lsf.fate_of, LSF),
    "reasons of LSF": (lambda text: lsf.reason_of("PEND", text), LSF),
    "durations of LSF": (lambda text: lsf.read_duration(text, 60), LSF),
    "qstat of PBS": (pbs.read_jobs, PBS),
    "pbsnodes": (pbs.read_hosts, PBS),
    "comments of PBS": (lambda text: pbs.reason_of("Q", text), PBS),
    "times of PBS": (pbs.read_time, PBS),
    "durations of PBS": (pbs.read_duration, PBS),
    "messages": (lambda text: gridengine.reason_of("qw", [text], [text]), GRIDENGINE),
}
ODD = [
    *("", FIELD, ROW, "\n", "\0", "\r", "\x1b[2J", "\x85", "\u2028", "\u202e", "²", "٣", "-1", "9" * 5000),
    *("1e999", "nan", "inf", "<", "&a;", "]]>", "[0-9999999]", "7_[0-9999999,0-9999999]", "launch:", "None", "(null)"),
]
# Each is repeated until it is so long; in the long mode a megabyte.
SIZE = 100_000 if SCALE == 1 else 1_000_000
LONG = [
    *(
        " ",
        "\t",
        "a",
        "9",
        "(",
        "[",
        "@",
        " [a@",
        "=",
        "a=",
        " = ",
        ",",
        "%",
        "_",
        "+",
        "\\\n",
        FIELD,
        ROW,
        "<a>",
        "Job ",
    ),
    *("a b", " by", "0-9999999,", f"7{FIELD}", "NodeName=a ", "=====\n", 'cannot run in PE "', "(-l ", "/", ":"),
]
CPU_S = 6.0 if SCALE == 1 else 60.0  # what is quadratic would take minutes, or hours
MEMORY = 400 << 20


@st.composite
def answers(draw, corpus):
    """Recorded text, or pieces of it, with something odd in it."""
    text = draw(st.sampled_from(corpus))
    for _ in range(draw(st.integers(0, 6))):
        at, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        put = draw(st.sampled_from([*ODD, text[at:end], text[at:end] * 2]) | st.text(max_size=20))
        text = text[:at] + put + text[draw(st.sampled_from([at, end])) :]
    return text


@pytest.mark.parametrize("name", PARSERS)
@settings(
    max_examples=300 * SCALE if NIGHTLY else 60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(data=st.data())
def test_damaged_text_is_a_value_or_a_named_error(name, data):
    parse, corpus = PARSERS[name]
    try:
        found = parse(data.draw(answers(corpus) | st.text()))
    except Unreachable as error:
        assert len(str(error)) < 1_000
        return
    if name in ("squeue", "sacct", "qstat", "qstat -j", "qacct"):
        listed = found if isinstance(found, list) else [found] if found is not None else []
        for job in listed:  # its id is what other programs are told
            assert JOB_ID.fullmatch(job.id)


def too_long(*_):
    raise AssertionError(f"more than {CPU_S:g} s of computing")


@pytest.mark.parametrize("name", PARSERS)
def test_much_of_anything_takes_little_time_and_memory(name):
    parse, corpus = PARSERS[name]
    before = signal.signal(signal.SIGVTALRM, too_long)
    tracemalloc.start()
    try:
        for piece in LONG:
            many = (piece * (SIZE // len(piece) + 1))[:SIZE]
            for text in (f"{corpus[0][:200]}{many}x", f"NodeName=a Reason={many}x\nName= {many}x"):
                signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
                try:
                    parse(text)
                except Unreachable as error:
                    assert len(str(error)) < 1_000
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        tracemalloc.stop()


def test_an_entity_that_grows_is_no_answer():
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 20}">' for n in range(1, 12))
    bomb = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e0 "aaaa">{entities}]><x><job_list>&e11;</job_list></x>'
    with pytest.raises(Unreachable, match="damaged"):
        gridengine.read_jobs(bomb, "")


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_an_array_of_more_elements_than_any_controller_has_is_no_answer(state):
    rest = FIELD.join(["5", state, "0", "N/A", "N/A", "", "", "None", "launch:mine"])
    text = "".join(f"{number}_[0-9999999]{FIELD}{rest}{ROW}\n" for number in range(1, 50))
    with pytest.raises(Unreachable, match="elements"):
        jobs.read_jobs(text)


@pytest.mark.parametrize("job", ["7 -f", "-u root", "*", "", "7,8", "٣", "1" * 40])
def test_what_is_no_job_of_grid_engine_gets_into_no_command_line(job):
    text = LISTED.replace("<JB_job_number>", f"<JB_job_number>{job}<!-- ", 1).replace(
        "</JB_job_number>", " --></JB_job_number>", 1
    )
    with pytest.raises(Unreachable, match="damaged"):
        gridengine.read_jobs(text, "")
