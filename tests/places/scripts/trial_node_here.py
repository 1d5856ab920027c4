"""A node of the queue that is this machine: each has an address of its own on the loopback."""

import sys
from pathlib import Path

from launcher.places.batch.trial.on_node import answer_questions

_kind, folder, limit_s, node = sys.argv[1:]
answer_questions(Path(folder), float(limit_s), node, node.replace("node", "127.0.0.1"))
