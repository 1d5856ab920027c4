"""`launch doctor lsf`: query the site with LSF's programs, and with `--try` have a job examine its hosts."""

import re
from collections.abc import Iterator, Mapping

from launcher.errors import Unreachable
from launcher.health.findings import Finding, ok, warning
from launcher.places.batch.doctor import BatchDoctor, named
from launcher.places.batch.trial.checks import QueueNames
from launcher.places.lsf.lsf import CALLED, LsfSystem, ask

WORDS = QueueNames(
    queue=LsfSystem,
    server="master",
    silent_hint="load the site's profile.lsf; `lsid` shows when it is back",
    submit="bsub",
    shows_ended="bhist -l",
    shows_nodes="bhosts",
    others="`queue`, `project` and `user_group` among the defaults of the clusters file",
    starter="blaunch",
    starts="res and sbatchd",
    complaint=re.compile(r"^[0-9]+: (?:blaunch: |lsb_launch\(\): )(.+)$", re.MULTILINE),
)
_SOON_S = 30  # between the first signal of an end and the last one, a run has to save


class LsfDoctor(BatchDoctor):
    """The checks of an LSF cluster, which query the daemons of its master host. `words` are the names of LSF's
    programs.
    """

    words = WORDS

    def site(self) -> str:
        """Return the name of the LSF cluster, by lsid; raise Unreachable if lsid does not show it."""
        if not (name := LsfSystem().site()):
            raise Unreachable("lsid does not say which cluster this is")
        return name

    def findings(self) -> Iterator[Finding]:
        """Yield a finding on how soon LSF kills a job after its warning (JOB_TERMINATE_INTERVAL)."""
        found = re.search(r"JOB_TERMINATE_INTERVAL\s*=\s*([0-9]{1,6})", ask(["bparams", "-a"]).out)
        interval_s = int(found[1]) if found else 10
        if interval_s < _SOON_S:
            text = f"{CALLED} kills a job {interval_s} s after its warning (JOB_TERMINATE_INTERVAL)"
            yield warning("ends", text, "`launch cancel` lets runs save first; bkill may not")
        else:
            yield ok("ends", f"{CALLED} kills a job {interval_s} s after its warning")

    def submits(self, chosen: Mapping[str, str], nodes: int, limit_minutes: int) -> list[str]:
        """Return the bsub command that reads the script of a trial of `nodes` nodes and `limit_minutes` from stdin.

        `chosen` has the values of the user's options by name: `queue`, `project`, `user_group` and `app`.
        """
        argv = ["bsub", "-J", "launch-doctor", "-o", "/dev/null", "-r", "-env", "PATH", "-W", str(limit_minutes)]
        argv += ["-n", str(nodes), "-R", "span[ptile=1]"]
        return argv + named(chosen, queue="-q", project="-P", user_group="-G", app="-app")


check_up = LsfDoctor().check_up
