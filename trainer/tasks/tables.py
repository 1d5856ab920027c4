"""Write answers into one file, in the format of its name: JSON lines, CSV or Parquet.

The answers are given as lines of JSON, shard by shard, and may be read repeatedly; they are never all in memory.
"""

import csv
import importlib.util
import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from trainer.errors import BadSettings
from trainer.extras import install_hint

Shards = Callable[[], Iterable[bytes]]


def check_table(path: Path) -> None:
    """Raise BadSettings for a file name that ends in .parquet without pyarrow, before anything is computed."""
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise BadSettings(
            f"--predict: {path}: Parquet is written by pyarrow, which is not installed here\n"
            f"{install_hint('parquet')}; or a name that ends in .csv or .jsonl"
        )


def table(path: Path, shards: Shards) -> Iterator[bytes]:
    """Yield the bytes of the file: CSV or Parquet if the name ends in .csv or .parquet, else JSON lines.

    `shards` may be called several times, and yields each shard as bytes: one JSON object a line for each answer.
    """
    kinds: dict[str, Callable[[Shards], Iterator[bytes]]] = {".csv": _csv, ".parquet": _parquet}
    return kinds[path.suffix](shards) if path.suffix in kinds else iter(shards())


def _csv(shards: Shards) -> Iterator[bytes]:
    """Yield the CSV: a header with each name that any line has, then the rows of each shard.

    `shards()` returns an iterator over the shards' lines; it is called twice. A name that a line lacks is an empty
    cell. Values that are neither numbers nor text are written as JSON.
    """
    names: dict[str, None] = {}
    for shard in shards():
        for line in _lines(shard):
            names.update(dict.fromkeys(line))
    yield _rows([names])
    for shard in shards():
        yield _rows([_cell(line.get(name)) for name in names] for line in _lines(shard))


def _rows(rows: Iterable[Iterable[Any]]) -> bytes:
    """Return rows of values as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Return the value for a cell: a number, a text or None as it is, anything else as JSON."""
    plain = value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))
    return value if plain else json.dumps(value)


def _parquet(shards: Shards) -> Iterator[bytes]:
    """Yield the bytes of the Parquet file, with a row group for each shard.

    A column's type suits its values in all shards, such as float64 for 1 and 0.5. `shards()` returns an iterator over
    the shards' lines; it is called twice.
    """
    import pyarrow as pa  # late: an optional package
    import pyarrow.parquet as pq  # late: of that package

    schemas: list[Any] = []
    for shard in shards():
        found = pa.Table.from_pylist(_lines(shard)).schema
        schemas = [pa.unify_schemas([*schemas, found], promote_options="permissive")]
    sink = _Sink()
    with pq.ParquetWriter(pa.PythonFile(sink, mode="w"), *schemas) as writer:
        for shard in shards():
            writer.write_table(pa.Table.from_pylist(_lines(shard), *schemas))
            yield from sink.taken()
    yield from sink.taken()


class _Sink:
    """A file object in memory: `taken` returns and removes the bytes that were written since its last call.

    `tell` returns the number of all bytes that were written, including removed ones.
    """

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def write(self, data: Any) -> int:
        """Collect the bytes and return their number."""
        part = bytes(data)
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def tell(self) -> int:
        """Return how many bytes were written in all."""
        return self._at

    def flush(self) -> None:
        """Do nothing, as nothing is buffered."""

    def close(self) -> None:
        """Mark the file as closed."""
        self.closed = True

    def taken(self) -> list[bytes]:
        """Return the bytes written since the last call."""
        parts, self._parts = self._parts, []
        return parts


def _lines(shard: bytes) -> list[dict[str, Any]]:
    """Return the answers in a shard, one dict for each of its lines of JSON."""
    return [json.loads(line) for line in shard.splitlines()]
