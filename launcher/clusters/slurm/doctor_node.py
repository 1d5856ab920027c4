"""What `launch doctor slurm --try` runs on each node of its job."""

import os
import sys
from pathlib import Path

from launcher.clusters.slurm.hosts import addresses_of
from launcher.doctor.trial.node import look_around
from launcher.errors import LaunchError


def main() -> None:
    """Leaves with 0 where the node's report is written."""
    me = os.environ["SLURMD_NODENAME"]
    try:
        look_around(Path(sys.argv[1]), me, addresses_of([me])[me])
    except LaunchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
