"""Test the parsing of PBS's answers, and the script that qsub gets."""

import shlex
import sys
import time
from pathlib import Path

import pytest

from launcher.errors import BadInput, NotStarted, Unreachable
from launcher.places.batch.batch import Fate, JobStart, Phase, SubmitToken
from launcher.places.pbs.pbs import PbsSystem, ask, read_duration, read_hosts, read_jobs, reason_of
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.spec.read import read_spec
from launcher.states import Cause, State

RECORDED = Path(__file__).parent / "recorded"
RUN = Path("/runs/train-7k3f")
HEAD = "name: train\nrun:\n  script: train.py\n"
NODE = Machine(8, ("0", "1", "2", "3"), apart=True, limit_per_job=True)


def recorded(name):
    return (RECORDED / name).read_text()


def jobs():
    return {job.id.partition(".")[0]: job for job in read_jobs(recorded("qstat.json"))}


def script(folder, body="", array=None, where=RUN):
    (folder / "job.yaml").write_text(HEAD + body)
    place = RunIdentity("train-7k3f", str(where), "pbs", "pbs", "/p/job.yaml", 12.0)
    project = Project("/p", {"train.py"}, set(), module_found=True)
    plan = build(read_spec(folder / "job.yaml", ()), (), place, NODE, project, FrozenCode("d", 1, 10), sys.executable)
    return PbsSystem().script(plan, SubmitToken("c0ffee", array), where, ["n9"]).splitlines()


# -- answers


def test_a_running_job_has_its_hosts_its_submit_token_and_its_end():
    job = jobs()["4730912"]
    assert (job.id, job.name, job.phase, job.word) == ("4730912.pbs01", "train-7k3f", Phase.RUNNING, "R")
    assert (job.hosts, job.text, job.submit_tokens) == ("node1299,node1300", "on node1299,node1300", {"c0ffee"})
    assert job.ends_at == time.mktime((2024, 3, 12, 13, 4, 41, 0, 0, -1)) + 48 * 3600


def test_a_job_that_waits_says_why_and_when_it_may_start():
    job = jobs()["4730913"]
    assert job.phase is Phase.QUEUED
    assert job.text == "hosts have too little ngpus free: it asks for 8, and 3 of 64 is free"
    assert job.starts_at == time.mktime((2024, 3, 13, 9, 0, 0, 0, 0, -1))
    assert job.submit_tokens == {"12345678"}  # what looks like a number is one in PBS's JSON


def test_letters_and_substates():
    told = {name: (job.phase, job.suspended) for name, job in jobs().items()}
    assert told == {
        "4730912": (Phase.RUNNING, False), "4730913": (Phase.QUEUED, False), "4730914": (Phase.QUEUED, False),
        "4730915": (Phase.QUEUED, False), "4730916[1]": (Phase.RUNNING, True), "4730917": (Phase.ENDING, False),
        "4730918": (Phase.QUEUED, False),
    }  # fmt: skip
    assert jobs()["4730916[1]"].element == ("4730916[].pbs01", 1)


@pytest.mark.parametrize(
    ("number", "fate"),
    [
        ("4730917", Fate.CANCELLED),
        ("4730918", Fate.QUEUED_AGAIN),
        ("4730916[1]", Fate.RUNS),
    ],
)
def test_what_becomes_of_a_job_whose_process_is_told_to_leave(monkeypatch, number, fate):
    queue = PbsSystem()
    monkeypatch.setattr(queue, "jobs", lambda ids: [jobs()[number]])
    monkeypatch.setattr(queue, "hosts", lambda: {"node7.example.org": "10.0.0.7"})
    assert queue.fate(f"{number}.pbs01") is fate


def test_ends_by_the_history_of_the_server():
    told = {job.id: (job.ended_as, job.cause, job.exit_code) for job in read_jobs(recorded("qstat-x.json"))}
    assert told == {
        "1.pbs01": (State.LOST, None, 0),
        "2.pbs01": (State.FAILED, Cause.TIME_LIMIT, None),
        "3.pbs01": (State.CANCELLED, None, 143),
        "4.pbs01": (State.CANCELLED, None, None),
        "5[0].pbs01": (State.LOST, None, 137),
    }


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "qstat: no",
        '{"Jobs": {"1.pbs01": {',
        '{"Jobs": [1]}',
        '{"Jobs": {"-x": {}}}',
        '{"Jobs": {"1; rm -rf /": {}}}',
        '{"Jobs": {"1.pbs01": 7}}',
        "[" * 100_000,
    ],
)
def test_a_damaged_answer_is_no_answer(damaged):
    with pytest.raises(Unreachable, match="damaged"):
        read_jobs(damaged)


def test_signs_that_json_does_not_allow_are_taken_as_they_are():
    [job] = read_jobs('banner\n{"Jobs": {"1.pbs01": {"job_state": "Q", "comment": "Not Running: a\ttab"}}}')
    assert job.text == "PBS says: a\ttab"


def test_virtual_nodes_are_one_host():
    hosts = {host.name: host for host in read_hosts(recorded("pbsnodes.json"))}
    assert {name: (host.cpus, host.gpus, host.free_gpus, host.used) for name, host in hosts.items()} == {
        "x3006c0s13b1n0": (64, 4, 4, False), "big": (32, 4, 3, True), "x3007": (64, 4, 4, False),
        "x3008": (64, 4, 4, False),
    }  # fmt: skip
    assert {name: (host.up, host.drains) for name, host in hosts.items()} == {
        "x3006c0s13b1n0": (True, False), "big": (True, False), "x3007": (True, True), "x3008": (False, False),
    }  # fmt: skip
    assert hosts["big"].queues == {"gpu"} and hosts["x3008"].text == "down: node down: communication closed"


@pytest.mark.parametrize(
    ("comment", "told"),
    [
        ("Not Running: Insufficient amount of resource: Qlist", "hosts have too little Qlist free"),
        ("Not Running: Not enough free nodes available", "too few hosts are free"),
        ("Can Never Run: Not enough total nodes available", "no host, or too few, have what it asks for at all"),
        ("Not Running: User has reached queue gpu running job limit.", "a limit for you, your project or the queue is"),
        ("Not Running: Queue not started.", "its queue is stopped"),
        ("Not Running: the moon is full", "PBS says: the moon is full"),
        ("", "PBS gives no reason yet"),
    ],
)
def test_reasons(comment, told):
    assert reason_of("Q", comment).startswith(told)


@pytest.mark.parametrize(
    ("text", "seconds"), [("00:20:00", 1200), ("48:00:00", 172_800), ("90", 90), ("", None), ("a:1", None)]
)
def test_durations(text, seconds):
    assert read_duration(text) == seconds


# -- clients


def test_only_a_refusal_is_one(program, tmp_path):
    file = tmp_path / "job.sh"
    file.write_text("#!/bin/sh\n")
    program("qsub", "echo a banner; echo 12.pbs01")
    assert PbsSystem().submit(file, {"PATH": f"{tmp_path}:/bin"}, 1) == "12.pbs01"
    program("qsub", "echo 'qsub: Job rejected by all possible destinations' >&2; exit 1")
    with pytest.raises(NotStarted, match="PBS refuses the job: qsub: Job rejected"):
        PbsSystem().submit(file, {"PATH": f"{tmp_path}:/bin"}, 1)
    program("qsub", "echo 'pbs_connect: Connection refused' >&2; echo 'qsub: cannot connect to server x' >&2; exit 1")
    with pytest.raises(Unreachable, match="the PBS server does not answer"):
        ask(["qsub"])


def test_a_job_that_has_just_gone_hides_no_other(program):
    shown = shlex.quote('{"Jobs": {"2.pbs01": {"job_state": "R", "exec_host": "n1/0"}}}')
    program("qselect", "echo 1.pbs01; echo 2.pbs01")
    program("qstat", f"echo {shown}; echo 'qstat: Unknown Job Id 1.pbs01' >&2; exit 153")
    assert [job.id for job in PbsSystem().jobs()] == ["2.pbs01"]
    program("qstat", "echo 'qstat: Unknown Job Id 1.pbs01' >&2; exit 153")
    assert PbsSystem().jobs(["1.pbs01"]) == []
    program("qstat", "echo 'qstat: PBS is not configured to maintain job history' >&2; exit 35")
    assert PbsSystem().accounts(["1.pbs01"], 0.0) == []
    program("qstat", "echo 'qstat: illegal option' >&2; exit 2")
    with pytest.raises(Unreachable, match="qstat cannot tell"):
        PbsSystem().jobs(["1.pbs01"])


def test_a_list_that_fails_is_no_empty_list(program):
    program("qselect", "echo 'qselect: illegally formed user' >&2; exit 2")
    with pytest.raises(Unreachable, match="qselect cannot tell"):
        PbsSystem().jobs()


def test_a_site_is_called_as_its_clients_do(tmp_path, monkeypatch):
    monkeypatch.delenv("PBS_SERVER", raising=False)
    monkeypatch.setenv("PBS_CONF_FILE", str(tmp_path / "pbs.conf"))
    assert PbsSystem().site() == ""
    (tmp_path / "pbs.conf").write_text("PBS_EXEC=/opt/pbs\nPBS_SERVER=pbs01\n")
    assert PbsSystem().site() == "pbs01"


def test_an_element_knows_which_it_is(monkeypatch):
    monkeypatch.setenv("PBS_JOBID", "12[3].pbs01")
    monkeypatch.setenv("PBS_ARRAY_INDEX", "3")
    assert PbsSystem().this_start() == JobStart("12[3].pbs01", 3)
    assert PbsSystem().name_of("12[].pbs01", 3) == "12[3].pbs01"


# -- the script


def test_two_hosts(tmp_path):
    body = (
        "resources: {nodes: 2, gpus_per_node: 4, cpus_per_rank: 2, memory_gb: 64, time: 1h}\n"
        "queue: {hold: true, at: 2027-01-31 22:00, priority: -10}\n"
        "pbs: {queue: gpu, project: p1, account: a1, select: gpu_model=a100, place: 'scatter:excl', "
        "extra: {l: 'software=cuda', m: ea, W: 'group_list=team'}}\n"
    )
    first, *lines, command = script(tmp_path, body)
    assert first == "#!/bin/sh"
    assert lines == [
        "#PBS -N train-7k3f", "#PBS -S /bin/sh", "#PBS -j oe", "#PBS -o /runs/train-7k3f/", "#PBS -r y",
        "#PBS -v JOB_LAUNCH_TICKET=c0ffee,JOB_LAUNCH_ENVIRONMENT", "#PBS -q gpu", "#PBS -P p1", "#PBS -A a1",
        "#PBS -p -10", "#PBS -h", "#PBS -a 202701312200.00", "#PBS -m ea",
        "#PBS -l select=2:ncpus=8:ngpus=4:mem=65536mb:gpu_model=a100", "#PBS -l place=scatter:excl",
        "#PBS -l walltime=3600", "#PBS -l software=cuda", "#PBS -W umask=077", "#PBS -W group_list=team",
    ]  # fmt: skip
    words = shlex.split(command)
    assert words[6:8] == ["--warn-after", "3480"] and words[-2:] == [str(RUN), "pbs"]


def test_a_range_of_nodes_is_its_most(tmp_path):
    assert "#PBS -l select=3:ncpus=1" in script(tmp_path, "resources: {nodes: 2..3, gpus_per_node: 0}\n")


def test_an_array_has_an_element_for_each_run(tmp_path):
    assert "#PBS -J 0-7" in script(tmp_path, array=8)
    assert not [line for line in script(tmp_path) if line.startswith("#PBS -J")]


def test_a_folder_that_clients_may_misread_has_no_output_file(tmp_path):
    assert "#PBS -o /dev/null" in script(tmp_path, where=Path("/runs/a b,c:d$(touch x)'"))


@pytest.mark.parametrize("more", ["extra: {q: a}", "extra: {V: true}", "select: 'a b'", "place: '$(x)'"])
def test_what_is_no_option_is_refused(tmp_path, more):
    with pytest.raises(BadInput, match="pbs"):
        script(tmp_path, f"pbs: {{{more}}}\n")
