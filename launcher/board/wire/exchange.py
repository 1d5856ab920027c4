"""A request as the board's routes see it, what they answer, and what answers."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without its body: its path, and the last value of each name in its query, as who asks meant them.

    Names of headers are in small letters; of several with one name the first counts.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BoardReply:
    """Pieces are sent as they come, for as long as somebody is there; an empty one has it looked whether there is."""

    body: bytes | Generator[bytes]
    status: int = 200
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class Answering(Protocol):
    """Of a board: who gets what. Each connection asks it in a thread of its own."""

    @property
    def always(self) -> tuple[tuple[str, str], ...]:
        """Headers of every reply."""

    def refusal(self, asked: Asked) -> BoardReply | None:
        """What is said instead of an answer, before the body is read; None: the way is free."""

    def answer(self, asked: Asked, body: bytes) -> BoardReply: ...

    def dismiss(self) -> None:
        """End the replies that would go on."""


def in_words(text: str, status: int) -> BoardReply:
    return BoardReply(f"launch board: {text}\n".encode(), status, TEXT)
