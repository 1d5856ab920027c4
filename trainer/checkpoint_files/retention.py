"""Which checkpoints may go. Pure."""

from collections.abc import Collection


def expired(steps: Collection[int], good: Collection[int], keep: int) -> list[int]:
    """All that are older than the `keep` newest good ones; nothing while there are fewer good ones than that.

    Good is what was verified when it was loaded, or hashed as it was written: one that nobody has looked at since an
    earlier start does not count, and goes when enough good ones are newer than it.
    """
    if keep < 1:
        raise ValueError(f"expected to keep at least 1 checkpoint, got {keep}")
    newest = sorted(set(good) & set(steps))[-keep:]
    if len(newest) < keep:
        return []
    return sorted(step for step in steps if step < newest[0])
