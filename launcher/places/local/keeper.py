"""An alias of `local_supervisor` for a submitter of an older version that is still running."""

import sys

from launcher.supervisor.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["launcher.places.local.local_supervisor:LocalSupervisor", *sys.argv[1:]]))
