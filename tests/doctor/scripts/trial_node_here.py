"""A node of the queue that is this machine: each has an address of its own on the loopback."""

import os
import sys
from pathlib import Path

from launcher.doctor.trial.node import look_around

look_around(Path(sys.argv[1]), os.environ["NODE"], os.environ["NODE"].replace("node", "127.0.0.1"))
