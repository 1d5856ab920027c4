"""`launch doctor POOL --try`: one all-reduce by torch (gloo) over all hosts of a pool, by the ways of training."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from launcher.clusters.ssh.facts import Surveyed
from launcher.doctor.findings import Finding, ok, problem, warning
from launcher.doctor.words import some
from launcher.errors import LaunchError, Unreachable
from launcher.hostlink.connect import Line
from launcher.hostlink.parallel import for_all
from launcher.hostlink.running import Running

_MARK = b"launch-try: "
_BOOT_S, _REDUCE_S, _HANG_UP_S = 120.0, 60.0, 5.0
_MB = 16
# One rank. It ends with its stdin, whatever it waits for; the store and gloo are on its own address alone.
_TEXT = r"""
import datetime, fcntl, ipaddress, json, os, socket, struct, sys, threading, time

def say(**what):
    print("launch-try: " + json.dumps(what), flush=True)

def hear():
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(1)
        line += byte
    return json.loads(line)

def interface_of(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name

asked = hear()
rank, world = asked["rank"], asked["world"]
os.environ["OMP_NUM_THREADS"] = "1"
family, _, _, _, place = socket.getaddrinfo(asked["address"], 0, type=socket.SOCK_STREAM)[0]
if (interface := interface_of(place[0])):
    os.environ["GLOO_SOCKET_IFNAME"] = interface
try:
    import torch
    import torch.distributed as dist
    listener = socket.create_server((place[0], 0), family=family) if rank == 0 else None
    say(port=listener.getsockname()[1] if listener else 0)
    go = hear()
    threading.Thread(target=hear, daemon=True).start()
    limit = datetime.timedelta(seconds=go["limit_s"])
    fd = {"master_listen_fd": listener.detach()} if listener else {}
    store = dist.TCPStore(go["address"], go["port"], world, rank == 0, limit, **fd)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    numbers = torch.full((go["mb"] * 250_000,), rank + 1.0)
    dist.barrier()
    began = time.monotonic()
    dist.all_reduce(numbers)
    took_s = time.monotonic() - began
    right = bool((numbers == world * (world + 1) / 2).all())
    dist.barrier()
    say(took_s=took_s, right=right)
except Exception as error:
    say(error=" ".join(str(error).split())[:200] or type(error).__name__)
    hear()  # who holds the store stays for the others
"""


class _Said(msgspec.Struct, frozen=True):
    port: int = 0
    took_s: float = 0.0
    right: bool = True
    error: str = ""


class _Go(msgspec.Struct, frozen=True):
    address: str
    port: int
    limit_s: float
    mb: int


def all_reduce(hosts: Sequence[Surveyed], lines: Mapping[str, Line]) -> Finding:
    """Over all of these hosts, where all have torch."""
    without = [one.host.name for one in hosts if one.facts.torch is None]
    if without:
        has = "has" if len(without) == 1 else "have"
        hint = "install torch there, or `python:` of the host names an interpreter that has it"
        return warning("all-reduce", f"not tried: {some(without)} {has} no torch", hint)
    running: dict[str, Running] = {}
    try:
        return _tried(hosts, lines, running)
    finally:
        for_all({name: lines[name] for name in running}, lambda name, _: _end(running[name]))


def _tried(hosts: Sequence[Surveyed], lines: Mapping[str, Line], running: dict[str, Running]) -> Finding:
    by_name = {one.host.name: (rank, one) for rank, one in enumerate(hosts)}
    used = {name: lines[name] for name in by_name}

    def boot(name: str, line: Line) -> _Said:
        rank, one = by_name[name]
        running[name] = line.start([one.facts.python, "-P", "-c", _TEXT])
        return _ask(running[name], {"rank": rank, "world": len(hosts), "address": one.address}, _BOOT_S)

    booted = for_all(used, boot)
    if bad := _errors(booted):
        return _failed(bad)
    first = hosts[0]
    port = max(said.port for said in booted.values() if isinstance(said, _Said))
    go = msgspec.to_builtins(_Go(first.address, port, _REDUCE_S / 2, _MB))
    done = for_all(used, lambda name, _: _ask(running[name], go, _REDUCE_S))
    if bad := _errors(done):
        return _failed(bad)
    said = [one for one in done.values() if isinstance(one, _Said)]
    if wrong := [name for name, one in done.items() if isinstance(one, _Said) and not one.right]:
        return _failed(dict.fromkeys(wrong, "the sum is wrong"))
    took_s = max(one.took_s for one in said)
    return ok("all-reduce", f"{_MB} MB over {len(hosts)} hosts by torch (gloo) in {took_s:.3f} s")


def _ask(running: Running, words: Mapping[str, object], limit_s: float) -> _Said:
    running.write(msgspec.json.encode(words) + b"\n", limit_s)
    until = time.monotonic() + limit_s
    while True:
        line = running.readline(max(0.0, until - time.monotonic()))
        if line.startswith(_MARK):
            return msgspec.json.decode(line.removeprefix(_MARK), type=_Said)
        if not line:
            said = running.finish(_HANG_UP_S).err.decode(errors="replace").strip().splitlines()
            raise Unreachable(said[-1][:200] if said else "it ended without a word")


def _errors(results: Mapping[str, _Said | LaunchError]) -> dict[str, str]:
    said = {name: one.lines[0] if isinstance(one, LaunchError) else one.error for name, one in results.items()}
    return {name: text for name, text in said.items() if text}


def _failed(errors: Mapping[str, str]) -> Finding:
    names: dict[str, list[str]] = {}
    for name, error in errors.items():
        names.setdefault(error, []).append(name)
    text = "; ".join(f"{some(who)}: {error}" for error, who in names.items())
    hint = "what `network` says of the ways comes first; GLOO_SOCKET_IFNAME is set to the card of the host's address"
    return problem("all-reduce", text, hint)


def _end(running: Running) -> None:
    """With its stdin it leaves."""
    try:
        running.finish(_HANG_UP_S)
    except Unreachable:
        running.close()
