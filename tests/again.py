"""Try a test again that failed among five others: `python tests/again.py`, after a run of the tests that failed.

On a small machine that runs five tests at a time now and then one is starved, or what a whole file shares. So failed
tests of at most five files are run again, alone, three times in a row, with the numbers that were drawn. Only where
each passes each time the whole is good, and they are named as FLAKY: such a test is to be mended. What the quality
tests say is never tried again: nothing of it depends on the machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LAST_RUN = Path(__file__).parent.parent / ".pytest_cache" / "v" / "launch" / "last_run"
MOST_FILES, MOST, TIMES = 5, 40, 3
FINAL = "tests/quality/"


def worth_trying(told: dict[str, Any]) -> list[str]:
    """Which tests; none where the failure stands as it is."""
    failed = [str(test) for test in told["failed"]]
    many = len(failed) > MOST or len({test.split("::")[0] for test in failed}) > MOST_FILES
    return [] if many or any(test.startswith(FINAL) for test in failed) else failed


def again(told: dict[str, Any]) -> int:
    """What the whole run is to exit with."""
    failed = worth_trying(told)
    if not failed:
        print("again: what failed stands as it is")
        return 1
    alone = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", *failed]
    for turn in range(1, TIMES + 1):
        print(f"again: {turn} of {TIMES}, alone:", *failed, flush=True)
        if status := subprocess.run(alone, env={**os.environ, "LAUNCH_TEST_SEED": str(told["seed"])}).returncode:
            return status
    for test in failed:
        print(f"FLAKY {test}: failed beside other tests, passed {TIMES} times alone")
    return 0


if __name__ == "__main__":
    sys.exit(again(json.loads(LAST_RUN.read_text())))
