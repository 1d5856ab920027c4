"""The earlier name of launcher.places, under which jobs queued by an older version start their programs."""

from launcher import places

__path__ = places.__path__
