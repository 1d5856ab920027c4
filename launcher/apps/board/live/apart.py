"""Runs are looked at one by one, and each has its own troubles."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def apart(run_id: str) -> Iterator[None]:
    """What goes wrong with this run is said, and the others go on: a page of one is not to hang on another."""
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("%s cannot be looked at; the others are", run_id)
