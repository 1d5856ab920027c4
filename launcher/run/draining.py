"""Requests to move ranks off nodes of an attempt: written here, read by the attempt's coordinator."""

from collections.abc import Mapping

import msgspec

from launcher.run.durable import readable, write_record
from launcher.run.layout import AttemptDir
from launcher.run.locks import locked
from launcher.run.records import DrainRequest, MoveRequest


def ask_to_drain(attempt: AttemptDir, nodes: Mapping[int, str]) -> None:
    """Record nodes to drain for the rest of the attempt, each with the reason, which is "" if a user asked."""
    with locked(attempt.drain_lock, wait=True, optional=True):
        before = readable(attempt.drain, DrainRequest) or DrainRequest()
        why = {node: words for node, words in nodes.items() if words}
        asked = tuple(sorted({*before.nodes, *nodes}))
        write_record(attempt.drain, msgspec.structs.replace(before, nodes=asked, why=before.why | why))


def ask_to_move(attempt: AttemptDir, request: MoveRequest) -> None:
    """Add a request to move ranks to those recorded earlier."""
    with locked(attempt.drain_lock, wait=True, optional=True):
        before = readable(attempt.drain, DrainRequest) or DrainRequest()
        write_record(attempt.drain, msgspec.structs.replace(before, moves=(*before.moves, request)))
