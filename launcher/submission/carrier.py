"""The name by which a process of an older version, which still runs, has a deferred start carried on."""

import sys

from launcher.supervisor.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["launcher.submission.deferred_start:DeferredStart", *sys.argv[1:]]))
