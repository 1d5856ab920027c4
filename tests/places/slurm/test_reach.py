"""Asking Slurm's clients: what they are told, how long they may take, and what counts as no answer."""

import os
import signal
import stat
import time

import pytest

from launcher.errors import Unreachable
from launcher.places.batch import client
from launcher.places.batch.client import Answer
from launcher.places.slurm.reach import ask, clean_environment
from launcher.run.identity import alive, process_id

BOUND_S = 150.0
STRANGERS = (
    "SLURM_NTASKS", "SLURM_CPU_BIND", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN",
    "SLURMD_NODENAME", "SBATCH_TIMELIMIT",
    "SBATCH_EXPORT", "SRUN_CPUS_PER_TASK", "SALLOC_ACCOUNT", "SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_STATES",
    "SACCT_FORMAT", "SINFO_FORMAT", "SCANCEL_SIGNAL", "SCONTROL_ALL", "SPANK_X", "_SLURM_SPANK_OPTION_x_y",
    "PMI_RANK", "PMI2_X", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE",
    "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "LAUNCH_ATTEMPT",
)  # fmt: skip
POISON = dict.fromkeys(STRANGERS, "poison")
NO_MUNGE = """\
squeue: error: If munged is up, restart with --num-threads=10
squeue: error: Munge encode failed: Failed to access /run/munge/munge.socket.2
slurm_load_jobs error: Protocol authentication error"""
NO_DATABASE = """\
sacct: error: Sending PersistInit msg: Connection refused
sacct: error: Problem talking to the database: Connection refused"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Put a small shell script on PATH: `programs(name, script)`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def program(name, script):
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return program


@pytest.fixture
def processes(tmp_path):
    """The processes that the programs noted in this folder; none of them is left behind."""
    folder = tmp_path / "pids"
    folder.mkdir()

    def noted(count):
        deadline = time.monotonic() + BOUND_S
        while len(found := [path.read_text().strip() for path in folder.iterdir()]) < count or not all(found):
            assert time.monotonic() < deadline, f"only {found} were noted"
            time.sleep(0.01)
        return [int(pid) for pid in found]

    noted.folder = folder
    yield noted
    for path in folder.iterdir():
        identity = process_id(int(path.read_text()))
        if identity is not None and alive(identity):
            os.kill(identity.pid, signal.SIGKILL)


def is_gone(pid):
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":  # dead; whoever adopted it has yet to reap it
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def open_files():
    return len(os.listdir("/proc/self/fd"))


# What a client is told


def test_other_jobs_and_habits_do_not_reach_the_clients():
    kept = {
        "PATH": "/bin",
        "HOME": "/root",
        "TZ": "Europe/Berlin",
        "SLURM_CONF": "/srv/slurm.conf",
        "LD_LIBRARY_PATH": "x",
    }
    assert clean_environment({**kept, **POISON}) == kept
    assert clean_environment({}) == {}


def environment_of(answer):
    return dict(line.split("=", 1) for line in answer.out.split("\0") if "=" in line)


def test_a_client_sees_the_cleaned_environment(programs, monkeypatch):
    programs("squeue", "env -0")
    for name, value in {**POISON, "SLURM_CONF": "/srv/slurm.conf", "TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, value)
    seen = environment_of(ask(["squeue"]))
    assert not {name for name in POISON if seen.get(name) == "poison"}
    assert (seen["SLURM_CONF"], seen["TZ"]) == ("/srv/slurm.conf", "Asia/Tokyo")
    assert (seen["LC_ALL"], seen["SLURM_TIME_FORMAT"], seen["SLURM_BITSTR_LEN"]) == ("C", "%s", "0")


def test_what_makes_answers_readable_reaches_no_job(programs, monkeypatch):
    programs("sbatch", "env -0")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    job = environment_of(ask(["sbatch", "--parsable", "job.sh"]))
    assert job["LC_ALL"] == "de_DE.UTF-8"
    assert not {"SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN"} & job.keys()
    assert environment_of(ask(["sbatch", "--test-only", "job.sh"]))["SLURM_TIME_FORMAT"] == "%s"


def test_an_environment_of_its_own(programs):
    path = programs("sbatch", "env -0").parent
    seen = environment_of(ask(["sbatch"], environ={"PATH": f"{path}:/usr/bin:/bin", "MINE": "a\nb=c", "RANK": "3"}))
    assert seen["MINE"] == "a\nb=c"
    assert "RANK" not in seen
    assert "HOME" not in seen


def test_arguments_arrive_as_they_are(programs):
    programs("scontrol", 'for word in "$@"; do printf "%s\\0" "$word"; done')
    words = ["update", "a b", "; touch canary", "$(id)", "new\nline", "\x1f", "é", ""]
    assert ask(["scontrol", *words]).out.split("\0")[:-1] == words


def test_standard_input(programs):
    programs("sbatch", "cat")
    script = "#!/bin/sh\n" + "echo é\n" * 100_000
    assert ask(["sbatch"], stdin=script).out == script
    assert ask(["sbatch"]).out == ""


def test_a_file_that_is_handed_on(programs, tmp_path):
    programs("sbatch", 'readlink "/proc/self/fd/$1"')
    with open(tmp_path / "lock", "w") as lock:
        assert ask(["sbatch", str(lock.fileno())], pass_fds=[lock.fileno()]).out == f"{tmp_path}/lock\n"


# What comes back


def test_an_answer_has_all_of_both_streams(programs):
    programs("sinfo", "head -c 3000000 /dev/zero | tr '\\0' e >&2; head -c 8000000 /dev/zero | tr '\\0' o; exit 3")
    answer = ask(["sinfo"])
    assert (answer.code, len(answer.out), len(answer.err)) == (3, 8_000_000, 3_000_000)
    assert set(answer.out) == {"o"}
    assert set(answer.err) == {"e"}


def test_bytes_that_are_no_text_do_no_harm(programs):
    programs("sinfo", "printf '\\377ok\\n'")
    assert ask(["sinfo"]).out == "\ufffdok\n"


@pytest.mark.parametrize(
    ("program", "code", "err"),
    [
        ("scontrol", 1, "Node nope not found"),
        ("scontrol", 1, "Invalid job id specified for job 999"),
        ("sbatch", 1, "sbatch: error: Batch job submission failed: Invalid account or account/partition combination"),
        ("scancel", 1, "scancel: error: Invalid job id abc"),
        ("squeue", 1, "slurm_load_jobs error: Invalid job id specified"),
        ("sacct", 1, "Slurm accounting storage is disabled"),
        ("sinfo", 0, "sinfo: warning: Socket timed out on send/recv operation, tried again"),
    ],
)
def test_a_refusal_is_an_answer(programs, program, code, err):
    programs(program, f"echo some; echo '{err}' >&2; exit {code}")
    assert ask([program]) == Answer(code, "some\n", f"{err}\n")


@pytest.mark.parametrize(
    ("program", "code", "err", "said"),
    [
        (
            "squeue",
            1,
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            "controller does not answer (squeue: slurm_load_jobs error: Unable to contact slurm controller",
        ),
        (
            "sbatch",
            1,
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            "controller does not answer (sbatch: Batch job submission failed: Socket timed out",
        ),
        ("scontrol", 1, "Unexpected message received for job 25", "(scontrol: Unexpected message received for job 25)"),
        ("scontrol", 8, "slurm_load_node error: Socket timed out on send/recv operation", "(scontrol: "),
        ("sinfo", 1, "slurm_load_partitions: Unable to contact slurm controller (connect failure)", "(sinfo: "),
        ("scancel", 1, "scancel: error: Kill job error on job id 5: Connection refused", "(scancel: Kill job error"),
        ("squeue", 1, "slurm_load_jobs error: Slurm backup controller in standby mode", "(squeue: "),
        ("squeue", 1, "squeue: fatal: Could not establish a configuration source", "(squeue: Could not establish"),
        ("squeue", 1, NO_MUNGE, "(squeue: Munge encode failed: Failed to access"),
        ("sacct", 1, NO_DATABASE, "the Slurm accounting database does not answer (sacct: Sending PersistInit msg"),
        ("squeue", 0, "squeue: error: Invalid user: 12345", "squeue cannot tell: Invalid user: 12345"),
        ("squeue", 1, "squeue: unrecognized option '--states'", "squeue cannot tell: unrecognized option '--states'"),
        ("squeue", 2, "", "squeue cannot tell: exit code 2"),
        ("sacct", 1, "sacct: error: something new", "sacct cannot tell: something new"),
    ],
)
def test_no_answer_is_no_refusal(programs, tmp_path, program, code, err, said):
    (tmp_path / "err").write_text(f"{err}\n")
    programs(program, f"cat '{tmp_path}/err' >&2; exit {code}")
    with pytest.raises(Unreachable) as caught:
        ask([program])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_client_that_is_killed_has_not_answered(programs):
    programs("sbatch", "echo 12; kill -SEGV $$")
    with pytest.raises(Unreachable, match="sbatch was killed by signal 11"):
        ask(["sbatch"])


@pytest.mark.parametrize("in_job", [False, True])
def test_a_missing_client_is_named_with_what_to_do(monkeypatch, tmp_path, in_job):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable) as caught:
        ask(["squeue", "--me"], in_job=in_job)
    assert caught.value.lines[0] == "no `squeue` on PATH"
    assert caught.value.lines[1].startswith("hint: ")


def test_a_client_that_cannot_be_started(programs, monkeypatch):
    path = programs("squeue", "true")
    monkeypatch.setenv("PATH", str(path.parent))
    path.write_bytes(b"\x7fELF nonsense")
    path.chmod(stat.S_IRWXU)
    with pytest.raises(Unreachable, match="`squeue` cannot be started: Exec format error"):
        ask(["squeue"])


# How long it may take

STUBBORN = """
trap '' TERM INT HUP
echo $$ > 'FOLDER/client'
echo soon
sleep 600 &
echo $! > 'FOLDER/child'
wait"""


def test_a_client_that_hangs_and_ignores_signals_is_killed_with_its_children(programs, processes):
    programs("squeue", STUBBORN.replace("FOLDER", str(processes.folder)))
    for limit_s in (1, 10, 60):  # on a busy machine it takes a while until it has begun
        began = time.monotonic()
        with pytest.raises(
            Unreachable, match=rf"the Slurm controller does not answer \(squeue: nothing within {limit_s} s\)"
        ):
            ask(["squeue"], limit_s=float(limit_s))
        assert limit_s <= time.monotonic() - began < limit_s + 30.0
        child = processes.folder / "child"
        if child.exists() and child.read_text():
            break
    assert all(is_gone(pid) for pid in processes(2))


def test_a_child_that_holds_the_streams_holds_up_nobody(programs, processes):
    programs("squeue", f"sleep 600 & echo $! > '{processes.folder}/child'; echo done")
    began = time.monotonic()
    assert ask(["squeue"], limit_s=400.0).out == "done\n"
    assert time.monotonic() - began < BOUND_S
    (pid,) = processes(1)
    assert os.path.exists(f"/proc/{pid}")


def test_an_interrupt_leaves_no_client_behind(programs, processes):
    waits = "ls -l /proc/$PPID/fd | grep -q pidfd && grep -q '^State:.S' /proc/$PPID/status"
    waited_for = f"until {waits}; do :; done"
    programs("squeue", f"echo $$ > '{processes.folder}/client'; {waited_for}; kill -ALRM $PPID; exec sleep 600")

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask(["squeue"], limit_s=60.0)
    finally:
        signal.signal(signal.SIGALRM, before)
    (pid,) = processes(1)
    assert is_gone(pid)


def test_a_terminal_s_interrupt_does_not_reach_the_client(programs):
    programs("sbatch", "ps -o sid= -p $$")
    assert int(ask(["sbatch"]).out) != os.getsid(0)


def test_a_quick_client_costs_no_waiting(programs):
    programs("squeue", "exit 0")

    def took():
        began = time.monotonic()
        ask(["squeue"])
        return time.monotonic() - began

    assert any(took() < 0.05 for _ in range(400))  # a busy machine is not busy each time


def test_no_file_stays_open(programs):
    programs("squeue", "exit 0")
    programs("sinfo", "sleep 600")
    before = open_files()
    for _ in range(3):
        ask(["squeue"], stdin="x")
        with pytest.raises(Unreachable):
            ask(["sinfo"], limit_s=0.1)
        with pytest.raises(Unreachable):
            ask(["sacct-is-not-here"])
    assert open_files() == before


@pytest.mark.parametrize("script", ["head -c 3000000 /dev/zero", "exec yes", "yes >&2 & echo 1; wait"])
def test_what_is_endless_is_no_answer(programs, script):
    program = programs("squeue", script)
    asked = client.Programs("Slurm", "controller", (), most_bytes=1 << 20)
    with pytest.raises(Unreachable, match="squeue writes more than 1 MB"):
        asked.ask([str(program)], limit_s=BOUND_S, environ={"PATH": os.environ["PATH"]})
