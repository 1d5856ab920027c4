"""Write metrics as a CSV table for spreadsheets and data frames, one row per step."""

import csv
import io
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.errors import BadSettings
from trainer.loop.callbacks import Callback, Line, Values
from trainer.loop.metrics import metrics_folder, numbers_of
from trainer.loop.progress import Training

_STEP = "step"
Row = dict[str, Any]


class CsvLogger(Callback):
    """A callback that writes one row per step with all logged, validated and tested values, on rank 0.

    If the training resumes from a checkpoint, rows of later steps are removed, so that each step is there once.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Take the file's path, by default `metrics.csv` beside the other metrics."""
        self._given = path
        self._path: Path | None = None  # None: nothing is written
        self._columns: list[str] = []
        self._rows: dict[int, Row] = {}

    def on_start(self, training: Training) -> None:
        """Open the table and remove rows of steps after the one that the training starts from.

        Raises BadSettings for a file that is no such table.
        """
        self._open(training)
        kept = {step: row for step, row in self._rows.items() if step <= training.step}
        if len(kept) < len(self._rows):
            self._rows = kept
            self._write_or_warn(self._write_all)

    def on_log(self, training: Training, line: Line) -> None:
        """Add the logged values to the row of this step, and write the row to the file; on rank 0 alone."""
        self._add(training.step, line)

    def on_validation(self, training: Training, values: Values) -> None:
        """Add the validated values to the step's row."""
        self._add(training.step, values)

    def on_test(self, training: Training, values: Values) -> None:
        """Open the table and add the tested values to the row of the tested weights' step.

        Raises BadSettings for a file that is no such table.
        """
        self._open(training)
        self._add(training.step, values)

    def _open(self, training: Training) -> None:
        """Open the table on rank 0 and read the rows of earlier starts; do nothing in a dev run (`fast_dev_run`).

        Raises BadSettings for a file that is no such table.
        """
        self._path = None
        if training.world.is_first and training.settings.fast_dev_run is None:
            given = self._given
            self._path = Path(given) if given is not None else metrics_folder(training.settings) / "metrics.csv"
            self._write_or_warn(self._read)

    def _read(self, path: Path) -> None:
        """Read columns and rows of the table, if there is one; a last row that a kill cut short is removed from it.

        Raises BadSettings for a file whose first column is not `step`, or with a row that has no step or has too many
        values.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a kill may have cut the last row short, but never the first
        table = csv.DictReader(io.StringIO(whole or text))
        self._columns = list(table.fieldnames or [_STEP])
        if self._columns[0] != _STEP:
            raise BadSettings(
                f"CsvLogger: {path}: expected a table with `step` as its first column, got {self._columns[0]!r}\n"
                "hint: another path"
            )
        rows = list(table)
        if not all(row[_STEP].isdecimal() and None not in row for row in rows):
            raise BadSettings(f"CsvLogger: {path}: expected rows of its own\nhint: another path, or remove that file")
        self._rows = {int(row[_STEP]): row for row in rows}
        if not text.endswith("\n"):
            self._write_all(path)

    def _add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add the numbers in `values` to the row of a step, and write the row; ranks other than 0 write nothing.

        The row is appended to the file. If the step has a row already, or a column is new, the file is written again.
        """
        row = {_STEP: step, **self._rows.get(step, {}), **dict(numbers_of(values))}
        appends = step not in self._rows and row.keys() <= set(self._columns)
        self._columns += [name for name in row if name not in self._columns]
        self._rows[step] = row
        self._write_or_warn(lambda path: self._append(path, row) if appends else self._write_all(path))

    def _append(self, path: Path, row: Row) -> None:
        """Append one row to the file at `path`."""
        with path.open("a", newline="") as file:
            csv.DictWriter(file, self._columns, restval="").writerow(row)

    def _write_all(self, path: Path) -> None:
        """Write the whole file again, as a column was added or a row changed."""
        draft = path.with_name(path.name + ".draft")
        with draft.open("w", newline="") as file:
            table = csv.DictWriter(file, self._columns, restval="")
            table.writeheader()
            table.writerows(self._rows[step] for step in sorted(self._rows))
        draft.replace(path)

    def _write_or_warn(self, act: Callable[[Path], None]) -> None:
        """Call `act` with the path to write; an OSError is only logged, as a full disk must not end a training.

        After an OSError, further calls do nothing.
        """
        if self._path is None:
            return
        try:
            act(self._path)
        except OSError as error:
            logging.getLogger("trainer").warning("CsvLogger: no further rows are written: %s", error)
            self._path = None
