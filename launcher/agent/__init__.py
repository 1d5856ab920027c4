"""The earlier name of launcher.node, by which supervisors and job scripts of an older version start our programs."""

from launcher import node

__path__ = node.__path__
