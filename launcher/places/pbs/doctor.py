"""`launch doctor pbs`: query the server, and with `--try` have a job examine its hosts."""

import re
from collections.abc import Iterator, Mapping

from launcher.health.findings import Finding, ok, warning
from launcher.places.batch.answers import read_json
from launcher.places.batch.doctor import BatchDoctor, named
from launcher.places.batch.trial.checks import QueueNames
from launcher.places.pbs.pbs import CALLED, PbsSystem, ask

WORDS = QueueNames(
    queue=PbsSystem,
    server="server",
    silent_hint="load the site's module; `qstat -B` shows when it is back",
    submit="qsub",
    shows_ended="qstat -x -f",
    shows_nodes="pbsnodes -a",
    others="`queue`, `project` and `account` among the defaults of the clusters file",
    starter="pbs_tmrsh",
    starts="pbs_mom",
    complaint=re.compile(r"^[0-9]+: pbs_tmrsh: (.+)$", re.MULTILINE),
)


class PbsDoctor(BatchDoctor):
    """The checks of a PBS site, which query its server. `words` are the names of PBS's programs.

    pbs_tmrsh, which starts the check on each host, writes the check's output to PBS's own files, so that only its exit
    code is seen, and does not pass its stdin on (`by_stdin`).
    """

    words, by_stdin = WORDS, False

    def site(self) -> str:
        """Return the server's name, as the server itself gives it, and its version, with a space between."""
        told = self._server()
        return " ".join(map(str, (*told.get("Server", {"the server": {}}), told.get("pbs_version", "")))).strip()

    def findings(self) -> Iterator[Finding]:
        """Yield findings about the server's settings: whether it shows ended jobs, and requeues jobs that lose their
        first host.
        """
        servers = self._server().get("Server", {}).values()
        settings: Mapping[str, object] = next(iter(servers), {})
        if str(settings.get("job_history_enable", "False")) != "True":
            text = "the server forgets a job when it ends (job_history_enable is not set)"
            yield warning("history", text, "a job that was killed before its first word is told of as gone")
        if str(settings.get("node_fail_requeue", "310")) == "0":
            text = "jobs of a lost first host are not put back (node_fail_requeue 0)"
            yield warning("lost hosts", text, "`launch cancel`, then `launch resume`, continues the run")
        else:
            yield ok("lost hosts", "jobs of a lost first host are put back by the server")

    def submits(self, chosen: Mapping[str, str], nodes: int, limit_minutes: int) -> list[str]:
        """Return the qsub command that reads the script of a trial from stdin. The trial gets `nodes` nodes for at most
        `limit_minutes`, and the `queue`, `project` and `account` that `chosen` has.
        """
        argv = ["qsub", "-N", "launch-doctor", "-S", "/bin/sh", "-j", "oe", "-o", "/dev/null", "-r", "y"]
        argv += ["-l", f"select={nodes}:ncpus=1", "-l", "place=scatter", "-l", f"walltime={60 * limit_minutes}"]
        return argv + named(chosen, queue="-q", project="-P", account="-A")

    def _server(self) -> dict[str, dict[str, dict[str, object]]]:
        """Return the JSON object that `qstat -B` prints; its key `Server` has the attributes of each server by name."""
        return read_json(CALLED, ask(["qstat", "-B", "-f", "-F", "json"]).out)


check_up = PbsDoctor().check_up
