"""Find out what hosts have, by a small program for any Python, before the launcher is installed there."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from launcher.errors import LaunchError, Unreachable
from launcher.places.ssh import probe_there
from launcher.plan.model import Plan
from launcher.plan.on_hosts import most_of_a_host
from launcher.remote.connect import Line
from launcher.remote.rpc.wire import Garbled, decoded
from launcher.spec.model import Ssh, SshHost
from launcher.supervisor.slots.table import CPU, GPU, Occupancy, occupancy

WORKDIR = "~/launch"
_LIMIT_S = 30.0
_LONGEST = 16 << 20
# The first Python that is new enough: the one that is named, else one of the usual names.
_FIND = r"""
case $1 in "~/"*) first=$HOME/${1#"~/"};; *) first=$1;; esac
for python in ${first:+"$first"} ${first:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
  command -v "$python" >/dev/null 2>&1 || continue
  "$python" -I -c "$2" "$3"
  code=$?
  [ $code = 99 ] || exit $code
  old=$python
done
[ -z "$old" ] || { echo "launch-old: $old" ; exit 99; }
exit 98
"""


_TEXT = r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*\Z"
_Word = Annotated[str, msgspec.Meta(max_length=4096, pattern=f"^{_TEXT}")]
_Absolute = Annotated[str, msgspec.Meta(max_length=4096, pattern=f"^/{_TEXT}")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=65_535)]


class Facts(msgspec.Struct, frozen=True):
    """The output of `probe_there`: the facts about one host.

    `tag` names the Python's ABI, the machine type and the C library; `missing` the packages that the launcher needs and
    this Python lacks; `address` is the host's own one that SSH has connected to, or "". `cpus` is the number of usable
    cores, `gpus` are the numbers of the GPUs in /dev/nvidiaN; `clock` is the host's time in seconds since 1970.
    """

    python: _Absolute  # the path of the interpreter that has run the program
    version: tuple[_Number, _Number, _Number]  # of that Python
    tag: Annotated[str, msgspec.Meta(pattern=r"^[\w.-]{1,200}\Z")]
    torch: Annotated[str, msgspec.Meta(pattern=r"^[\w.+!-]{1,100}\Z")] | None  # its version; None: not installed
    missing: Annotated[tuple[Literal["msgspec", "xxhash"], ...], msgspec.Meta(max_length=2)]
    hostname: _Word
    boot_id: _Word
    user: _Word
    address: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.:%_-]{0,255}\Z")]
    workdir: _Absolute  # the folder of the pool's runs and of the installed launchers, which may not exist yet
    libraries: tuple[str, ...]  # digests of the launchers that are installed in `workdir`
    cpus: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    gpus: Annotated[tuple[_Number, ...], msgspec.Meta(max_length=4096)]
    sockets: tuple[str, ...]  # names of sockets that show which runs of any user hold or await slots
    disk_free: _Count  # bytes
    inodes_free: _Count | None  # None: the file system does not count them
    writable: bool  # whether `workdir` can be written or created
    memory: _Count  # bytes
    clock: Annotated[float, msgspec.Meta(ge=0, le=1e11)]
    exposed: _Word = ""  # a folder of the launcher, or one above it, that other users can write to; "" if there is none


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A host with the facts found on it."""

    host: SshHost
    facts: Facts
    clock_off_s: float  # by how much its clock is ahead of this machine's
    took_s: float  # seconds until the answer came

    @property
    def gpus(self) -> tuple[str, ...]:
        """Return the numbers, as text, of the host's GPUs that the pool's options allow."""
        found = tuple(str(number) for number in self.facts.gpus)
        return found if self.host.gpus is None else found[: self.host.gpus]

    @property
    def occupancy(self) -> Occupancy:
        """Return which runs held the host's slots (GPUs or CPU slots) when it answered, and which waited for them; runs
        of all users count.
        """
        return occupancy("\n".join(self.facts.sockets))

    def taken(self, kind: str) -> int:
        """Return how many slots of the host runs hold: usable GPUs, or CPU slots if `kind` is CPU."""
        holders = self.occupancy.taken(kind)
        if kind == CPU:
            return sum(int(holder.number) for holder in holders)
        return len({holder.number for holder in holders if holder.number in self.gpus})

    def has_room(self, plan: Plan) -> bool:
        """Return whether no run waits for slots of this host (its GPUs, or cores for a run without GPUs), and as many
        are free as the plan needs on one host.

        A plan that needs more slots than the host has is satisfied with all of them.
        """
        share = most_of_a_host(plan)
        kind, there = (GPU, len(self.gpus)) if share.gpus else (CPU, self.facts.cpus)
        wanted = min(there, share.gpus or share.cpus)
        return not self.occupancy.waiting and there - self.taken(kind) >= wanted

    @property
    def address(self) -> str:
        """Return the address by which other hosts reach this host."""
        return self.host.address or self.facts.address


def completed(host: SshHost, pool: Ssh) -> SshHost:
    """Return the host with the pool's value for each option that the host does not set itself."""
    return SshHost(
        host.name,
        host.address,
        host.user or pool.user,
        host.port or pool.port,
        host.key or pool.key,
        pool.gpus if host.gpus is None else host.gpus,
        host.python or pool.python,
        host.workdir or pool.workdir or WORKDIR,
        host.transport or pool.transport,
    )


def survey(line: Line, host: SshHost) -> Surveyed:
    """Return the facts about one host, found by a program that is run there; raise LaunchError if no Python on the host
    can run it.
    """
    text = Path(probe_there.__file__).read_text(encoding="utf-8")
    asked = msgspec.json.encode({"workdir": host.workdir or WORKDIR}).decode()
    began, sent_at = time.monotonic(), time.time()
    done = line.run(["/bin/sh", "-c", _FIND, "sh", host.python or "", text, asked], limit_s=_LIMIT_S)
    took_s = time.monotonic() - began
    for row in done.out.decode(errors="replace").splitlines():
        if row.startswith(probe_there.MARK):
            facts = facts_of(row.removeprefix(probe_there.MARK), host.name)
            return Surveyed(host, facts, facts.clock - (sent_at + time.time()) / 2, took_s)
    raise _no_python(host, done.code, (done.err or done.out).decode(errors="replace"))


def facts_of(text: str, who: str) -> Facts:
    """Return the facts in the host's output `text`; raise LaunchError, which names the host as
    `who`, if it has none.
    """
    try:
        return decoded(text[:_LONGEST].encode(), Facts)
    except Garbled as error:
        raise LaunchError(
            f"{who}: its answer about itself is invalid: {error}", "hint: look at its `python:`"
        ) from error


def _no_python(host: SshHost, code: int | None, said: str) -> LaunchError:
    """Return the error that the host has no suitable Python, or cannot be examined, from the probe's exit code and
    output.

    `code` is None if the connection failed.
    """
    hint = f"hint: install Python 3.11 or newer there, or have `python:` of {host.name} name one"
    named = host.python or "python3"
    if code == 99:
        return LaunchError(f"{host.name}: its {named} is older than Python 3.11", hint)
    if code == 98:
        return LaunchError(f"{host.name}: there is no {named}", hint)
    last = (said.strip().splitlines() or [f"it left with exit code {code}"])[-1]
    return (
        Unreachable(f"{host.name}: could not be looked at: {last}")
        if code is None
        else LaunchError(f"{host.name}: could not be looked at: {last}")
    )
