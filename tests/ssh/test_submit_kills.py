"""The submitter dies at any moment: the hosts carry the run out, once, or there is nothing of it anywhere."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from lab import BOUND_S, command, parent

from tests.sizes import SCALE

pytestmark = pytest.mark.nightly

# What changes the world, here and by the socket on the hosts. Of all occurrences a random share is struck.
DEEDS = "rename,fsync,mkdir,link,unlink,flock"
CALLS = f"{DEEDS},sendto,recvfrom,connect,socket,clone3,write,openat,close,fchmod,poll,futex"
STRACED = re.compile(r"^(\d+) +(\w+)\(", re.MULTILINE)  # which thread, what
LAUNCH = (sys.executable, "-m", "launcher.cli.main")
SUBMIT = ("submit", "job.yaml", "--on", "pool")
JOB = "name: once\nrun:\n  script: once.py\n  preload: []\nresources: {nodes: 2, ranks_per_node: 1}\n"
# One line a rank on the disk of its host; the job may be held, so that what is there meanwhile can be looked at.
ONCE = """
import os, time
home = os.path.expanduser('~')
with open(os.path.join(home, 'ledger'), 'a') as file:
    file.write(f"{os.environ['LAUNCH_RUN_ID']} {os.environ['LAUNCH_ATTEMPT']} {os.environ['RANK']}\\n")
while os.path.exists(os.path.join(home, 'hold')):
    time.sleep(0.02)
"""
ALIVE = {"queued", "starting", "running", "succeeded"}


class Pool:
    """A project whose ranks write into ledgers on their hosts; `look` and `check` are the promise."""

    def __init__(self, desk):
        self.desk, self.hosts = desk, desk.hosts
        desk.env["PYTHONDONTWRITEBYTECODE"] = "1"  # else the first of many writes files that the others do not
        desk.script("once.py", ONCE)
        desk.spec(JOB)

    def homes(self):
        return [self.hosts.home(index) for index in range(len(self.hosts.nodes))]

    def hold(self):
        """Let no rank end from now on."""
        for home in self.homes():
            (home / "hold").touch()

    def let_go(self):
        for home in self.homes():
            (home / "hold").unlink(missing_ok=True)

    def ledger(self):
        """Return what each rank of each attempt has written."""
        return sorted(
            line
            for home in self.homes()
            if (home / "ledger").exists()
            for line in (home / "ledger").read_text().splitlines()
        )

    def there(self):
        """The runs whose folders are on each host."""
        folders = [home / "launch" / "runs" for home in self.homes()]
        return [
            {path.name for path in folder.iterdir() if path.name[0] != "."} if folder.exists() else set()
            for folder in folders
        ]

    def supervisors(self, run):
        """Return how many supervisors of the run live on each host."""
        return [self.of(run, index) for index in range(len(self.hosts.nodes))]

    def of(self, run, index):
        pids = self.desk.own("ssh.host.host_supervisor", index)
        pids = [pid for pid in pids if parent(pid) not in pids]  # what one has just forked is no second one
        lines = [command(pid).split(b"\0") for pid in pids]
        return sum(any(word.endswith(f"/{run}".encode()) for word in line) for line in lines)

    def statuses(self):
        return json.loads(self.desk.launch("status", "--json", "--all").stdout)

    def look(self, point):
        """Check after one `status` that every listed run was given to its hosts once."""
        shown = self.statuses()
        for run in shown:
            assert run["state"] in ALIVE, (point, run["state"], run["message"])
            supervisors = self.supervisors(run["run"])
            assert max(supervisors) <= 1 and sum(supervisors) <= 2, (point, supervisors)
            record = self.desk.run_dir(run["run"]) / "attempts" / "0001" / "handle.json"
            assert record.exists(), (point, run["run"])
        return shown

    def check(self, point):
        """Check at the end that one attempt carried each run out, its ranks ran once, and nothing else is left."""
        self.statuses()
        shown = self.desk.until(f"the end of all, {point}", lambda: self.ended(self.statuses()))
        assert [run["state"] for run in shown] == ["succeeded"] * len(shown), (point, shown)
        assert self.ledger() == sorted(f"{run['run']} 1 {rank}" for run in shown for rank in (0, 1)), point
        self.desk.until(f"the end of every process, {point}", lambda: not self.desk.everything())
        runs = {run["run"] for run in shown}
        assert set().union(*self.there()) == runs, point
        for run in shown:
            places = [index for index, there in enumerate(self.there()) if run["run"] in there]
            assert [f"node{index}" for index in places] == sorted(node["host"] for node in run["nodes"]), point
        return shown

    @staticmethod
    def ended(shown):
        return shown if all(run["state"] not in ALIVE - {"succeeded"} for run in shown) else None

    def popen(self, *words, **more):
        return subprocess.Popen([*LAUNCH, *words], cwd=self.desk.project, env=self.desk.env, **more)


@pytest.fixture
def pool(desk):
    pool = Pool(desk)
    yield pool
    pool.let_go()


def strace(desk, *options):
    """Run `launch submit` under strace with these options, and return the finished process."""
    assert shutil.which("strace"), "strace is missing: apt-get install strace"
    command = ["strace", "-f", "-qq", *options, *LAUNCH, *SUBMIT]
    return subprocess.run(command, cwd=desk.project, env=desk.env, capture_output=True, text=True, timeout=BOUND_S)


def occurrences(desk):
    """Return how often the busiest thread of an undisturbed submit makes each of these calls."""
    trace = desk.project.parent / "trace"
    done = strace(desk, "-e", f"trace={CALLS}", "-o", str(trace))
    assert done.returncode == 0, done.stderr
    calls = Counter(tuple(match.groups()) for match in STRACED.finditer(trace.read_text()))
    return {call: max(n for (_, name), n in calls.items() if name == call) for _, call in calls}


def kill_at(desk, call, k):
    """True where the submitter was killed at the kth such call of one of its threads."""
    inject = f"inject={call}:signal=SIGKILL:when={k}"
    return strace(desk, "-e", f"trace={call}", "-o", "/dev/null", "-e", inject).returncode == -9


@pytest.mark.timeout(3000)
def test_killed_at_any_system_call(pool, desk, draw):
    """Deeds, and the rest from where modules have been imported; some calls are not made by each submit."""
    desk.launch(*SUBMIT)  # the first one makes folders that the others find
    every = occurrences(desk)
    deeds = [(call, k) for call, most in every.items() if call in DEEDS.split(",") for k in range(1, most + 1)]
    rest = [(call, k) for call, most in every.items() for k in range(int(0.7 * most), most)]
    print(f"{len(deeds)} deeds, {len(rest)} other calls")
    for points, many in ((deeds, SCALE), (rest, SCALE)):
        fired, order = 0, draw.sample(points, len(points))
        for point in order[: 40 * many]:  # how often a thread polls or opens is another number each time
            fired += kill_at(desk, *point)
            pool.look(f"killed at {point}")
            if fired == many:
                break
        assert fired >= min(many, len(points) // 2), f"only {fired} kills fired"
    pool.check("after all kills")


@pytest.mark.timeout(1500)
def test_killed_at_any_instant(pool, draw):
    """So much of the time that a submit takes has passed; where it has ended by then, the kill came too late."""
    pool.desk.launch(*SUBMIT)
    began = time.monotonic()
    pool.desk.launch(*SUBMIT)
    took = time.monotonic() - began
    fired, many = 0, 3 * SCALE
    for _ in range(10 * many):
        instant = draw.uniform(0.05, 0.95) * took
        began = time.monotonic()
        submit = pool.popen(*SUBMIT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            submit.wait(instant)
            took = time.monotonic() - began  # the machine is quicker than it was
        submit.kill()
        fired += submit.wait() == -signal.SIGKILL
        pool.look(f"killed after {instant:.3f} of {took:.3f} s")
        if fired == many:
            break
    assert fired == many
    pool.check("after all kills")


STAGES = {
    "before anything is opened": "kind == 'Open' and not told",
    "one host is open": "kind == 'Open' and nth == 2 and told",
    "one host knows the others": "kind == 'Supervisors' and nth == 1 and told",
    "no host has the word": "kind == 'GoAhead' and not told",
    "the first has the word": "kind == 'GoAhead' and nth == 1 and told",
    "all have it and nobody knows": "kind == 'GoAhead' and nth == 2 and told",
    "in the middle of the code": "half",
}


def test_killed_between_the_words_to_the_hosts(pool, desk, draw):
    chosen = draw.sample(sorted(STAGES), min(len(STAGES), 2 * SCALE))
    for stage in chosen:
        condition = STAGES[stage]
        if condition == "half":
            (desk.project / "weights.bin").write_bytes(os.urandom(3_000_000))  # so that it is not there
        submit_struck(pool, condition)
        assert pool.look(stage)[0]["state"] in ALIVE
    assert len(pool.check("after all stages")) == len(chosen)


def submit_struck(pool, condition, words=SUBMIT):
    """The submitter kills itself where what it says to a host is like that."""
    done = subprocess.run(
        struck_command(condition, "SIGKILL", words),
        cwd=pool.desk.project,
        env=pool.desk.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, (condition, done.stderr)


def struck_command(condition, number, words=SUBMIT):
    return [sys.executable, "-c", STRUCK.format(condition=condition, number=number), *words]


STRUCK = """
import os, signal, sys, threading
from launcher.places.ssh.host_client import HostClient
from launcher.remote.running import Running
from launcher.cli.main import main
count, lock, ask, feed = {{}}, threading.Lock(), HostClient.ask, Running.feed

def strike():
    os.kill(os.getpid(), signal.{number})

def struck(client, request, *more, **named):
    kind, told, half, settling = type(request).__name__, False, False, False
    with lock:
        count[kind] = nth = count.get(kind, 0) + 1
    if {condition}:
        strike()
    answer = ask(client, request, *more, **named)
    told = True
    if {condition}:
        strike()
    return answer

def starved(running, data, limit_s):
    half = len(data) == 1 << 18  # of the code; the launcher itself comes as one piece
    kind, nth, told, settling = "", 0, False, len(data) > 100_000 and not half
    if {condition}:
        feed(running, data[: len(data) // 2], limit_s)
        strike()
    return feed(running, data, limit_s)

HostClient.ask, Running.feed = struck, starved
sys.argv[0] = "launch"
sys.exit(main())
"""


def test_killed_while_the_hosts_are_made_ready(pool, desk, hosts):
    """Half of the launcher is there: what came is taken away again, and the next submit brings all of it."""
    hosts.empty()
    submit_struck(pool, "settling")
    pool.look("half of it")
    pool.check("half of it")
    desk.wait(desk.submit("job.yaml", "--on", "pool"))
    pool.check("all of it")
    assert not [*hosts.folder.glob("disks/*/home/launch/*/.tmp-*")]


def test_a_resume_is_handed_over_once_too(pool, desk):
    pool.hold()
    run = desk.submit("job.yaml", "--on", "pool")
    desk.until("both ranks", lambda: len(pool.ledger()) == 2)
    desk.launch("cancel", run)
    pool.let_go()
    submit_struck(pool, STAGES["no host has the word"], ("resume", run))
    assert desk.status(run)["state"] in ALIVE
    desk.wait(run)
    assert pool.ledger() == sorted(f"{run} {attempt} {rank}" for attempt in (1, 2) for rank in (0, 1))


@pytest.mark.daily
def test_two_who_look_at_once_hand_it_over_once(pool, desk):
    """Neither calls it lost, and the one that is late hands nothing over again."""
    submit_struck(pool, STAGES["no host has the word"])
    looking = [pool.popen("status", "--json", "--all", stdout=subprocess.PIPE) for _ in range(2)]
    for one in looking:
        with one:
            (shown,) = json.loads(one.communicate(timeout=BOUND_S)[0])
        assert shown["state"] in ALIVE, shown["message"]
    pool.look("two lookers")
    assert len(pool.check("two lookers")) == 1


def test_a_run_that_waits_for_its_hosts_is_not_handed_over_again(pool, desk):
    """Told to go and not begun: what hosts are asked for is held by another run."""
    pool.hold()
    desk.spec(JOB.replace("}", ", cpus_per_rank: 999}"))  # as many as there are
    for _ in range(2):
        desk.submit("job.yaml", "--on", "pool")
    submit_struck(pool, STAGES["all have it and nobody knows"])
    desk.until("its turn to wait", lambda: [run["state"] for run in pool.statuses()].count("queued") == 1)
    pool.look("while it waits")
    pool.let_go()
    assert len(pool.check("it has waited")) == 3


@pytest.mark.daily
def test_cancelled_before_any_host_had_the_word(pool, desk):
    for stage in ("before anything is opened", "no host has the word"):
        submit_struck(pool, STAGES[stage])
        (run,) = [path.name for path in desk.run_dir("x").parent.iterdir() if "once" in path.name][-1:]
        desk.launch("cancel", run)
        assert desk.status(run)["state"] == "cancelled", stage
        desk.until("nothing of it on any host", lambda: not desk.everything())
        shutil.rmtree(desk.run_dir(run))
    assert pool.ledger() == []


STANDING = """
import os, signal, sys
import launcher.supervisor.handover as handover
from launcher.cli.main import main
locked = handover.locked

def created_first(path, **options):
    path.touch()
    os.kill(os.getpid(), signal.SIGSTOP)
    return locked(path, **options)

handover.locked = created_first
sys.argv[0] = "launch"
sys.exit(main())
"""


def test_a_submitter_that_has_not_yet_locked_its_file_is_left_alone(pool, desk):
    """The file of its lock is there for a moment before it is locked."""
    left_alone(pool, [sys.executable, "-c", STANDING, *SUBMIT])


def test_a_submitter_that_lives_is_left_alone(pool, desk):
    """Who looks meanwhile hands nothing over, and a cancel says that it is too early."""
    said = left_alone(pool, struck_command("kind == 'Open' and nth == 1 and not told", "SIGSTOP"))
    assert "is being handed to its hosts" in said


def left_alone(pool, command):
    """Return what a cancel prints while a submitter has stopped itself."""
    desk = pool.desk
    with subprocess.Popen(command, cwd=desk.project, env=desk.env, stdout=subprocess.PIPE) as submitter:
        stat = Path(f"/proc/{submitter.pid}/stat")
        desk.until("its stop", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        try:
            (shown,) = pool.statuses()
            done = desk.launch("cancel", shown["run"], check=None)
        finally:
            submitter.send_signal(signal.SIGCONT)
        assert submitter.wait(BOUND_S) == 0
    assert (shown["state"], done.returncode) == ("starting", 4), done.stderr
    assert len(pool.check("it was frozen for a while")) == 1
    return done.stderr


@pytest.mark.daily
def test_the_check_bites(pool, desk):
    (run,) = [desk.wait(desk.submit("job.yaml", "--on", "pool"))["run"]]
    pool.check("nothing")
    ledger = pool.homes()[0] / "ledger"
    once = ledger.read_text()
    for sabotage in (once * 2, f"{once}once-zzzz 1 0\n", once.replace(" 1 ", " 2 "), ""):
        ledger.write_text(sabotage)
        with pytest.raises(AssertionError):
            pool.check("sabotage")
    ledger.write_text(once)
    (desk.there(2, "once-zzzz")).mkdir(parents=True)
    with pytest.raises(AssertionError):
        pool.check("a run that nobody knows")
    (desk.run_dir(run) / "attempts" / "0001" / "handle.json").unlink()
    with pytest.raises(AssertionError):
        pool.look("sabotage")
