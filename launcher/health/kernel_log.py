"""Read the kernel's log, once a second while ranks run, for messages that memory or a GPU fails.

The messages are those of Linux's EDAC and memory-failure code, and of NVIDIA's and AMD's drivers. A corrected error
is no reason to leave a node.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_KERNEL_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192  # the longest one
_OF_THE_KERNEL = 8  # a record's first number is below that; others come from programs
# From the beginning, and with more than the fifteen letters that any program can have as its name in a record.
_XID = re.compile(r"NVRM: Xid \(PCI:[0-9a-fA-F:.]+\): (\d+)\b")
_UNCORRECTED = "an uncorrected memory error"
# NVIDIA's numbers of what calls for another GPU, or for this one's reset.
_XIDS = {
    64: "a row of memory that cannot be replaced",
    79: "a GPU that is off the bus",
    **dict.fromkeys((48, 94, 95, 140), _UNCORRECTED),
}
_MEMORY = re.compile(r"EDAC MC\d+: \d+ UE [^][]* on |Memory failure: 0x[0-9a-f]+: ")
_AMD = re.compile(r"amdgpu [0-9a-f:.]+: (?:amdgpu: )?[1-9]\d* uncorrectable hardware errors detected")


def device_error(record: str, *, gpus: bool) -> str:
    """Return which device fails, with the kernel's message, or "" if the record reports no failure.

    `gpus` is True if the run uses GPUs; else their failures are ignored.
    """
    prefix, _, words = record.partition("\n")[0].partition(";")
    priority = prefix.partition(",")[0]
    if not priority.isdecimal() or int(priority) >= _OF_THE_KERNEL:
        return ""
    what = ""
    if _MEMORY.match(words) or (gpus and _AMD.match(words)):
        what = _UNCORRECTED
    elif gpus and (xid := _XID.match(words)):
        what = _XIDS.get(int(xid[1]), "")
    return f"{what}: {words}" if what else ""


class KernelLog:
    """The log of this machine's kernel (/dev/kmsg): the records written after this object was made, as text."""

    def __init__(self, path: Path = _KERNEL_LOG) -> None:
        """Open the log at its end; raise OSError if it cannot be read, for instance because only root may."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            os.close(self._fd)
            raise

    def news(self) -> Iterator[str]:
        """Yield the records that were written since the last call; raise OSError if the log cannot be read."""
        while True:
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # some were overwritten before they were read
                continue
            if not record:
                return
            yield record.decode(errors="replace")

    def close(self) -> None:
        """Close the kernel's log."""
        os.close(self._fd)
