"""How long an agent that died is away, and what its supervisor does when its lease has run out."""

import ctypes
import functools
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pytest
from msgspec import structs
from run_folder import RunFolder

from launcher.clock import lease_of_ranks, node_lost_after_s
from launcher.node.ranks.lease import AfterSuspend, Lease
from launcher.run.attempts import read_plan
from launcher.run.durable import readable, write_record
from launcher.run.processes import become_subreaper, descendants, end_all, runs, tagged
from launcher.run.records import AgentRecord
from launcher.supervisor.agent_processes import (
    AdoptedAgent,
    AgentProcess,
    AgentProcesses,
    FrozenWatch,
    SupervisedLease,
)
from launcher.supervisor.wakeup import Wakeup

PR_SET_CHILD_SUBREAPER = 36
PTRACE_ATTACH = 16
PR_CAPBSET_DROP, CAP_SYS_RESOURCE = 24, 24


def in_a_child(test):
    """Run a test in a process of its own, as `AgentProcesses` ends all processes below the one that it is in."""

    @functools.wraps(test)
    def run(**given):
        pid, code = os.fork(), 1
        if pid == 0:
            try:
                test(**given)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0

    return run


def test_deaths_in_a_row_make_it_stay_away_longer_and_a_long_life_makes_up_for_them():
    agent, now, away = AgentProcess([], {}, Path("agent.log")), 1000.0, []
    for lived_s in (1, 1, 1, 29, 31, 1):
        agent.started_at = now
        now += lived_s
        agent.schedule_restart(now)
        away.append(agent.returns_at - now)
        now = agent.returns_at
    assert away == [0.0, 1.0, 2.0, 4.0, 0.0, 1.0]


OF_TWO_ROLES = """
import os, sys
from pathlib import Path
from launcher.supervisor.agent_processes import AgentProcess, AgentProcesses
from launcher.supervisor.wakeup import Wakeup

log = Path(sys.argv[1], "agent.log")
first, second, other = (AgentProcess(argv, {}, log) for argv in (["sleep", "600"], ["cat", sys.argv[2]], ["true"]))
other.leads = True
agents = AgentProcesses([first, second, other], Wakeup())
agents.start()
os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
with open(sys.argv[2], "w"):  # the second one ends with this
    pass
agents.wait_for_others([first, second], 150.0)
print(other.pid, other.last)
agents.end()
"""


def test_an_agent_of_another_role_that_ends_meanwhile_is_known_to_have_ended(tmp_path):
    """A signal to its pid would be one to nobody, or to a stranger."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    words = [sys.executable, "-c", OF_TWO_ROLES, str(tmp_path), str(pipe)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "0"], done


OF_TWO_NODES = """
import os, sys
from pathlib import Path
from launcher.supervisor.agent_processes import AgentProcess, AgentProcesses
from launcher.supervisor.wakeup import Wakeup

both = [AgentProcess(["true"], {}, Path(sys.argv[1], "agent.log")) for _ in range(2)]
agents = AgentProcesses(both, Wakeup())
agents.start()
for one in both:
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
print(agents.watch(None), both[1].pid, both[1].last)
"""


def test_agents_that_end_together_with_the_first_one_are_known_to_have_ended(tmp_path):
    """They would be waited for, in vain."""
    done = subprocess.run(
        [sys.executable, "-c", OF_TWO_NODES, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "None", "0"], done


WITH_A_ZYGOTE = """
import json, os, socket, subprocess, sys, time
from launcher.node import ZYGOTE
from launcher.node.standing_by import gate_from
from launcher.run.processes import become_subreaper

def hears(end, op):
    words = next(words for line in end if (words := json.loads(line))["op"] == op)
    return words.get("pid", words.get("seconds"))

become_subreaper()
gate, offered = gate_from(os.environ), os.environ.pop("LAUNCH_ZYGOTE", "").split()
if offered:
    link = socket.socket(fileno=int(offered[0]))
else:
    link, theirs = socket.socketpair()
    words = [sys.executable, str(ZYGOTE), "serve", str(theirs.fileno()), str(os.getpid())]
    subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True)
ours, standbys = socket.socketpair()
word = json.dumps({"op": "preload", "modules": ["once"]}).encode() + b"\\n"
socket.send_fds(link, [word], [standbys.fileno(), gate])
standbys.close()
hears(link.makefile("rb"), "ready")
print(os.getpid(), hears(ours.makefile("rb"), "standby"), len(offered), flush=True)
time.sleep(600)
"""


@pytest.fixture
def with_a_zygote(tmp_path):
    """A started agent whose zygote has imported a module that notes each import; `said()` is what the agent says."""
    become_subreaper()
    (tmp_path / "once.py").write_text(f"open({str(tmp_path / 'imports')!r}, 'a').write('!')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    log = tmp_path / "node" / "agent.log"
    one = AgentProcess([sys.executable, "-c", WITH_A_ZYGOTE], {"PYTHONPATH": path}, log, slept=AfterSuspend.COUNTS)
    strangers = {*descendants(os.getpid())}
    one.start()

    def said(life):
        while len(lines := log.read_text().splitlines(keepends=True)) < life or not lines[-1].endswith("\n"):
            time.sleep(0.01)
        return [int(word) for word in lines[life - 1].split()]

    yield one, said
    one.dismiss_standby()
    if one.place is not None:
        one.place.leave()
    end_all(lambda: [pid for pid in descendants(os.getpid()) if pid not in strangers])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def killed(one):
    """Kill the agent, as its supervisor notices."""
    pid = one.pid
    os.kill(pid, signal.SIGKILL)
    one.died(os.waitpid(pid, 0)[1])


def test_the_standby_of_a_killed_agents_zygote_becomes_the_next_agent_and_nothing_is_imported(with_a_zygote, tmp_path):
    one, said = with_a_zygote
    for life in (1, 2, 3):
        agent, standby, offered = said(life)
        assert (one.pid, offered) == (agent, 0 if life == 1 else 2)
        killed(one)
        assert one.pids == {standby}
        assert one.start() == standby
    said(4)
    assert (tmp_path / "imports").read_text() == "!"


def test_it_has_the_limits_of_its_supervisor(with_a_zygote):
    one, said = with_a_zygote
    _, standby, _ = said(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(standby, resource.RLIMIT_NOFILE, (soft - 1, hard))
    killed(one)
    assert resource.prlimit(one.start(), resource.RLIMIT_NOFILE) == (soft, hard)


WITH_LOWER_LIMITS = """
import os, resource, signal, sys
from pathlib import Path
from launcher.node.ranks.lease import AfterSuspend
from launcher.run.processes import become_subreaper, end_all, descendants
from launcher.supervisor.agent_processes import AgentProcess

become_subreaper()
log = Path(sys.argv[1], "agent.log")
one = AgentProcess([sys.executable, "-c", sys.argv[2]], {"PYTHONPATH": os.environ["PYTHONPATH"]}, log,
                   slept=AfterSuspend.COUNTS)
agent = one.start()
while not log.read_text().endswith("\\n"):
    os.sched_yield()
os.kill(agent, signal.SIGKILL)
one.died(os.waitpid(agent, 0)[1])
print(one.pids)
end_all(lambda: descendants(os.getpid()))
"""


def test_a_standby_whose_limits_a_module_has_lowered_for_good_is_passed_over(tmp_path):
    """Only root could raise them again."""
    (tmp_path / "once.py").write_text("import resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n")
    words = [sys.executable, "-c", WITH_LOWER_LIMITS, str(tmp_path), WITH_A_ZYGOTE]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    libc = ctypes.CDLL(None)
    done = subprocess.run(
        words,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        preexec_fn=lambda: libc.prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0),
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done


def test_where_the_standby_is_killed_too_a_new_agent_is_started(with_a_zygote, tmp_path):
    one, said = with_a_zygote
    _, standby, _ = said(1)
    os.kill(standby, signal.SIGKILL)
    while runs(standby):
        time.sleep(0.01)
    killed(one)
    assert one.pids == set()
    one.start()
    said(2)
    assert (tmp_path / "imports").read_text() == "!!"


def test_a_standby_that_stands_still_is_passed_over(with_a_zygote):
    one, said = with_a_zygote
    _, standby, _ = said(1)
    os.kill(standby, signal.SIGSTOP)
    while runs(standby):
        time.sleep(0.01)
    killed(one)
    assert one.pids == set()


@pytest.mark.parametrize("why", ["its supervisor ends", "the agent is not to come back"])
def test_a_standby_that_nobody_needs_ends(with_a_zygote, why):
    one, said = with_a_zygote
    _, standby, _ = said(1)
    agent, gate = one.pid, one.gate
    os.kill(agent, signal.SIGKILL)
    _, status = os.waitpid(agent, 0)
    if why == "its supervisor ends":
        gate.close()
    else:
        one.leads = True
        one.died(status)
    assert os.waitpid(standby, 0) == (standby, 0)


SUPERVISOR = """
import os, signal, sys
from pathlib import Path
from launcher.node.ranks.lease import AfterSuspend
from launcher.run.processes import descendants
from launcher.supervisor.agent_processes import AgentProcess, AgentProcesses
from launcher.supervisor.wakeup import Wakeup

folder, agent, wakeup = Path(sys.argv[1]), sys.argv[2], Wakeup()
argv, environment = [sys.executable, "-c", agent], {"PYTHONPATH": os.environ["PYTHONPATH"]}

def lives(*places):
    agents = [AgentProcess(argv, environment, folder / name, slept=AfterSuspend.COUNTS) for name in ("one", "two")]
    for one, place in zip(agents, places):
        one.place = place
    attempt = AgentProcesses(agents, wakeup)
    attempt.start()
    while not all(one.log.read_text().count("\\n") > bool(places) for one in agents):
        wakeup.sleep(0.01)
    return attempt, agents, {int(one.log.read_text().splitlines()[-1].split()[1]) for one in agents}

first, agents, standbys = lives()
os.kill(agents[0].pid, signal.SIGKILL)
while first.watch(None) is None:
    pass
first.end(standbys_of=agents)
assert {*descendants(os.getpid())} == standbys
second, agents, _ = lives(*(one.place for one in agents))
assert {one.pid for one in agents} == standbys
second.end(standbys_of=agents)
assert len(descendants(os.getpid())) == 2
second.end()
assert not descendants(os.getpid())
"""


def test_when_an_attempt_ends_nothing_is_left_but_what_becomes_the_agents_of_the_next_one(tmp_path):
    (tmp_path / "once.py").write_text(f"open({str(tmp_path / 'imports')!r}, 'a').write('!')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    words = [sys.executable, "-c", SUPERVISOR, str(tmp_path), WITH_A_ZYGOTE]
    subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=150)
    assert (tmp_path / "imports").read_text() == "!!"


AGENT = """
import os, subprocess, sys, time
from launcher.run.processes import become_subreaper
from launcher.node.ranks.lease import Lease, AfterSuspend, start_watchdog
from launcher.clock import boottime

become_subreaper()
guard = start_watchdog(AfterSuspend.COUNTS, lease=Lease.taken_from(os.environ))
rank, standby = (subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2))
guard.lease.until, guard.lease.standby = boottime() + float(sys.argv[1]), standby.pid
print(guard.pid, rank.pid, standby.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def agent(tmp_path):
    """`agent(lease_s)` starts one with a watchdog and a rank, as a supervisor does; its lease is never renewed."""
    made = []

    def start(lease_s):
        words, log = [sys.executable, "-c", AGENT, str(lease_s)], tmp_path / "node" / "agent.log"
        one = AgentProcess(words, {**os.environ}, log, slept=AfterSuspend.COUNTS)
        one.start()
        made.append(one)
        while not log.read_text().endswith("\n"):
            time.sleep(0.01)
        return one, [os.pidfd_open(int(pid)) for pid in log.read_text().split()]

    yield start
    for one in made:
        one.dismiss_standby()
        end_all(lambda one=one: [one.pid, *descendants(one.pid)])
        os.waitpid(one.pid, 0)


def ended(handle, within_s=0.0):
    return bool(select.select([handle], [], [], within_s)[0])


@pytest.mark.parametrize("fate", [signal.SIGSTOP, signal.SIGKILL])
def test_ranks_end_with_their_lease_where_agent_and_watchdog_are_frozen_or_the_watchdog_is_killed(agent, fate):
    one, (watchdog, rank, standby) = agent(1.0)
    one.frozen = FrozenWatch(lambda: 1000.0)  # for which no time passes, as where a debugger holds the agent
    os.kill(one.pid, signal.SIGSTOP)
    signal.pidfd_send_signal(watchdog, fate)
    deadline = time.monotonic() + 150.0
    while (next_look_s := one.enforce_lease()) is not None:
        assert time.monotonic() < deadline
        time.sleep(next_look_s)
    assert ended(rank), "which nobody else has ended"
    assert ended(os.pidfd_open(one.pid), 150.0), "and the agent, which did not leave"
    assert not ended(standby), "which becomes the next agent"
    signal.pidfd_send_signal(standby, signal.SIGKILL)


def test_an_agent_that_is_frozen_alone_is_ended_long_before_its_lease(agent):
    one, (_, *others) = agent(600)
    os.kill(one.pid, signal.SIGSTOP)
    handle, deadline = os.pidfd_open(one.pid), time.monotonic() + 150.0
    while not ended(handle, one.enforce_lease()):
        assert time.monotonic() < deadline
    for other in others:
        signal.pidfd_send_signal(other, signal.SIGKILL)  # nothing else ends it with its agent, as it does a real rank


@pytest.mark.parametrize("traced", [False, True])
def test_an_agent_that_is_stopped_with_all_of_its_node_or_by_a_debugger_is_left_alone(agent, traced):
    one, handles = agent(600)
    now = [1000.0]
    one.frozen = FrozenWatch(lambda: now[0])
    if traced:
        trace(one.pid)
    else:
        for handle in handles:
            signal.pidfd_send_signal(handle, signal.SIGSTOP)
        os.kill(one.pid, signal.SIGSTOP)
    while runs(one.pid):
        time.sleep(0.01)
    for _ in range(10):
        one.enforce_lease()
        now[0] += 0.5
    assert not ended(os.pidfd_open(one.pid))


def trace(pid):
    """Stop a process as a debugger does, which ends when this thread does."""
    assert ctypes.CDLL(None).ptrace(PTRACE_ATTACH, pid, None, None) == 0
    os.waitpid(pid, os.WUNTRACED)


def test_time_in_which_the_supervisor_did_not_look_is_none_in_which_the_agent_was_frozen():
    """It was suspended together with the agent, and goes on first."""
    now = [1000.0]
    watch = FrozenWatch(lambda: now[0])
    assert watch.look(is_frozen=True) == 0.0
    now[0] += 3600.0
    assert watch.look(is_frozen=True) == 0.0
    now[0] += 0.5
    assert watch.look(is_frozen=True) == 0.5
    assert watch.look(is_frozen=False) is None
    now[0] += 0.5
    assert watch.look(is_frozen=True) == 0.0


def test_a_supervisor_leaves_to_the_watchdog_what_that_can_do(agent):
    one, (_, rank, _) = agent(600)
    assert 0 < one.enforce_lease() <= 1.0
    assert not ended(rank)


def test_a_supervisor_acts_between_the_end_of_a_lease_and_the_moment_at_which_others_take_the_places():
    lease, now = Lease(), [1000.0]
    lease.until = 1000.0 + lease_of_ranks(5.0)
    supervised = SupervisedLease(lease, AfterSuspend.COUNTS, lambda: now[0])
    while not (due := supervised.due()).end:
        assert due.look_s <= 1.0, "else it would take its own wait for sleep"
        now[0] += due.look_s
    assert lease.until < now[0] < 1000.0 + node_lost_after_s(5.0)
    assert not due.kill, "it may leave by itself"
    now[0] += due.look_s
    assert supervised.due().kill


def test_what_a_supervisor_and_all_below_it_after_suspend_is_forgiven_where_the_coordinator_decides():
    lease, now = Lease(), [1000.0]
    lease.until = 1004.0
    supervised = {slept: SupervisedLease(lease, slept, lambda: now[0]) for slept in AfterSuspend}
    now[0] += 3600.0
    assert [slept for slept in AfterSuspend if supervised[slept].due().end] == [AfterSuspend.COUNTS]


@in_a_child
def test_an_agent_that_has_died_is_brought_back_by_the_next_look(tmp_path):
    """Its supervisor may vote for another leader in between, whose hosts it may not keep from their votes."""
    one = AgentProcess(["false"], {}, tmp_path / "agent.log")
    agents = AgentProcesses([one], Wakeup(), leads=False)
    agents.start()
    until(lambda: agents.watch(None) or one.last is not None)
    assert one.pid is None and one.returns_at is not None
    agents.watch(0.0, bring_back=False)
    assert one.pid is None
    before = one.started_at
    agents.watch(0.0)
    assert one.started_at > before
    agents.end()


ORPHANED = """
import os, sys, time
from pathlib import Path
from launcher.node.ranks.lease import AfterSuspend
from launcher.run.durable import write_record
from launcher.run.identity import process_id
from launcher.run.layout import RunDir
from launcher.run.processes import TAG
from launcher.run.records import AgentRecord
from launcher.supervisor.agent_processes import AgentProcess

run = RunDir(Path(sys.argv[1]))
attempt = run.attempt(1)
environment = {**os.environ, TAG: str(run.path)}
words = [sys.executable, "-c", sys.argv[2], sys.argv[3]]
one = AgentProcess(words, environment, attempt.agent_log(1), slept=AfterSuspend.COUNTS)
one.start()
while not one.log.read_text().endswith("\\n"):
    time.sleep(0.01)
write_record(attempt.agent(1), AgentRecord(1, "", process_id(one.pid)))
"""
LEAVES = AGENT.replace(
    "print(",
    """
def leave(*_):
    guard.lease.exit_code = 13
    os._exit(13)

__import__("signal").signal(15, leave)
print(""",
)


class LeftAgent:
    """An agent, with its watchdog, rank and standby, whose supervisor has died."""

    def __init__(self, folder, lease_s, program=AGENT):
        self.run = RunFolder(folder / "train-7k3f").plan(2).run
        path = os.pathsep.join(sys.path)
        words = [sys.executable, "-c", ORPHANED, str(self.run.path), program, str(lease_s)]
        subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.DEVNULL, check=True, timeout=150)
        attempt = self.run.attempt(1)
        self.handles = [os.pidfd_open(int(pid)) for pid in attempt.agent_log(1).read_text().split()]
        self.plan, self.attempt = read_plan(self.run, 1), attempt
        self.agent = readable(attempt.agent(1), AgentRecord)

    def found(self):
        return AdoptedAgent.found(self.run, self.attempt, self.plan, 1)


@pytest.fixture
def left(tmp_path):
    made = []

    def start(*how):
        made.append(LeftAgent(tmp_path, *how))
        return made[0]

    yield start
    end_all(lambda: tagged(str(tmp_path / "train-7k3f"), os.getuid()))
    for one in made:
        for handle in one.handles:
            os.close(handle)


def until(condition, within_s=150.0):
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@in_a_child
def test_the_ranks_of_an_adopted_agent_end_with_their_lease_and_it_is_known_to_have_ended(left):
    """Agent and watchdog are frozen, so that only its new supervisor can."""
    there = left(1.0)
    one, (watchdog, rank, _) = there.found(), there.handles
    one.frozen = FrozenWatch(lambda: 1000.0)
    signal.pidfd_send_signal(watchdog, signal.SIGSTOP)
    one.signal(signal.SIGSTOP)
    agents = AgentProcesses([one], Wakeup(), leads=False)
    agents.start()
    until(lambda: agents.watch(None) or one.pid is None)
    assert one.last == signal.SIGKILL and ended(rank) and one.returns_at is None
    assert not tagged(str(there.run.path), os.getuid()), "what it left behind is no child of its supervisor"


@in_a_child
def test_an_adopted_agent_and_all_below_it_end_with_their_new_supervisor(left):
    there = left(600)
    agents = AgentProcesses([there.found()], Wakeup(), leads=False)
    agents.start()
    agents.end()
    assert [ended(one, 150.0) for one in there.handles] == [True] * 3


@in_a_child
def test_the_exit_code_of_an_adopted_agent_is_known(left):
    """It is not its supervisor's child: the agent leaves its exit code in the memory of its lease."""
    one = left(600, LEAVES).found()
    agents = AgentProcesses([one], Wakeup())
    agents.signal_first()
    assert until(lambda: agents.watch(None)) == 13 << 8


@pytest.mark.parametrize("case", ["another process has its pid", "it has no lease", "it is gone"])
def test_an_agent_is_not_adopted_where(left, case):
    without = AGENT.replace("print(", "os.closerange(3, 99); print(")
    there = left(600, without if case == "it has no lease" else AGENT)
    if case == "it is gone":
        end_all(lambda: tagged(str(there.run.path), os.getuid()))
    if case == "another process has its pid":
        process = structs.replace(there.agent.process, start_ticks=there.agent.process.start_ticks - 1)
        write_record(there.attempt.agent(1), structs.replace(there.agent, process=process))
    assert there.found() is None
