"""The name by which a submitter of an older version, which still runs, starts the supervisor of a local run."""

import sys

from launcher.supervisor.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["launcher.places.local.local_supervisor:LocalSupervisor", *sys.argv[1:]]))
