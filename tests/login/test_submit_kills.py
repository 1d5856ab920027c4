"""A submit that is cut short anywhere, here, there or between: the run is carried out once and known, or never was."""

import os
import random
import re
import shutil
import subprocess

import pytest
from login_node import BOUND_S

from tests.sizes import SCALE, SEED, one_in
from tests.waits import until

pytestmark = pytest.mark.nightly

ONCE = "import os\nwith open('{ledger}', 'a') as file:\n    file.write(os.environ['LAUNCH_RUN_ID'] + '\\n')\n"
JOB = "name: once\nrun:\n  script: once.py\n  preload: []\nresources:\n  ranks_per_node: 1\n"
DEEDS = "rename,fsync,mkdir,symlink,link,vfork"


class Ledger:
    """The record of what was carried out, read from the runs themselves."""

    def __init__(self, path, laptop, node):
        self.path, self.laptop, self.node = path, laptop, node
        laptop.script("once.py", ONCE.format(ledger=path))
        laptop.spec(JOB)

    def lines(self):
        return self.path.read_text().split() if self.path.exists() else []

    def renew(self, number):
        """Other code each time, so that each time it has to be sent."""
        self.laptop.script("version.py", f"{number:4}\n" * 50)

    def settle(self, point):
        """Check after the next `status` that the known runs, the existing ones and those carried out are the same."""

        def settled():
            found = self.laptop.statuses("--all")
            ended = all(one["state"] in ("succeeded", "failed", "lost", "cancelled") for one in found.values())
            return (found,) if ended and not self.laptop.unfinished() else None

        (found,) = until(f"the end of what was submitted, cut at {point}", settled)
        assert sorted(self.lines()) == sorted(found) == self.node.runs(), point
        assert {one["state"] for one in found.values()} <= {"succeeded"}, point
        return len(found)


@pytest.fixture
def ledger(laptop, login_node, tmp_path):
    return Ledger(tmp_path / "ledger", laptop, login_node)


def stages(passed):
    """Return the places (way, bytes) at and near the end of each message; never the end of the last answer."""
    found = {("up", 0)}
    for way in ("up", "down"):
        data = passed[way]
        ends = [match.end() for match in re.finditer(rb"\n(?=\{|$)", data)]
        found |= {(way, place) for end in ends for place in (end - 1, end, end + 20) if 0 < place <= len(data)}
    return sorted(found - {("down", len(data))})


@pytest.mark.timeout(600)
def test_the_connection_is_cut_at_every_stage(laptop, login_node, ledger):
    laptop.relay()
    ledger.renew(-1)
    laptop.submit()
    points = stages(laptop.passed()[-1])
    assert len(points) >= 10, points
    points = one_in(3, points)
    cut = 0
    for number, point in enumerate(points):
        ledger.renew(number)
        laptop.relay(**dict([point]))
        before = len(laptop.passed())
        run = laptop.submit()
        reached = (laptop.root / "cut").read_text() == "{}"
        cut += reached
        assert len(laptop.passed()) >= before + 1 + reached, "it was cut, and the connection made again"
        assert login_node.runs().count(run) == 1
        assert len(login_node.runs()) == number + 2, point
    assert cut >= len(points) - 3, "all but the last of each way, where this submit had a few bytes less to say"
    assert ledger.settle("any stage") == len(points) + 1


@pytest.mark.timeout(600)
def test_the_laptop_is_killed_at_every_stage(laptop, ledger):
    laptop.relay()
    ledger.renew(-1)
    laptop.submit()
    points = stages(laptop.passed()[-1])
    known = {}
    for number, point in enumerate(points):
        ledger.renew(number)
        laptop.relay(**dict([point]), parent=True)
        laptop.submit(check=-9)
        laptop.relay()
        known[point] = ledger.settle(point)
        assert 0 <= known[point] - (known[points[number - 1]] if number else 1) <= 1
    assert known[points[-1]] - 1 >= 2, "some had come so far that there is a run, and it was found"
    assert known[points[-1]] - 1 < len(points), "some had not"


@pytest.mark.daily
def test_a_submit_that_goes_on_is_left_alone_by_status(laptop, login_node, ledger):
    """Who asks for statuses must not give up what somebody else is about to start."""
    gate = laptop.root / "gate"
    first = laptop.root / "first"
    login_node.shell(f"mkdir {first} 2> {os.devnull} && while [ ! -e {gate} ]; do sleep 0.02; done")
    submit = laptop.start("submit", "job.yaml", "--on", "hpc", stdout=subprocess.PIPE)
    until("the first to come, who has to wait", first.exists)
    assert laptop.statuses() == {}
    gate.touch()
    run = submit.communicate(timeout=BOUND_S)[0].decode().strip()
    assert submit.returncode == 0
    assert login_node.runs() == [run]
    assert ledger.settle("nothing") == 1


@pytest.mark.parametrize("begun", [True, False])
def test_a_login_node_that_does_not_come_back(laptop, login_node, ledger, begun):
    """The last word never came: the user is told so, and once the login node is back the run is known."""
    laptop.relay()
    ledger.renew(0)
    laptop.submit()
    answers = laptop.passed()[-1]["down"]
    ledger.renew(1)
    missing = 5 if begun else len(answers.splitlines(keepends=True)[-1]) + 5  # the last word, or the one before it too
    laptop.relay(down=len(answers) - missing)
    gone = laptop.root / "gone"
    login_node.shell(f"[ -e {gone} ] && exit 255\ntouch {gone}")
    done = laptop.launch("submit", "job.yaml", "--on", "hpc", check=5)
    assert "launch: login node hpc of hpc cannot be reached" in done.stderr
    assert ("exists all the same: `launch status` hands it over" in done.stderr) is begun
    assert len(laptop.unfinished()) == begun
    laptop.launch("status")
    assert len(laptop.unfinished()) == begun, "nothing is known yet, so nothing is forgotten"
    login_node.shell()
    assert ledger.settle("coming back") == 1 + begun


@pytest.mark.timeout(600)
def test_launch_on_the_login_node_is_killed_at_any_system_call(laptop, login_node, ledger, tmp_path):
    assert shutil.which("strace"), "strace is missing: apt-get install strace"
    print("seed", SEED)
    plain = (login_node.bin / "launch").read_text()
    trace = tmp_path / "inject"
    body = plain.partition("\n")[2].replace("exec ", f'exec $([ "$1" = _far ] && cat {trace} && : > {trace}) ')
    trace.write_text("")
    laptop.submit()  # the first one makes folders, and writes what Python has compiled
    trace.write_text(f"strace -qq -e trace={DEEDS} -c -o {tmp_path}/counts ")
    login_node.program(body)
    ledger.renew(-1)
    laptop.submit()
    counts = [line.split() for line in until("the counts", lambda: counted(tmp_path / "counts"))]
    points = [(fields[-1], k) for fields in counts for k in range(1, int(fields[3]) + 1)]
    chosen = random.Random(SEED).sample(points, min(len(points), 5 * SCALE))
    fired = 0
    for number, (call, k) in enumerate(chosen):
        ledger.renew(number)
        trace.write_text(f"strace -qq -e trace={call} -o /dev/null -e inject={call}:signal=SIGKILL:when={k} ")
        asked = len(login_node.asked())
        run = laptop.submit()
        fired += len(login_node.asked()) > asked + 1
        assert trace.read_text() == ""
        assert login_node.runs().count(run) == 1
        assert len(login_node.runs()) == number + 3, (call, k)
    assert fired >= 0.8 * len(chosen), f"only {fired} of {len(chosen)} kills fired"
    assert ledger.settle("any call") == len(chosen) + 2


def counted(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.split() and line.split()[-1] in DEEDS.split(",")]


@pytest.mark.daily
def test_the_check_bites(laptop, ledger):
    """A run carried out twice, or one that nobody knows, would be seen."""
    laptop.submit()
    ledger.settle("nothing")
    once = ledger.path.read_text()
    for sabotage in (once * 2, once + "once-zzzz\n", ""):
        ledger.path.write_text(sabotage)
        with pytest.raises(AssertionError, match="sabotage"):
            ledger.settle("sabotage")
    ledger.path.write_text(once)
    name = laptop.root / "state" / "launch" / "runs" / once.strip()
    shutil.rmtree(name.resolve())  # in the project it would be found without its name
    name.unlink()
    with pytest.raises(AssertionError, match="forgotten"):
        ledger.settle("forgotten")
