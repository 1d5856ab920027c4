"""Read runs one by one, so that an error in one does not affect the others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logged_errors(run_id: str) -> Iterator[None]:
    """Log an error of the body, which reads one run, and go on, so that the pages of other runs are not affected."""
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("%s cannot be looked at; the others are", run_id)
