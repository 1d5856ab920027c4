"""Read runs one by one, so that an error in one does not affect the others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logged_errors(run_id: str) -> Iterator[None]:
    """Log and suppress any Exception that is raised in the body, which reads the run `run_id`."""
    try:
        yield
    except Exception:
        logging.getLogger(__name__).exception("%s cannot be looked at; the others are", run_id)
