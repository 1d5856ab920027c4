"""`launch doctor gridengine`: query the site, and with `--try` have a job examine its hosts."""

import re
from collections.abc import Iterator, Mapping

from launcher.health.findings import Finding, ok, warning
from launcher.places.batch.answers import read_settings
from launcher.places.batch.doctor import BatchDoctor, named
from launcher.places.batch.trial.checks import QueueNames
from launcher.places.gridengine.gridengine import CALLED, GridEngineSystem, ask

WORDS = QueueNames(
    queue=GridEngineSystem,
    server="qmaster",
    silent_hint="load the site's module, or set SGE_ROOT",
    submit="qsub",
    shows_ended="qacct -j",
    shows_nodes="qhost -q",
    others="`pe`, `queue` and `project` among the defaults of the clusters file",
    starter="qrsh",
    starts="execution daemon",
    complaint=re.compile(r"^[0-9]+: error: (.+)$", re.MULTILINE),
)


class GridEngineDoctor(BatchDoctor):
    """The checks of a Grid Engine site; a trial uses the chosen parallel environment, or else the first that is usable.

    `words` are the names of Grid Engine's programs, `starting` is the command that starts a program on a host of the
    job.
    """

    words, starting = WORDS, "qrsh -inherit"

    def site(self) -> str:
        """Return the name of the qmaster's host, as `qconf -sss` shows it."""
        return ask(["qconf", "-sss"]).out.strip()

    def findings(self) -> Iterator[Finding]:
        """Query the site with qconf, and yield findings about its parallel environments and about settings of the
        qmaster and the scheduler: whether jobs can be requeued, and whether they show why they wait.
        """
        yield from pe_findings(self._environments())
        yield from settings_findings(_shown("-sconf"), _shown("-ssconf"))

    def most_nodes(self, chosen: Mapping[str, str]) -> int | None:
        """Return 1 node if the parallel environment `chosen["pe"]`, or without that key every one of the site, is
        unusable for a trial, else None for no limit.
        """
        return None if self._usable(chosen) else 1

    def submits(self, chosen: Mapping[str, str], nodes: int, limit_minutes: int) -> list[str]:
        """Return the qsub command that reads the script of a trial of `nodes` nodes and `limit_minutes` from stdin,
        with the options `chosen`.
        """
        argv = ["qsub", "-terse", "-S", "/bin/sh", "-N", "launch-doctor", "-o", "/dev/null", "-j", "y", "-r", "y"]
        argv += ["-v", "PATH", "-l", f"h_rt={60 * limit_minutes}"]
        for name, slots in list(self._usable(chosen).items())[:1]:
            argv += ["-pe", name, str(nodes * slots)]
        return argv + named(chosen, queue="-q", project="-P")

    def _environments(self) -> dict[str, dict[str, str]]:
        """Return the settings (value by name) of each parallel environment by its name."""
        return {name: _shown("-sp", name) for name in ask(["qconf", "-spl"]).out.split()}

    def _usable(self, chosen: Mapping[str, str]) -> dict[str, int]:
        """Return {name: slots per host} of the parallel environment `chosen["pe"]` if it is usable, or of all usable
        ones if that key is missing.

        One is usable if it gives a job a fixed number of slots per host and lets it start programs there.
        """
        known = self._environments()
        return usable({chosen["pe"]: known.get(chosen["pe"], {})} if "pe" in chosen else known)


check_up = GridEngineDoctor().check_up


def usable(environments: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Return {name: slots per host} of the parallel environments that give a job a fixed number of slots per host
    (`allocation_rule`) and let it start programs there (`control_slaves`). `environments` has the settings of each by
    its name, as `qconf -sp` shows them.
    """
    able = {name: one for name, one in environments.items() if one.get("control_slaves") == "TRUE"}
    rules = {name: one.get("allocation_rule", "") for name, one in able.items()}
    return {name: int(rule) for name, rule in rules.items() if rule.isdigit()}


def pe_findings(environments: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Yield one finding: the parallel environments that runs on several nodes can use or, if there is none, why not.

    `environments` has each environment's settings by its name, as `qconf -sp` shows them. Runs can use an environment
    if it gives each host a fixed number of slots (`allocation_rule`) and lets qrsh start programs there
    (`control_slaves`).
    """
    fixed = [name for name, one in environments.items() if one.get("allocation_rule", "").isdigit()]
    hint = "ask for one with allocation_rule 1 and control_slaves TRUE; runs on one node need none"
    if found := usable(environments):
        yield ok("pe", f"for several nodes: {', '.join(found)}")
    elif fixed:
        yield warning("pe", f"{', '.join(fixed)}: control_slaves is FALSE, so qrsh starts nothing there", hint)
    else:
        yield warning("pe", "none gives each host a fixed number of slots", hint)


def settings_findings(settings: Mapping[str, str], scheduler: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a warning for each setting that is bad for runs: one of the qmaster (in `settings`) by which jobs, or those
    of a lost host, cannot be requeued, or one of the scheduler (in `scheduler`) by which nobody sees why jobs wait.
    """
    if settings.get("reschedule_unknown", "00:00:00") in ("00:00:00", "0:0:0"):
        text = "jobs of a lost first host are not put back (reschedule_unknown 0)"
        yield warning("lost hosts", text, "`launch cancel`, then `launch resume`, continues the run")
    if "FORBID_RESCHEDULE" in settings.get("qmaster_params", ""):
        yield warning("requeue", "jobs may not put themselves back (FORBID_RESCHEDULE)", "give runs enough time")
    if scheduler.get("schedd_job_info", "true") != "true":
        yield warning(
            "reasons", f"{CALLED} does not report why jobs wait (schedd_job_info)", "`qalter -w p JOB` shows it"
        )


def _shown(*option: str) -> dict[str, str]:
    """Return the settings by name that `qconf` prints when called with `option`; raise Unreachable if it fails."""
    return read_settings(ask(["qconf", *option]).out)
