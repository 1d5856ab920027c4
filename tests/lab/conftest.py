"""The lab for its own tests."""

from tests.lab.fixtures import (
    accounted_lab,
    grid_engine_lab,
    hosts,
    lab,
    lab_possible,
    shared_accounted_lab,
    shared_grid_engine_lab,
    shared_hosts,
    shared_lab,
)

__all__ = [
    "accounted_lab",
    "grid_engine_lab",
    "hosts",
    "lab",
    "lab_possible",
    "shared_accounted_lab",
    "shared_grid_engine_lab",
    "shared_hosts",
    "shared_lab",
]
