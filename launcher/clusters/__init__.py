"""The earlier name of launcher.places, by which jobs that are queued of an older version start our programs."""

from launcher import places

__path__ = places.__path__
