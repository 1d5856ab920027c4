"""Keep the old module name under which a running process of an older version continues a deferred start."""

import sys

from launcher.supervisor.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["launcher.submission.deferred_start:DeferredStart", *sys.argv[1:]]))
