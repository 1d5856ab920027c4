"""Test the parsing of LSF's answers, and the script that bsub gets."""

import shlex
import sys
from pathlib import Path

import pytest

from launcher.errors import BadInput, NotStarted, Unreachable
from launcher.places.batch.batch import Fate, JobStart, Phase, SubmitToken
from launcher.places.lsf.lsf import LsfSystem, ask, fate_of, read_duration, read_hosts, read_jobs, reason_of
from launcher.plan.build import build
from launcher.plan.facts import Machine, Project, RunIdentity
from launcher.plan.model import FrozenCode
from launcher.spec.read import read_spec
from launcher.states import Cause, State

RECORDED = Path(__file__).parent / "recorded"
RUN = Path("/runs/train-7k3f")
HEAD = "name: train\nrun:\n  script: train.py\n"
NODE = Machine(8, ("0", "1", "2", "3"), apart=True, limit_per_job=True)
NOW = 1_700_000_000.0


def recorded(name):
    return (RECORDED / name).read_text()


def jobs():
    return {job.id: job for job in read_jobs(recorded("bjobs.json"), NOW)}


def script(folder, body="", array=None, where=RUN, avoid=()):
    (folder / "job.yaml").write_text(HEAD + body)
    place = RunIdentity("train-7k3f", str(where), "lsf", "lsf", "/p/job.yaml", 12.0)
    project = Project("/p", {"train.py"}, set(), module_found=True)
    plan = build(read_spec(folder / "job.yaml", ()), (), place, NODE, project, FrozenCode("d", 1, 10), sys.executable)
    return LsfSystem().script(plan, SubmitToken("c0ffee", array), where, avoid).splitlines()


# -- answers


def test_a_running_job_has_its_hosts_its_submit_token_and_its_end():
    job = jobs()["806290"]
    assert (job.name, job.phase, job.word, job.hosts) == ("train-7k3f", Phase.RUNNING, "RUN", "hostA,hostB")
    assert (job.text, job.submit_tokens, job.ends_at) == ("on hostA,hostB", {"c0ffee"}, NOW + 1440 * 60 - 16038)


def test_states():
    told = {name: (job.phase, job.suspended) for name, job in jobs().items()}
    assert told == {
        "806290": (Phase.RUNNING, False), "806291": (Phase.QUEUED, False), "806292": (Phase.QUEUED, False),
        "806293[2]": (Phase.RUNNING, True), "806294": (Phase.ENDED, False), "806295": (Phase.ENDED, False),
        "806296": (Phase.ENDED, False), "806297": (Phase.UNKNOWN, False),
    }  # fmt: skip


def test_an_element_counts_from_one_there_and_from_zero_here(monkeypatch):
    job = jobs()["806293[2]"]
    assert (job.element, job.name, job.ends_at) == (("806293", 1), "many", NOW + 600 - 30)
    assert LsfSystem().name_of("806293", 1) == "806293[2]"
    monkeypatch.setenv("LSB_JOBID", "806293")
    monkeypatch.setenv("LSB_JOBINDEX", "2")
    assert LsfSystem().this_start() == JobStart("806293[2]", 1)
    monkeypatch.setenv("LSB_JOBINDEX", "0")
    assert LsfSystem().this_start() == JobStart("806293", None)


def test_why_a_job_waits():
    assert jobs()["806291"].text == "too few hosts have what it asks for; hosts that it may use are closed"
    assert jobs()["806292"].text == "it is held, by its owner or an administrator: bresume lets it go"


def test_how_jobs_have_ended():
    told = {name: (job.ended_as, job.cause, job.exit_code) for name, job in jobs().items() if job.phase is Phase.ENDED}
    assert told == {
        "806294": (State.CANCELLED, None, 130),
        "806295": (State.FAILED, Cause.TIME_LIMIT, 140),
        "806296": (State.LOST, None, 0),
    }


@pytest.mark.parametrize(
    "damaged",
    ["", "bjobs: no", '{"RECORDS": [{', '{"RECORDS": 7}', "{}", '{"RECORDS": [{"JOBID": "-x", "STAT": "RUN"}]}',
     '{"RECORDS": [{"JOBID": "1; rm -rf /"}]}', '{"RECORDS": [7]}'],
)  # fmt: skip
def test_a_damaged_answer_is_no_answer(damaged):
    with pytest.raises(Unreachable, match="damaged"):
        read_jobs(damaged, NOW)


def test_the_history_says_what_was_asked_of_the_newest_start():
    history = recorded("bhist.txt")
    assert fate_of(history) is Fate.CANCELLED
    assert fate_of(history.rpartition("Fri Sep 19 11:15:00")[0]) is None
    assert fate_of(history.partition("Fri Sep 19 11:12:10")[0]) is Fate.QUEUED_AGAIN
    assert fate_of("Job <102> is not found") is None


def test_hosts():
    hosts = {host.name: host for host in read_hosts(recorded("bhosts.json"))}
    assert {name: (host.cpus, host.gpus, host.free_gpus, host.used) for name, host in hosts.items()} == {
        "hostA": (64, 4, 4, False), "hostB": (64, 4, 1, True), "hostC": (16, 0, 0, False), "hostD": (1, 0, 0, False),
    }  # fmt: skip
    assert [(host.up, host.drains) for host in hosts.values()] == [
        (True, False), (True, False), (True, True), (False, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ("New job is waiting for scheduling;", "LSF gives no reason yet"),
        ("Job dependency condition not satisfied;", "another job that it depends on has not ended"),
        ("User has reached the per-user job slot limit of the queue;", "a limit for you, your project or the queue is"),
        ("Job's resource requirements not satisfied: 4 hosts;", "too few hosts have what it asks for"),
        ("Load information unavailable: 1 host;", "hosts that it may use do not answer"),
        ("The moon is full;", "LSF says: The moon is full"),
    ],
)
def test_reasons(reasons, told):
    assert reason_of("PEND", reasons).startswith(told)


@pytest.mark.parametrize(
    ("text", "unit", "seconds"),
    [("1440.0", 60, 86_400), ("16038 second(s)", 1, 16_038), ("00:10:00", 60, 600), ("", 60, None), ("a", 1, None)],
)
def test_durations(text, unit, seconds):
    assert read_duration(text, unit) == seconds


# -- clients


def test_the_script_goes_by_stdin_and_only_a_refusal_is_one(program, tmp_path):
    file = tmp_path / "job.sh"
    file.write_text("#!/bin/sh\n")
    program(
        "bsub", f"echo \"$*\" > {tmp_path}/words; cat > {tmp_path}/got; echo 'Job <12> is submitted to queue <gpu>.'"
    )
    assert LsfSystem().submit(file, {"PATH": f"{tmp_path}:/bin"}, 1) == "12"
    assert (tmp_path / "got").read_text() == "#!/bin/sh\n"
    assert (tmp_path / "words").read_text() == "-env JOB_LAUNCH_ENVIRONMENT\n"
    program("bsub", "echo 'Request aborted by esub. Job not submitted.' >&2; exit 255")
    with pytest.raises(NotStarted, match="LSF refuses the job: Request aborted by esub"):
        LsfSystem().submit(file, {"PATH": f"{tmp_path}:/bin"}, 1)
    program("bsub", "echo 'Failed in an LSF library call: LIM is down; try later' >&2; exit 255")
    with pytest.raises(Unreachable, match="the LSF master does not answer"):
        ask(["bsub"])


def test_no_jobs_are_none(program):
    program("bjobs", "echo 'No job found' >&2; exit 255")
    assert LsfSystem().jobs() == []
    program("bjobs", "echo 'User <x> not found' >&2; exit 255")
    with pytest.raises(Unreachable, match="damaged"):
        LsfSystem().jobs()


def test_an_lsf_that_knows_no_gpus_in_its_list_of_hosts_is_asked_without(program):
    answer = shlex.quote('{"RECORDS": [{"HOST_NAME": "hostA", "STATUS": "ok", "MAX": "8", "RUN": "0"}]}')
    program("bhosts", f'case "$2" in *ngpus*) echo "Unknown field name" >&2; exit 255;; esac; echo {answer}')
    [host] = LsfSystem().exec_hosts(None, "gpu")
    assert (host.name, host.cpus, host.gpus) == ("hostA", 8, 0)


def test_a_site_is_called_as_its_cluster_is(program):
    program(
        "lsid", "printf 'IBM Spectrum LSF Standard 10.1.0.14\\n\\nMy cluster name is c101\\nMy master name is m\\n'"
    )
    assert LsfSystem().site() == "c101"


# -- the script


def test_two_hosts(tmp_path):
    body = (
        "resources: {nodes: 2, gpus_per_node: 4, cpus_per_rank: 2, time: 1h}\n"
        "queue: {hold: true, at: 2027-01-31 22:00}\n"
        "lsf: {queue: gpu, project: p1, user_group: g1, app: train, gpu: 'mode=exclusive_process', exclude: n7, "
        "extra: {R: 'rusage[mem=4000]', N: true, sp: '10'}}\n"
    )
    first, *lines, command = script(tmp_path, body, avoid=["n9"])
    assert first == "#!/bin/sh"
    assert lines == [
        "#BSUB -J train-7k3f", "#BSUB -Jd launch:c0ffee", "#BSUB -o /runs/train-7k3f/lsf-%J.out", "#BSUB -r",
        "#BSUB -Q 99", "#BSUB -q gpu", "#BSUB -P p1", "#BSUB -G g1", "#BSUB -app train", "#BSUB -n 16",
        "#BSUB -R \"select[hname!='n7' && hname!='n9'] span[ptile=8] rusage[mem=4000]\"",
        '#BSUB -gpu "num=4:mode=exclusive_process"', "#BSUB -W 60", "#BSUB -H", "#BSUB -b 2027:01:31:22:00",
        "#BSUB -N", '#BSUB -sp "10"',
    ]  # fmt: skip
    words = shlex.split(command)
    assert words[6:8] == ["--warn-after", "3480"] and words[-2:] == [str(RUN), "lsf"]


def test_a_limit_is_whole_minutes_and_a_range_its_most(tmp_path):
    found = script(tmp_path, "resources: {nodes: 2..3, gpus_per_node: 0, time: 61s}\n")
    assert "#BSUB -n 3" in found and "#BSUB -W 2" in found and not [line for line in found if "-gpu" in line]


def test_an_array_has_an_element_for_each_run(tmp_path):
    found = script(tmp_path, array=8)
    assert '#BSUB -J "train-7k3f[1-8]"' in found and "#BSUB -o /runs/train-7k3f/lsf-%J-%I.out" in found


def test_a_folder_that_clients_may_misread_has_no_output_file(tmp_path):
    assert "#BSUB -o /dev/null" in script(tmp_path, where=Path("/runs/100%J of it"))


@pytest.mark.parametrize(
    "more", ["extra: {q: a}", "extra: {env: all}", "gpu: 'a b'", 'exclude: "a\'b"', "extra: {R: 'a\"b'}"]
)
def test_what_is_no_option_is_refused(tmp_path, more):
    with pytest.raises(BadInput, match="lsf"):
        script(tmp_path, f"lsf: {{{more}}}\n")
