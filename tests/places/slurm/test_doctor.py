"""Test the findings about a Slurm site, and about its nodes, from facts alone."""

import math
import random
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from launcher.health.checks import place_finding
from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Level, time_words
from launcher.health.machine_there import Torch
from launcher.health.ways import Way
from launcher.places.batch.trial.carry_out import batch_script
from launcher.places.batch.trial.checks import (
    Expected,
    Hello,
    NodeClock,
    NodeReport,
    SeenNode,
    Trial,
    TrialJob,
    no_nodes_finding,
    read_stopped,
    silence_finding,
    trial_findings,
)
from launcher.places.slurm import doctor_checks
from launcher.places.slurm.doctor import WORDS, Shape, options, read_job, trial_of
from launcher.places.slurm.queries.nodes import Node, Partition
from launcher.places.slurm.queries.site import read_config, read_ping, read_rules
from launcher.run.file_systems import FileSystem
from tests.sizes import SEED

RECORDED = Path(__file__).parent / "recorded"
CONFIG = read_config((RECORDED / "show-config-22.05.txt").read_text())


def found(findings):
    """Level and text by subject; of several on one subject the last."""
    return {finding.about: (finding.level, finding.text) for finding in findings}


def problems(findings):
    return [finding.text for finding in findings if finding.level is Level.PROBLEM]


# The programs and the controller


def test_without_sbatch():
    assert doctor_checks.sbatch_finding(None, None).level is Level.PROBLEM
    assert doctor_checks.sbatch_finding("/usr/bin/sbatch", "22.05.8").text == "22.05.8, /usr/bin/sbatch"


@pytest.mark.parametrize(
    ("client", "level"),
    [("22.05.8", Level.OK), ("21.08.1", Level.OK), (None, Level.OK), ("23.02.0", Level.WARNING)],
)
def test_a_client_that_is_newer_than_the_controller(client, level):
    (finding,) = doctor_checks.controller_findings(CONFIG, 0.012, {"head": True}, client)
    assert finding.level is level
    assert "on head answers in 12 ms, version 22.05" in finding.text


def test_a_second_controller_that_is_down():
    ping = "Slurmctld(primary) at head1 is DOWN\nSlurmctld(backup) at head2 is UP\nSlurmctld(primary) is odd\n"
    up = read_ping(ping)
    assert up == {"head1": False, "head2": True}
    first, second = doctor_checks.controller_findings(CONFIG, 0.0, up, None)
    assert "on head2" in first.text
    assert second.level is Level.WARNING and "head1 is down" in second.text


def test_silence_takes_over_what_there_is_to_do():
    silent = silence_finding(["the Slurm controller does not answer (x)", "hint: scancel 7"], WORDS)
    assert silent.unreachable and silent.level is Level.PROBLEM and silent.hint == "scancel 7"
    assert silence_finding(["no answer"], WORDS).hint


# Partitions and nodes


def partition(name, *, default=False, availability="up", max_time_s=math.inf):
    return Partition(name, default, availability, max_time_s, None, 1, 2)


def node(name, *state, of="main", gpus=4, reason=""):
    return Node(name, state or ("IDLE",), 64, 512_000, f"gpu:{gpus}", gpus, reason, partition=of)


RULES = read_rules(
    "PartitionName=main Default=YES GraceTime=0 PreemptMode=OFF State=UP\n"
    "PartitionName=low Default=NO GraceTime=60 PreemptMode=REQUEUE State=UP\nnoise\n"
)
PARTITIONS = [partition("main", default=True), partition("low", max_time_s=7200.0)]
NODES = [node("a1"), node("a2"), node("b1", of="low", gpus=0), node("b2", of="low", gpus=8)]


def test_the_table_of_partitions():
    first, nodes = doctor_checks.partition_findings(PARTITIONS, RULES, NODES, None)
    assert first.rows == (
        ("PARTITION", "STATE", "IDLE", "NODES", "CPUS", "MEMORY", "GPUS", "TIME LIMIT", "PREEMPTED"),
        ("main*", "up", "1", "2", "64", "512 GB", "4", "none", "never"),
        ("low", "up", "1", "2", "64", "512 GB", "0-8", "2 h", "requeue after 60 s"),
    )
    assert nodes.level is Level.OK and "all 2 of main" in nodes.text


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [("mian", "did you mean main?"), ("gpu", "there is main, low"), ("main,lwo", "did you mean low?")],
)
def test_a_partition_that_does_not_exist(wanted, hint):
    found = list(doctor_checks.partition_findings(PARTITIONS, RULES, NODES, wanted))
    (finding,) = [one for one in found if one.level is Level.PROBLEM]
    assert finding.hint == hint
    assert doctor_checks.strangers(PARTITIONS, wanted)


def test_no_default_partition():
    last = list(doctor_checks.partition_findings([partition("low")], RULES, NODES, None))[-1]
    assert last.level is Level.WARNING and "none is the default" in last.text


@pytest.mark.parametrize("availability", ["down", "drain", "inact"])
def test_a_partition_that_takes_no_jobs(availability):
    wanted = [partition("main", default=True, availability=availability), partition("low")]
    assert problems(doctor_checks.partition_findings(wanted, RULES, NODES, None)) == [f"main is {availability}"]
    assert problems(doctor_checks.partition_findings(wanted, RULES, NODES, "low")) == []


@pytest.mark.parametrize(
    ("gone", "of", "level"),
    [(0, 20, Level.OK), (2, 20, Level.OK), (3, 20, Level.WARNING), (20, 20, Level.PROBLEM), (0, 0, Level.PROBLEM)],
)
def test_nodes_that_take_no_jobs(gone, of, level):
    nodes = [node(f"a{number}", "DOWN", "NOT_RESPONDING", reason="fan") for number in range(gone)]
    nodes += [node(f"a{number}") for number in range(gone, of)]
    *_, last = doctor_checks.partition_findings(PARTITIONS, RULES, nodes, "main")
    assert last.about == "nodes" and last.level is level
    if gone:
        assert last.text.startswith(f"{gone} of {of} of main take no jobs: a0 (down not responding: fan)")
    assert ("and 12 more" in last.text) == (gone == 20)


def test_what_the_nodes_of_others_are_like_does_not_matter():
    down = [node("b1", "DOWN", of="low"), node("b2", "DOWN", of="low")]
    assert problems(doctor_checks.partition_findings(PARTITIONS, RULES, [*NODES[:2], *down], None)) == []
    assert len(problems(doctor_checks.partition_findings(PARTITIONS, RULES, [*NODES[:2], *down], "main,low"))) == 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "?"), (math.inf, "none"), (30.0, "30 s"), (60.0, "1 min"), (5400.0, "90 min"), (7200.0, "2 h"),
        (86400.0, "24 h"), (172800.0, "2 days"), (7 * 86400.0, "7 days"), (90.0, "90 s"), (90061.0, "25.0 h"),
    ],
)  # fmt: skip
def test_times_in_words(seconds, words):
    assert time_words(seconds) == words


def test_what_a_test_submission_says():
    assert doctor_checks.start_finding(None, "Invalid account", 0.0).level is Level.PROBLEM
    assert "could start now" in doctor_checks.start_finding(1000.0, "", 999.5).text
    assert "could start at 1970-01-0" in doctor_checks.start_finding(5000.0, "", 1000.0).text


# Settings


def settings(**changes):
    config = msgspec.structs.replace(CONFIG, preempt_type="preempt/partition_prio", **changes)
    return found(doctor_checks.setting_findings(config, RULES.values(), expedites=config.expedites))


@pytest.mark.parametrize(
    ("about", "changes", "level", "said"),
    [
        ("requeue", {"requeue": True}, Level.OK, "on"),
        ("requeue", {"requeue": True, "expedites": True}, Level.OK, "after a lost node at once and first"),
        ("requeue", {"requeue": True}, Level.OK, "no expedited requeue here"),
        ("requeue", {"requeue": False}, Level.OK, "runs ask for it"),
        ("requeue", {"requeue": None}, Level.WARNING, "does not say"),
        ("KillWait", {"kill_wait_s": 30.0}, Level.OK, "30 s"),
        ("KillWait", {"kill_wait_s": 29.0}, Level.WARNING, "ranks get 29 s"),
        ("KillWait", {"kill_wait_s": None}, Level.WARNING, "does not say"),
        ("SlurmdTimeout", {"slurmd_timeout_s": 300.0}, Level.OK, "5 min"),
        ("SlurmdTimeout", {"slurmd_timeout_s": 15.0}, Level.OK, "15 s"),
        ("SlurmdTimeout", {"slurmd_timeout_s": 14.0}, Level.WARNING, "before launch does (15 s"),
        ("SlurmdTimeout", {"slurmd_timeout_s": 3600.0}, Level.WARNING, "60 min"),
        ("SlurmdTimeout", {"slurmd_timeout_s": 0.0}, Level.WARNING, "never gives"),
        ("SlurmdTimeout", {"slurmd_timeout_s": None}, Level.WARNING, "does not say"),
        ("MaxArraySize", {"max_array_size": 1001}, Level.OK, "1001"),
        ("MaxArraySize", {"max_array_size": 0}, Level.WARNING, "no arrays"),
        ("MaxArraySize", {"max_array_size": None}, Level.WARNING, "does not say"),
        ("preemption", {"preempt_mode": "OFF"}, Level.OK, "no job makes way"),
        ("preemption", {"preempt_mode": "REQUEUE"}, Level.OK, "by partition, PreemptMode=REQUEUE"),
        ("preemption", {"preempt_mode": "GANG,SUSPEND"}, Level.WARNING, "frozen"),
    ],
)
def test_settings(about, changes, level, said):
    finding = settings(**changes)[about]
    assert finding[0] is level and said in finding[1]


def test_preemption_by_partitions_that_freeze_jobs():
    finding = doctor_checks.preemption_finding("preempt/partition_prio", "REQUEUE", {"REQUEUE", "SUSPEND"})
    assert finding.level is Level.WARNING
    assert "sacctmgr" in doctor_checks.preemption_finding("preempt/qos", "REQUEUE", set()).text
    assert doctor_checks.preemption_finding("preempt/none", "REQUEUE", set()).level is Level.OK


def test_the_kind_of_preemption_of_recorded_configurations():
    kinds = {path.name: read_config(path.read_text()).preempt_type for path in RECORDED.glob("show-config-*")}
    assert len(kinds) >= 3 and all(kind is None or kind.startswith("preempt/") for kind in kinds.values())
    assert "preempt/none" in kinds.values() or "preempt/partition_prio" in kinds.values()


@pytest.mark.parametrize(
    ("kept", "said", "level", "text"),
    [
        (True, "", Level.OK, "sacct answers"),
        (False, "there is none", Level.WARNING, "off: how a job ended"),
        (True, "the database does not answer", Level.WARNING, "on, but the database does not answer"),
    ],
)
def test_accounting(kept, said, level, text):
    finding = doctor_checks.accounting_finding(kept, said, 300.0)
    assert finding.level is level and text in finding.text
    assert ("known for 5 min" in finding.text) == (level is Level.WARNING)


@pytest.mark.parametrize(
    ("age_s", "accounting", "level"),
    [
        (300.0, False, Level.OK), (2.0, True, Level.OK), (2.0, False, Level.WARNING), (0.0, False, Level.OK),
        (None, True, Level.WARNING),
    ],
)  # fmt: skip
def test_how_long_jobs_are_known(age_s, accounting, level):
    assert doctor_checks.memory_finding(age_s, accounting).level is level


def test_a_controller_that_says_nothing_breaks_nothing():
    config = read_config("")
    findings = [
        *doctor_checks.setting_findings(config, [], expedites=False),
        *doctor_checks.controller_findings(config, 0, {}, None),
    ]
    assert not problems(findings)
    assert all(finding.hint for finding in findings if finding.level is not Level.OK)


# Places


NFS, EXT4, ODD = FileSystem("nfs4", "/home"), FileSystem("ext4", "/"), FileSystem("fuse.odd", "/odd")


TRY = "launch doctor slurm --try"


def test_places_that_nodes_may_not_see():
    assert place_finding("runs root", {"/x": NFS}, TRY).level is Level.OK
    for file_system, why in ((EXT4, "this machine's own"), (ODD, "may nodes see it?")):
        finding = place_finding("runs root", {"/good": NFS, "/bad": file_system}, TRY)
        assert finding.level is Level.WARNING and why in finding.text
        assert "/bad" in finding.text and "/good" not in finding.text
        assert "--try" in finding.hint
        assert "--try" not in place_finding("runs root", {"/x": file_system}, TRY, tried=True).hint
        assert place_finding("runs root", {"/x": file_system}, TRY, ["n1", "n2"]).text.endswith("on n1 and n2")


# The job


WISH = DoctorRequest(Path("/runs"), "/python")


def script(folder, nodes, python):
    return batch_script(trial_of(replace(WISH, nodes=nodes), Shape(4, 0, 1, math.inf)), folder, python, 50.0)


def test_the_options_of_the_job():
    given = options(WISH, Shape(4, 2, 8000, math.inf), 2)
    assert {"--requeue", "--nodes=2", "--time=3", "--gres=gpu:1", "--mem=2000M", "--output=/dev/null"} <= set(given)
    assert not any(word.startswith(("--partition", "--account", "--qos")) for word in given)
    asked = options(replace(WISH, asked={"partition": "p", "account": "a", "qos": "q"}), Shape(4, 0, 1, 90.0), 1)
    assert {"--nodes=1", "--time=1", "--partition=p", "--account=a", "--qos=q"} <= set(asked)
    assert not any(word.startswith(("--gres", "--mem")) for word in asked)


HOSTILE = ("plain", "a b", "it's", 'x"y', "$(touch canary)", "`touch canary`", ";touch canary;", "a\nb", "*", "-x", "é")


@pytest.mark.parametrize("name", HOSTILE)
def test_the_script_takes_any_path_as_it_is(tmp_path, name):
    """srun is a program here that runs its command on one node; the interpreter one that shows what it is told."""
    path = tmp_path / name
    path.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text('#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"\n')
    (programs / "python").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    text = script(path, 1, str(programs / "python"))
    env = {"PATH": f"{programs}:/usr/bin:/bin", "SLURMD_NODENAME": "node0"}
    done = subprocess.run(["/bin/sh"], input=text, cwd=tmp_path, env=env, text=True, check=False)
    assert done.returncode == 0
    assert (path / "steps.log").read_text() == f"-P|-m|launcher.programs|trial|slurm|{path}|50|node0|"
    assert (path / "seen").exists() and (path / "seen-node0").exists()
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(("there", "code"), [(False, 41), (True, 42)])
def test_the_script_tells_by_its_exit_code_what_it_does_not_find(tmp_path, there, code):
    folder = Path("/proc/self") if there else tmp_path / "none"
    done = subprocess.run(["/bin/sh"], input=script(folder, 1, "/python"), text=True, check=False)
    assert done.returncode == code


@pytest.mark.parametrize(
    ("python", "code"), [("/none/python", 43), (shutil.which("false"), 1), (shutil.which("true"), 0)]
)
def test_the_script_tells_what_a_node_does_not_find(tmp_path, python, code):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(
        '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\n"$@" 2>&1 | sed "s/^/0: /"\n'
    )
    (programs / "srun").chmod(0o755)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "SLURMD_NODENAME": "node7"}
    subprocess.run(["/bin/sh"], input=script(tmp_path, 1, python), env=env, text=True, check=True)
    assert read_stopped((tmp_path / "steps.log").read_text()) == ({"node7": (code, "")} if code else {})


def test_what_slurm_says_of_the_job():
    line = (
        "JobId=1 JobName=x JobState={} Reason={} Requeue=1 Restarts=0 ExitCode={} StartTime=1795268196 "
        "ReqNodeList=(null) ExcNodeList=(null) NodeList={} BatchHost=node0 NumNodes=2"
    )
    running = read_job(line.format("RUNNING", "None", "0:0", "node[0-1]"))
    assert running == TrialJob(
        waits=False,
        word="RUNNING",
        reason="Slurm has not looked at it yet",
        nodes="node[0-1]",
        starts_at=1795268196.0,
        requeue=True,
    )
    failed = read_job(line.format("FAILED", "NonZeroExitCode", "41:0", "(null)"))
    assert (failed.has_ended, failed.exit_code, failed.nodes) == (True, 41, "")
    assert read_job("") == replace(TrialJob(), reason=read_job("").reason)


def test_garbage_from_slurm_is_read_without_a_traceback():
    seed = SEED
    print(f"{seed=}")
    draw = random.Random(seed)
    words = ["JobState=", "ExitCode=", "GraceTime=", "PartitionName=", "Restarts=", "9" * 30, "²", "\n", " ", ":", "x"]
    for _ in range(2000):
        text = "".join(draw.choice(words) for _ in range(draw.randrange(30)))
        read_job(text), read_rules(text), read_ping(text), read_stopped(text)


# What the nodes told


EXPECTED = Expected("/theirs/bin/python", "/home/me/runs", "0.1.0", "3.11.7", "/venv/bin/python")
HOSTS = ("n1", "n2")
WELL = TrialJob(waits=False, word="RUNNING", requeue=True)
FAILED = TrialJob(waits=False, has_ended=True, word="FAILED", exit_code=1)


def way(caller, called, *, took_s=0.0002, error=""):
    at = f"10.0.0.{called[1]}"
    return Way(caller, called, took_s, 0.0, error, f"{at} port 23000" if error else at)


def seen(host, **changes):
    """A node that said all there is to say."""
    hello = Hello("0.1.0", "3.11.7", 0.0, {"": f"10.0.0.{host[1]}"})
    good = SeenNode(hello, NodeClock(0.01, 0.02), NodeReport(Torch("2.10.0", "CUDA 12.8", 1), 1))
    return replace(good, **changes)


def trial(**changes):
    """Return a trial without problems, changed as given."""
    nodes = {host: seen(host) for host in HOSTS}
    ways = {"": [way("n1", "n2"), way("n2", "n1")]}
    return replace(Trial("7", HOSTS, 0.5, WELL, seen=nodes, ways=ways), **changes)


def other_second(**changes):
    """Return a trial whose second node has these different facts."""
    return trial(seen={"n1": seen("n1"), "n2": seen("n2", **changes)})


def findings_of(one):
    """Return the findings of `launch doctor` about this trial."""
    return list(trial_findings(one, EXPECTED, WORDS))


def test_a_trial_that_went_well():
    findings = findings_of(trial())
    assert [finding.level for finding in findings] == [Level.OK] * len(findings)
    said = found(findings)
    assert said["trial"][1] == "job 7 on n1 and n2, its first word 0.5 s after sbatch"
    assert said["python"][1] == "3.11.7 and launch 0.1.0 on n1 and n2"
    assert said["torch"][1] == "2.10.0 (CUDA 12.8), sees 1 GPU in /theirs/bin/python on n1 and n2"
    assert said["network"][1].startswith("n1 and n2 reach each other by the addresses that Slurm has (10.0.0.1, ")
    assert trial().seen_on == ["n1", "n2"]


def test_one_node_has_nobody_to_call():
    said = found(findings_of(trial(hosts=("n1",), seen={"n1": seen("n1")}, ways={"": []})))
    assert "network" not in said and said["trial"][1].startswith("job 7 on n1,")


@pytest.mark.parametrize(
    ("code", "said", "about", "text"),
    [
        (41, "", "runs root", "/home/me/runs is not the same folder on n2"),
        (42, "", "runs root", "/home/me/runs cannot be written on n2"),
        (43, "", "python", "/venv/bin/python is not there on n2"),
        (1, "No module named launcher", "python", "/venv/bin/python on n2: No module named launcher"),
        (9, "", "python", "/venv/bin/python on n2: it leaves with 9"),
    ],
)
def test_a_node_that_came_no_further(code, said, about, text):
    log = f"0: all is well\n{f'1: {said}' if said else ''}\n1: stopped n2 {code}\nsrun: error: n2: task 1: Exited\n"
    lame = trial(seen={"n1": seen("n1")}, ways={"": []}, log=log)
    assert [(one.about, one.text) for one in findings_of(lame) if one.level is Level.PROBLEM] == [(about, text)]
    assert lame.seen_on == []


@pytest.mark.parametrize("code", [41, 42])
def test_a_first_node_that_came_no_further(code):
    (finding,) = findings_of(Trial("7", HOSTS, state=replace(FAILED, exit_code=code)))
    assert finding.level is Level.PROBLEM and "on n1" in finding.text and "n2" not in finding.text


@pytest.mark.parametrize(
    ("word", "log", "said"),
    [
        ("FAILED", "", "job 7 on n1 and n2 ended (failed, exit code 1) before it said a word"),
        ("FAILED", "slurmstepd: odd\n", "it last said: slurmstepd: odd"),
        ("RUNNING", "", "no word came from job 7 on n1 and n2, which Slurm says is there"),
        ("FAILED", "srun: error: Unable to create step\nsrun: error: n1: task 0: Killed\n", "Unable to create step"),
    ],
)
def test_a_job_that_said_nothing(word, log, said):
    (text,) = problems(findings_of(Trial("7", HOSTS, state=replace(FAILED, word=word), log=log)))
    assert said in text


def test_a_job_that_slurm_put_back():
    again = TrialJob(word="PENDING", restarts=1)
    (text,) = problems(findings_of(Trial("7", HOSTS, state=again)))
    assert "began job 7 on n1 and n2 and put it back" in text
    (text,) = problems(findings_of(Trial("7", state=again)))
    assert "began job 7 and put it back" in text


def test_a_node_that_fell_silent():
    assert problems(findings_of(other_second(report=None))) == ["nothing more came from n2"]
    assert problems(findings_of(trial(seen={"n1": seen("n1")}))) == ["nothing more came from n2"]
    ended = replace(other_second(clock=None, report=None), state=FAILED)
    assert problems(findings_of(ended)) == ["nothing more came from n2"]


def test_a_job_that_does_not_end():
    assert "has not ended yet" in found(findings_of(trial(over=False)))["trial"][1]


@pytest.mark.parametrize(
    ("python", "ours", "level"),
    [
        ("3.11.7", "0.1.0", Level.OK), ("3.11.2", "0.1.0", Level.WARNING), ("3.12.7", "0.1.0", Level.PROBLEM),
        ("3.11.7", "0.2.0", Level.PROBLEM),
    ],
)  # fmt: skip
def test_other_versions_there(python, ours, level):
    assert found(findings_of(other_second(hello=Hello(ours, python, 0.0, {}))))["python"][0] is level


@pytest.mark.parametrize(
    ("torch", "gpus", "said"),
    [
        (Torch(error="not installed"), 1, "not installed in /theirs/bin/python on n2"),
        (Torch(error="ImportError: x"), 1, "does not work in /theirs/bin/python on n2: ImportError: x"),
        (Torch("2.10.0", "CUDA 12.8", 0), 1, "sees 0 GPUs, but the job has 1"),
        (Torch("2.10.0"), 1, "2.10.0 (CPU only), but the job has 1"),
    ],
)
def test_torch_there_is_a_warning_only(torch, gpus, said):
    torches = [
        finding for finding in findings_of(other_second(report=NodeReport(torch, gpus))) if finding.about == "torch"
    ]
    assert [finding.level for finding in torches] == [Level.OK, Level.WARNING]
    assert said in torches[1].text


@pytest.mark.parametrize(
    ("ahead_s", "took_s", "level"),
    [(0.5, 0.1, Level.OK), (-90.0, 0.1, Level.WARNING), (3600.0, 0.1, Level.WARNING), (3.0, 4.0, Level.OK)],
)
def test_a_clock_that_differs(ahead_s, took_s, level):
    assert found(findings_of(other_second(clock=NodeClock(ahead_s, took_s))))["clock"][0] is level


def test_a_folder_that_is_slow_or_one_way():
    slow = found(findings_of(other_second(clock=NodeClock(0.0, 31.0))))["runs root"]
    assert slow[0] is Level.WARNING and "took 31 s" in slow[1]
    deaf = other_second(clock=None, report=None)
    assert problems(findings_of(deaf)) == []
    assert found(findings_of(deaf))["runs root"][1] == "what is written here was not seen on n2 in time"
    assert deaf.seen_on == []


def test_nodes_that_do_not_reach_each_other():
    ways = {"": [way("n1", "n2")], "ib0": [way("n1", "n2", error="timed out")]}
    findings = [finding for finding in findings_of(trial(ways=ways)) if finding.about == "network"]
    assert [finding.level for finding in findings] == [Level.OK, Level.PROBLEM]
    assert findings[1].text == "n1 does not reach n2 by ib0 (10.0.0.2 port 23000): timed out"


def test_an_interface_that_is_not_there_is_said_once_for_each_node():
    hello = Hello("0.1.0", "3.11.7", 0.0, {}, "no 'ib0' on n2")
    assert problems(findings_of(other_second(hello=hello))) == ["n2: no 'ib0' on n2"]
    assert problems(findings_of(trial(closed={"n1": "cannot listen on 10.0.0.1: odd"}))) == [
        "n1: cannot listen on 10.0.0.1: odd"
    ]


def test_a_site_that_takes_requeueing_away():
    assert found(findings_of(trial(state=replace(WELL, requeue=False))))["requeue"][0] is Level.WARNING


def test_no_nodes_in_time():
    finding = no_nodes_finding("7", 60.0, "waiting for nodes to become free", None, WORDS)
    assert finding.level is Level.WARNING and "--within 600" in finding.hint
    assert "expects one at 1970-01-" in no_nodes_finding("7", 60.0, "x", 86400.0, WORDS).hint


def test_hostile_words_of_a_node_stay_words():
    log = "1: stopped n2 1\n1: \x1b[31mred\n0: stopped n1 x\nstopped n3 41\n"
    assert read_stopped(log) == {"n2": (1, "\x1b[31mred")}
