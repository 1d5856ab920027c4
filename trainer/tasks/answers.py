"""Keep a prediction's answers on disk in shards (files of fixed ranges of samples), and make one file of all shards.

```
OUT.parts/job.json              the settings that decide the answers; a job with others may not continue with these
OUT.parts/00000000-00000064     a shard: the lines of these samples, then a line with count and checksum
OUT, OUT.about.json             at the end: all lines in order, or the table that OUT's name says (tables.py); the job,
                                and the means over all samples
```
"""

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import new_nonce
from trainer.errors import BadSettings
from trainer.tasks.tables import check_table, table

_DRAFT = ".draft-"
_MOST_SHARDS = 1000
Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """The settings that decide every byte of a prediction's answers; the number of ranks is not among them.

    `task` is its name, `data` describes the data set of `samples` samples, `weights` is a digest, and `step` that of
    the checkpoint.
    """

    task: str
    data: str
    samples: int
    batch_size: int
    precision: str
    weights: str  # a digest
    step: int  # of the checkpoint

    @property
    def described(self) -> dict[str, Any]:
        """The job's settings as plain values, for its JSON files."""
        return {name: getattr(self, name) for name in _JOB_WORDS}

    def shards(self) -> list[range]:
        """Return the ranges of samples of all shards, each of whole batches except for the end of the last.

        Shards and batches are the same on any number of ranks, because a sample's answer may differ in its last bit in
        a batch with other samples.
        """
        size = self.batch_size * math.ceil(self.samples / self.batch_size / _MOST_SHARDS)
        return [range(begin, min(begin + size, self.samples)) for begin in range(0, self.samples, size)]


_JOB_WORDS = [field.name for field in dataclasses.fields(Job)]


class Answers:
    """The folder with the shards of one prediction (`job`), and the file `out` that is made of them in the end."""

    def __init__(self, out: Path, job: Job) -> None:
        self._out, self._job = out, job
        self._folder = out.with_name(out.name + ".parts")
        self._about = out.with_name(out.name + ".about.json")

    def begin(self) -> bool:
        """Make the folder or continue in it; return False if the file of all answers already exists.

        Rank 0 calls this for all ranks that share its disk; others call `join`. Raises BadSettings if the folder or the
        file has answers of another job, or the file's name ends in .parquet and pyarrow is not installed.
        """
        check_table(self._out)
        if not self._folder.exists():
            if self._out.exists() or self._about.exists():
                self._compare(self._about)
                return False
            make_folder(self._folder)
        if not self._path("job.json").exists():
            self._write(self._path("job.json"), [_to_json(self._job.described)])
        self._compare(self._path("job.json"))
        for name in os.listdir(self._folder):
            if name.startswith(_DRAFT):
                self._path(name).unlink()  # of a rank that was killed
        return True

    def join(self) -> None:
        """Make the folder and its `job.json` if this rank's disk lacks them.

        It is called on a rank that does not share the disk of the rank that called `begin`. Raises BadSettings if the
        folder is of another job.
        """
        make_folder(self._folder)
        if not self._path("job.json").exists():
            self._write(self._path("job.json"), [_to_json(self._job.described)])
        self._compare(self._path("job.json"))

    @property
    def shards(self) -> list[range]:
        """The shards of the job: all ranges of samples, in order."""
        return self._job.shards()

    def whole(self) -> set[range]:
        """Return the shards that are complete on this disk, after checking the checksum of each file."""
        names = set(
            os.listdir(self._folder)
        )  # not one by one: a file system may remember for a while that one was missing
        return {shard for shard in self._job.shards() if _name(shard) in names and self._read(shard) is not None}

    def read_shard(self, shard: range) -> bytes:
        """Return the bytes of a shard's file; raise OSError if it is missing or cannot be read."""
        return self._path(_name(shard)).read_bytes()

    def keep_shard(self, shard: range, content: bytes) -> None:
        """Write the file of a shard with `content`, its bytes as another rank read them from its own disk.

        A file that the shard has here already is replaced.
        """
        self._write(self._path(_name(shard)), [content])

    def put(self, shard: range, lines: Sequence[Line], values: Sequence[float]) -> None:
        """Write a shard: a line of JSON for each sample, and the sum of `values`.

        A line has the sample's index and the entries of its item in `lines`. `values` has one number for each sample,
        such as its loss; `merge` computes their mean over all shards from the sums.
        """
        body = b"".join(_to_json({"index": index, **line}) for index, line in zip(shard, lines, strict=True))
        proof = {"begin": shard.start, "end": shard.stop, "sum": math.fsum(values), "xxh3": _digest(body)}
        self._write(self._path(_name(shard)), [body, _to_json(proof)])

    def merge(self, mean: str) -> float:
        """Write the file of all answers and its description; return the mean of the samples' values.

        `mean` is the name of that value in the description. Only one rank calls it. Raises BadSettings if a shard is
        not complete.
        """
        sums: dict[range, float] = {}
        self._write(self._out, table(self._out, lambda: self._bodies(sums)))
        value = math.fsum(sums.values()) / self._job.samples
        self._write(self._about, [_to_json({**self._job.described, mean: value})])
        return value

    def clean_up(self) -> None:
        """Remove the shards after `merge`; called on one rank of each disk."""
        shutil.rmtree(self._folder)
        sync_folder(self._folder.parent)

    def _bodies(self, sums: dict[range, float]) -> Iterator[bytes]:
        """Yield the lines of one shard after the other.

        Before a shard's lines are yielded, the sum of its values is put into `sums`, by the shard's range of samples.
        A value, such as the sample's loss, came with each answer (`put`); `merge` computes the mean from the sums.
        Raises BadSettings if a shard is not complete.
        """
        for shard in self._job.shards():
            found = self._read(shard)
            if found is None:
                raise BadSettings(f"{self._path(_name(shard))}: is no longer complete\nhint: start again")
            sums[shard] = found[1]
            yield found[0]

    def _read(self, shard: range) -> tuple[bytes, float] | None:
        """Return a shard's lines and the sum of its samples' values (`put`), or None if the file is not complete."""
        data = self._path(_name(shard)).read_bytes()
        end = data.rfind(b"\n", 0, -1) + 1
        try:
            proof = json.loads(data[end:])
            whole = (proof["begin"], proof["end"], proof["xxh3"]) == (shard.start, shard.stop, _digest(data[:end]))
            return (data[:end], float(proof["sum"])) if whole else None
        except (ValueError, TypeError, KeyError):
            return None

    def _compare(self, path: Path) -> None:
        """Raise BadSettings if the JSON file describes another prediction than `job`, or is missing."""
        try:
            theirs = json.loads(path.read_bytes())
        except (OSError, ValueError):
            theirs = {}
        for name, mine in self._job.described.items():
            if theirs.get(name) != mine:
                got = f": {name} {theirs[name]!r} there, {mine!r} here" if name in theirs else ""
                raise BadSettings(
                    f"--predict: {self._out}: expected nothing, or answers of this job, found others{got}\n"
                    f"hint: give another name, or remove {self._out.name}, {self._about.name} and {self._folder.name}"
                )

    def _path(self, name: str) -> Path:
        """Return the path of the file called `name` in the folder of shards."""
        return self._folder / name

    def _write(self, path: Path, parts: Iterator[bytes] | list[bytes]) -> None:
        """Write the bytes in `parts` as the file `path`, which never exists incomplete."""
        draft = path.with_name(f"{_DRAFT}{new_nonce()}")
        write_new(draft, parts)
        os.rename(draft, path)
        sync_folder(path.parent)


def _name(shard: range) -> str:
    """Return the file name of a shard, such as `00000000-00000064`."""
    return f"{shard.start:08d}-{shard.stop:08d}"


def _digest(body: bytes) -> str:
    """Return the checksum of a shard's lines (XXH3, in hexadecimal), which the last line of its file contains."""
    return xxhash.xxh3_128(body).hexdigest()


def _to_json(value: Line) -> bytes:
    """Return the value as a line of JSON that ends with a newline."""
    return json.dumps(value).encode() + b"\n"
