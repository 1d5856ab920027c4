"""Decide which launch of a run's processes (start) may write checkpoints, by a fencing token in the file FENCE.

Older starts are refused. A start takes a token and then renames all drafts of others away: a commit that is under way
elsewhere was either published before, and counts, or its rename finds nothing. A draft that is made later meets the new
token.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from trainer.checkpoint_files.durable import read_small, sync_folder, write_new
from trainer.checkpoint_files.layout import FENCE, FENCE_DRAFT, FENCE_LOCK, bad_name, new_nonce, trash_name
from trainer.errors import CheckpointDamaged, Fenced, TrainerError

_LOCK = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_LOCK_LIMIT_S = 30.0
_LONGEST_NUMBER = 20  # digits


class FencingToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fencing token of one start; that of a later start is greater in (attempt, generation, count).

    The generation numbers the launches of the ranks in an attempt of the run, `count` the tokens that were ever taken
    in the checkpoint directory, and `nonce` is random.
    """

    attempt: int
    generation: int
    count: int
    nonce: str


_decoder = msgspec.json.Decoder(FencingToken)


def take_token(
    folder: Path, attempt: int | None = None, generation: int = 0, *, lock_limit_s: float = _LOCK_LIMIT_S
) -> FencingToken:
    """Take a new token for this start and return it; older tokens are then refused.

    Raises Fenced if a newer attempt or generation has one, and TrainerError if another process has held the lock for
    `lock_limit_s`, or OSError. Without an attempt number (outside of launch) whichever start comes last is the newest.
    """
    with _locked(folder, lock_limit_s):
        before = _set_aside_if_damaged(folder)
        if before is None:
            token = FencingToken(attempt or 0, generation, 1, new_nonce())
        elif attempt is None:
            token = FencingToken(before.attempt, max(generation, before.generation), before.count + 1, new_nonce())
        elif (before.attempt, before.generation) > (attempt, generation):
            raise Fenced(f"{folder}: attempt {before.attempt}, generation {before.generation} has taken over")
        else:
            token = FencingToken(attempt, generation, before.count + 1, new_nonce())
        draft = folder / FENCE_DRAFT
        with contextlib.suppress(FileNotFoundError):  # left by a killed start
            os.rename(draft, folder / trash_name(draft.name))
        write_new(draft, [msgspec.json.encode(token)])
        os.rename(draft, folder / FENCE)
        sync_folder(folder)
    return token


def check(folder: Path, token: FencingToken, run_dir: Path | None = None) -> None:
    """Raise Fenced if a newer start has taken a token in `folder`.

    Raises Fenced too if launch's file FENCE in `run_dir`, the run's folder, names a newer attempt. Raises
    CheckpointDamaged if one of the two files is damaged.
    """
    newest = read_token(folder)
    if newest != token:
        by = f"attempt {newest.attempt}, generation {newest.generation}" if newest else "another start"
        raise Fenced(f"{folder}: {by} has taken over; this start (attempt {token.attempt}) may not write any more")
    if run_dir is not None and _run_attempt(run_dir) > token.attempt:
        raise Fenced(f"{run_dir}: attempt {_run_attempt(run_dir)} has taken over from attempt {token.attempt}")


def read_token(folder: Path) -> FencingToken | None:
    """Return the newest token, or None if there is none. Raises CheckpointDamaged if the file is damaged."""
    try:
        return _decoder.decode(read_small(folder / FENCE))
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointDamaged(f"{folder / FENCE}: not a fencing token: {error}") from error


def _set_aside_if_damaged(folder: Path) -> FencingToken | None:
    """Rename the file of the newest token if it is damaged, and return None; else return the token.

    Returns None too if there is no token.
    """
    try:
        return read_token(folder)
    except CheckpointDamaged:
        os.rename(folder / FENCE, folder / bad_name(FENCE))
        return None


def _run_attempt(run_dir: Path) -> int:
    """Return the run's newest attempt from launch's file FENCE in the run's folder, or 0 if there is none.

    Raises CheckpointDamaged if the file holds no number.
    """
    try:
        text = read_small(run_dir / FENCE)
    except FileNotFoundError:
        return 0
    if len(text) > _LONGEST_NUMBER or not text.strip().isdigit():
        raise CheckpointDamaged(f"{run_dir / FENCE}: expected the number of an attempt, got {text[:40]!r}")
    return int(text)


@contextlib.contextmanager
def _locked(folder: Path, limit_s: float) -> Iterator[None]:
    """Hold, in this context, the lock under which the token is read and replaced.

    The kernel releases a killed holder's lock. Raises TrainerError if another process holds it for longer than
    `limit_s`.
    """
    fd = os.open(folder / FENCE_LOCK, _LOCK, 0o600)
    try:
        _lock(fd, folder, limit_s)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, folder: Path, limit_s: float) -> None:
    """Wait for the lock and take it; `fd` is the lock's file in `folder`.

    Raises TrainerError if another process holds the lock for longer than `limit_s`.
    """
    end = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise TrainerError(
                    f"{folder / FENCE_LOCK}: held by another process for {limit_s:.0f} s\n"
                    f"hint: `fuser {folder / FENCE_LOCK}` names it; a frozen one has to be ended"
                ) from None
            time.sleep(0.02)  # the holder needs a few milliseconds, and there is nothing to wait for
        except OSError as error:  # a file system without locks: two that race within microseconds may pass
            if error.errno in _NO_LOCKS_HERE:
                return
            raise
        else:
            return
