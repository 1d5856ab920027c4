"""One all-reduce by torch (gloo) over all hosts of a pool."""

from collections.abc import Mapping, Sequence

import msgspec

from launcher.doctor.findings import Finding, ok, problem
from launcher.doctor.network.helper import Helper, Member
from launcher.doctor.words import some
from launcher.errors import LaunchError
from launcher.hostlink.parallel import for_all

_BOOT_S, _REDUCE_S = 120.0, 60.0
_MB = 16
_HINT = "what `network` says of the ways comes first; GLOO_SOCKET_IFNAME is set to the card of the host's address"


class RankWord(msgspec.Struct, frozen=True):
    """What a rank answers."""

    port: int = 0
    took_s: float = 0.0
    right: bool = True
    error: str = ""


def all_reduce(members: Sequence[Member]) -> Finding:
    ranks: dict[str, Helper] = {}
    numbers = {member.name: rank for rank, member in enumerate(members)}

    def boot(name: str, member: Member) -> RankWord:
        ranks[name] = Helper(member, "reduce", "-P")
        words = {"rank": numbers[name], "world": len(members), "address": member.address}
        return ranks[name].ask(words, RankWord, _BOOT_S)

    try:
        booted = for_all({member.name: member for member in members}, boot)
        if bad := _errors(booted):
            return _failed(bad)
        port = max(one.port for one in booted.values() if isinstance(one, RankWord))
        go = {"address": members[0].address, "port": port, "limit_s": _REDUCE_S / 2, "mb": _MB}
        done = for_all(ranks, lambda _, rank: rank.ask(go, RankWord, _REDUCE_S))
        if bad := _errors(done):
            return _failed(bad)
        took_s = max(one.took_s for one in done.values() if isinstance(one, RankWord))
        return ok("all-reduce", f"{_MB} MB over {len(members)} hosts by torch (gloo) in {took_s:.3f} s")
    finally:
        for_all(ranks, lambda _, rank: rank.leave())


def _errors(results: Mapping[str, RankWord | LaunchError]) -> dict[str, str]:
    said = {name: str(one.lines[0]) if isinstance(one, LaunchError) else one.error for name, one in results.items()}
    wrong = {name: "the sum is wrong" for name, one in results.items() if isinstance(one, RankWord) and not one.right}
    return {name: text for name, text in said.items() if text} or wrong


def _failed(errors: Mapping[str, str]) -> Finding:
    names: dict[str, list[str]] = {}
    for name, error in errors.items():
        names.setdefault(error, []).append(name)
    return problem("all-reduce", "; ".join(f"{some(who)}: {error}" for error, who in names.items()), _HINT)
