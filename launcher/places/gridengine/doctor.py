"""`launch doctor gridengine`: asks what the site is like, and with `--try` has a job look at its hosts."""

import re
from collections.abc import Callable, Generator, Iterator, Mapping

from launcher.health.findings import Finding, ok, problem, warning
from launcher.health.wish import DoctorWish
from launcher.places.batch.answers import read_settings
from launcher.places.batch.trial.carry_out import looked_over, minutes
from launcher.places.batch.trial.checks import QueueWords
from launcher.places.batch.trial.trial_jobs import TrialJobs
from launcher.places.gridengine.gridengine import CALLED, GridEngineSystem, ask, hosts_of

WORDS = QueueWords(
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
# By its stdin: what qrsh is told as words a shell on the other side takes apart.
_ON_EACH = """\
number=0
for host in $([ -r "$PE_HOSTFILE" ] && cut -d " " -f 1 "$PE_HOSTFILE" || uname -n); do
  [ $number = 0 ] && start= || start="qrsh -inherit $host"
  {{ printf "NODE=%s; %s" "$host" {program} | $start /bin/sh -s 2>&1 | sed "s/^/$number: /"; }} &
  number=$((number + 1))
done
wait"""


def check_up(wish: DoctorWish, tell: Callable[[str], None]) -> Iterator[Finding]:
    """Everything about the site, as it is found. `tell`: what goes on meanwhile."""
    wish.refuse_all_but("try", "nodes", "within")
    return looked_over(_site(wish), WORDS, wish, tell)


def _site(wish: DoctorWish) -> Generator[Finding, None, TrialJobs | None]:
    yield ok("qmaster", f"{ask(['qconf', '-sss']).out.strip()} answers")
    environments = {name: _shown("-sp", name) for name in ask(["qconf", "-spl"]).out.split()}
    hosts = hosts_of(wish.chosen.get("queue"), wish.chosen.get("gpu_resource", "gpu"))
    if hosts:
        rows = [("host", "cores", "free"), *((one.name, str(one.cpus), _free(one.free)) for one in hosts)]
        yield ok("hosts", f"{len(hosts)} answer", rows)
    else:
        yield problem("hosts", "none answers", "`qhost -q` shows what there is")
    yield from pe_findings(environments)
    yield from settings_findings(_shown("-sconf"), _shown("-ssconf"))
    return trial_of(wish, environments, len(hosts)) if hosts else None


def usable(environments: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """The parallel environments for jobs on several hosts, and how many slots they give on each."""
    able = {name: one for name, one in environments.items() if one.get("control_slaves") == "TRUE"}
    rules = {name: one.get("allocation_rule", "") for name, one in able.items()}
    return {name: int(rule) for name, rule in rules.items() if rule.isdigit()}


def pe_findings(environments: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Which parallel environments give a job so many hosts for sure, and let it start programs on them."""
    fixed = [name for name, one in environments.items() if one.get("allocation_rule", "").isdigit()]
    hint = "ask for one with allocation_rule 1 and control_slaves TRUE; runs on one node need none"
    if found := usable(environments):
        yield ok("pe", f"for several nodes: {', '.join(found)}")
    elif fixed:
        yield warning("pe", f"{', '.join(fixed)}: control_slaves is FALSE, so qrsh starts nothing there", hint)
    else:
        yield warning("pe", "none gives each host a fixed number of slots", hint)


def settings_findings(settings: Mapping[str, str], scheduler: Mapping[str, str]) -> Iterator[Finding]:
    """What of the site's configuration keeps a run from going on, or from being told of."""
    if settings.get("reschedule_unknown", "00:00:00") in ("00:00:00", "0:0:0"):
        text = "jobs of a lost first host are not put back (reschedule_unknown 0)"
        yield warning("lost hosts", text, "`launch cancel`, then `launch resume`, goes on")
    if "FORBID_RESCHEDULE" in settings.get("qmaster_params", ""):
        yield warning("requeue", "jobs may not put themselves back (FORBID_RESCHEDULE)", "give runs enough time")
    if scheduler.get("schedd_job_info", "true") != "true":
        yield warning("reasons", f"{CALLED} does not say why jobs wait (schedd_job_info)", "`qalter -w p JOB` says it")


def trial_of(wish: DoctorWish, environments: Mapping[str, Mapping[str, str]], hosts: int) -> TrialJobs:
    """A trial in the environment that is chosen, or in the first that is usable; without one, on one host."""
    chosen = wish.chosen
    able = usable({chosen["pe"]: environments.get(chosen["pe"], {})} if "pe" in chosen else environments)
    nodes = min(wish.nodes or 2, hosts) if able else 1
    argv = ["qsub", "-terse", "-S", "/bin/sh", "-N", "launch-doctor", "-o", "/dev/null", "-j", "y", "-r", "y"]
    argv += ["-v", "PATH", "-l", f"h_rt={60 * minutes()}"]
    for name, slots in list(able.items())[:1]:
        argv += ["-pe", name, str(nodes * slots)]
    for option, what in (("-q", "queue"), ("-P", "project")):
        argv += [option, chosen[what]] if what in chosen else []
    return TrialJobs(GridEngineSystem(), WORDS, ask, argv, _ON_EACH, nodes, minutes())


def _shown(*option: str) -> dict[str, str]:
    return read_settings(ask(["qconf", *option]).out)


def _free(free: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in free.items()) or "-"
