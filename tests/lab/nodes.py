"""Machines inside this machine: each has its own process table, host name, hosts file and network card.

A node runs whatever programs it is given (a slurmd, an sshd), can lose its power or its cable, and shares the file
system, which is the cluster's shared disk.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from tests.lab import claims
from tests.lab.claims import TAG, Claim

INIT = Path(__file__).parent / "init.py"
BOUND_S = 150.0  # against hanging alone: what takes a second may take a minute beside other tests
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

T = TypeVar("T")


class LabError(RuntimeError):
    """The lab itself did not do what it was told."""


class Cut(StrEnum):
    """The way in which a node's packets are lost; only with LINK does its network card notice."""

    LINK = "link"
    IN = "in"
    OUT = "out"
    BOTH = "both"
    RESET = "reset"  # connections are refused and reset instead of falling silent
    LOSS = "loss"  # one packet in five that comes in


# For nft: the hook, and what to do there.
RULES = {
    Cut.IN: {"input": "drop"},
    Cut.OUT: {"output": "drop"},
    Cut.BOTH: {"input": "drop", "output": "drop"},
    Cut.RESET: {"input": "meta l4proto tcp reject with tcp reset"},
    Cut.LOSS: {"input": "numgen random mod 100 < 20 drop"},
}


@dataclass(frozen=True)
class Program:
    """A program that runs in a node from power on."""

    name: str
    argv: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)


class Namespace:
    """A first process and all that it starts, in a process table of their own; they live and die together."""

    def __init__(
        self,
        name: str,
        etc: Path,
        claim: Claim,
        *,
        net: bool,
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Sequence[str]] = (),
    ):
        self.name = name
        self.mounts = mounts  # what `mount` is given, one after the other
        self.etc = etc  # a folder: what it has in /etc instead of this machine's
        self.claim = claim
        self.net = net
        self.env = {TAG: claim.folder, **(env or {})}  # of what exec() runs inside
        self.expected: dict[str, Program] = {}
        self.outer: subprocess.Popen[str] | None = None
        self.pid = 0  # of the first process, as the machine knows it
        self.table = ""  # names its process table

    # -- its life

    @property
    def up(self) -> bool:
        return self.outer is not None and self.outer.poll() is None

    def begin(self) -> None:
        """Start the first process; it waits for finish()."""
        self.kill()
        flags = ["--net"] * self.net + ["--stay"] * (self.claim.owner is None)
        with (Path(self.claim.folder) / "log" / f"init-{self.name}.log").open("a") as log:
            self.outer = subprocess.Popen(
                [sys.executable, "-I", str(INIT), self.name, str(self.etc), json.dumps(self.mounts), *flags],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,  # not the caller's, who may wait for the end of it
                env={"PATH": PATH, TAG: self.claim.folder},
                start_new_session=True,
                text=True,
            )
        self.pid = self._answer()
        self.table = namespace_of(self.pid)

    def finish(self, commands: Sequence[str] = ()) -> None:
        """These are the `ip` commands that set up its side of the network."""
        self._say(";".join(commands))
        self._answer()

    def kill(self) -> None:
        """Kill all processes of the node and wait until they are dead."""
        if self.outer is None:
            return
        if self.up:
            claims.kill(self.pid)
        self.outer.wait(timeout=BOUND_S)
        for stream in (self.outer.stdin, self.outer.stdout):
            if stream:
                stream.close()
        self.outer = None
        self.expected = {}

    # -- its programs

    def start(self, program: Program) -> None:
        env = {"PATH": PATH, "LANG": "C.UTF-8", **program.env}
        self._ask(start=program.name, argv=list(program.argv), env=env, log=str(program.log))
        self.expected[program.name] = program

    def signal(self, program: str, number: int) -> None:
        self._ask(signal=program, number=int(number))

    def kill_program(self, program: str) -> None:
        """kill -9; what it has started lives on."""
        self.expected.pop(program, None)
        self.signal(program, 9)
        until(f"the end of {program} in {self.name}", lambda: program not in self.running())

    def running(self) -> dict[str, int]:
        """The names of its programs that run, each with its pid inside."""
        return self._ask(running=None)

    def check(self) -> None:
        """Complain of a program that has ended by itself."""
        for name in self.expected.keys() - self.running().keys():
            log = self.expected[name].log
            raise LabError(f"{name} in {self.name} has ended; the end of {log}:\n{log.read_text()[-2000:]}")

    # -- looking inside

    def pids(self) -> list[int]:
        """Return the node's processes, including the first one, by their ids on the machine."""
        if not self.up or not self.table:
            return []
        return [pid for pid in claims.pids() if namespace_of(pid) == self.table]

    def started(self) -> list[int]:
        """Return what the node's programs have started, without the programs themselves and the first process."""
        if not self.up:
            return []
        kept = {0, 1, *self.running().values()}
        return [pid for pid in self.pids() if pid_inside(pid) not in kept]

    def exec(
        self, *argv: str, timeout: float = BOUND_S, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside, to its end."""
        return subprocess.run(
            [*self.enter(cwd), *argv],
            timeout=timeout,
            env={**os.environ, **self.env, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )

    def enter(self, cwd: Path | None = None) -> list[str]:
        """Return the words to put before a command line so that it runs inside the node."""
        if not self.up:
            raise LabError(f"{self.name} has no power")
        spaces = ["--mount", "--uts", "--pid", *(["--net"] * self.net)]
        return ["nsenter", f"--target={self.pid}", *spaces, f"--wdns={cwd or Path.cwd()}", "--"]

    # -- talking with the first process

    def _ask(self, **request: object) -> dict[str, int]:
        self._say(json.dumps(request))
        running: dict[str, int] = self._answer()
        return running

    def _say(self, line: str) -> None:
        if self.outer is None or self.outer.stdin is None:
            raise LabError(f"{self.name} has no power")
        self.outer.stdin.write(line + "\n")
        self.outer.stdin.flush()

    def _answer(self) -> Any:
        if self.outer is None or self.outer.stdout is None:
            raise LabError(f"{self.name} has no power")
        if not select.select([self.outer.stdout], [], [], BOUND_S)[0]:
            raise LabError(f"{self.name}: its first process does not answer")
        line = self.outer.stdout.readline()
        if not line:
            raise LabError(f"{self.name}: its first process has ended")
        return json.loads(line)


class Node(Namespace):
    """A machine of the lab, on the lab's bridge."""

    def __init__(
        self,
        index: int,
        claim: Claim,
        etc: Path,
        programs: Sequence[Program] = (),
        env: Mapping[str, str] | None = None,
        *,
        name: str = "",
        mounts: Sequence[Sequence[str]] = (),
    ):
        super().__init__(name or f"node{index}", etc, claim, net=True, env=env, mounts=mounts)
        self.address = claim.address(10 + index)
        self.card = claim.card(index)
        self.cable = claim.cable(index)
        self.programs = {program.name: program for program in programs}

    def power_on(self) -> None:
        """Start the node with all of its programs, as after a boot."""
        power_on([self])

    def power_off(self) -> None:
        """Pull the power cord: everything in it is dead at once, and not one last packet goes out."""
        if self.up:
            ip([f"link set {self.cable} down"])
            self.kill()
            unplug(self.cable)

    def plug(self) -> list[str]:
        """The `ip` commands that lay a cable from the bridge to this node."""
        return [
            f"link add {self.cable} type veth peer name eth0 address {self.card} netns {self.pid}",
            f"link set {self.cable} master {self.claim.bridge} up",
        ]

    def boot(self) -> None:
        self.finish(["link set lo up", f"address add {self.address}/24 dev eth0", "link set eth0 up"])
        for program in self.programs.values():
            self.start(program)

    def cut(self, how: Cut = Cut.LINK, peers: Sequence["Node"] = ()) -> None:
        """Cut it off, from these nodes alone where some are named (a link has no such choice)."""
        self.mend()
        if how is Cut.LINK:
            ip([f"link set {self.cable} down"])
            return
        others = f"{{ {', '.join(peer.address for peer in peers)} }}"
        chains = []
        for hook, action in RULES[how].items():
            card, side = ("iifname", "saddr") if hook == "input" else ("oifname", "daddr")
            whom = f"ip {side} {others}" if peers else ""
            chains.append(f"chain {hook} {{ type filter hook {hook} priority 0; {card} eth0 {whom} {action}\n}}")
        joined = "\n".join(chains)
        self._nft(f"table inet cut {{\n{joined}\n}}")

    def slow_down(self, peer: "Node", *, mbytes_per_s: int) -> None:
        """Limit the rate of packets to that node, beyond which they are lost; `mend` undoes it."""
        rule = f"ip daddr {peer.address} limit rate over {mbytes_per_s} mbytes/second burst 256 kbytes drop"
        self._nft(f"table inet slow {{\nchain output {{ type filter hook output priority 0;\n{rule}\n}}\n}}")

    def mend(self) -> None:
        """Undo every cut, and every slow way."""
        if self.up:
            ip([f"link set {self.cable} up"])
            self._nft("table inet cut; delete table inet cut; table inet slow; delete table inet slow")

    def revive(self) -> None:
        """Power, cable and programs, whatever was done to them."""
        if not self.up:
            self.power_on()
            return
        self.mend()
        for name in self.programs.keys() - self.running().keys():
            self.start(self.programs[name])

    def listens(self, port: int) -> bool:
        rows = [line.split() for line in claims.read(self.pid, "net/tcp").decode().splitlines()[1:]]
        return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)

    def _nft(self, rules: str) -> None:
        done = self.exec("nft", rules)
        if done.returncode:
            raise LabError(f"nft '{rules}': {done.stderr.strip()}")


def power_on(nodes: Sequence[Node]) -> None:
    """Start several nodes side by side."""
    for node in nodes:
        unplug(node.cable)  # a dead node's cable may not have gone yet
        node.begin()
    ip([command for node in nodes for command in node.plug()])
    for node in nodes:
        node.boot()


def lay_bridge(claim: Claim) -> None:
    ip(
        [
            # An address of its own: else it is the lowest of its cables', and another whenever a node comes or goes.
            f"link add {claim.bridge} address {claim.card(255)} type bridge",
            f"address add {claim.address(1)}/24 dev {claim.bridge}",
            f"link set {claim.bridge} up",
        ]
    )


def unplug(cable: str) -> None:
    """The kernel takes a dead node's cable away in its own time: it may have gone already."""
    subprocess.run(["ip", "link", "delete", cable], capture_output=True, check=False)


def ip(commands: Sequence[str]) -> None:
    done = subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"ip: {done.stderr.strip()}, of:\n" + "\n".join(commands))


def write_hosts(path: Path, addresses: Mapping[str, str]) -> None:
    """The hosts file that every node of a lab sees as its own."""
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
    path.write_text("\n".join(lines) + "\n")


def namespace_of(pid: int) -> str:
    """Names the process table that a process is in; empty where it has gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def pid_inside(pid: int) -> int:
    """The pid that a process has in its own process table; 0 where it has gone."""
    for line in claims.read(pid, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return 0


def command_of(pid: int) -> str:
    return claims.read(pid, "comm").decode(errors="replace").strip()


def until(what: str, condition: Callable[[], T], timeout_s: float = BOUND_S) -> T:
    """Wait until the condition returns something true, and return it; fail after a limit."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not within {timeout_s} s")
        time.sleep(0.02)
    return answer
