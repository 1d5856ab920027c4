"""`launch doctor gridengine`: asks what the site is like, and says what of it is in the way of runs."""

from collections.abc import Callable, Iterator, Mapping

from launcher.clusters.gridengine.queries import CALLED, ask, hosts_of, read_settings
from launcher.doctor.findings import Finding, ok, problem, warning
from launcher.doctor.wish import DoctorWish
from launcher.errors import Unreachable


def check_up(wish: DoctorWish, _tell: Callable[[str], None]) -> Iterator[Finding]:
    """Everything about the site, as it is found."""
    wish.refuse_all_but()
    try:
        qmaster = ask(["qconf", "-sss"]).out.strip()
        settings, scheduler = _shown("-sconf"), _shown("-ssconf")
        environments = {name: _shown("-sp", name) for name in ask(["qconf", "-spl"]).out.split()}
        hosts = hosts_of(wish.chosen.get("queue"), wish.chosen.get("gpu_resource", "gpu"))
    except Unreachable as error:
        yield problem("qmaster", str(error.lines[0]), "load the site's module, or set SGE_ROOT", unreachable=True)
        return
    yield ok("qmaster", f"{qmaster} answers")
    if hosts:
        rows = [("host", "cores", "free"), *((one.name, str(one.cpus), _free(one.free)) for one in hosts)]
        yield ok("hosts", f"{len(hosts)} answer", rows)
    else:
        yield problem("hosts", "none answers", "`qhost -q` shows what there is")
    yield from pe_findings(environments)
    yield from settings_findings(settings, scheduler)


def pe_findings(environments: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Which parallel environments give a job so many hosts for sure, and let it start programs on them."""
    fixed = {name: one for name, one in environments.items() if one.get("allocation_rule", "").isdigit()}
    usable = [name for name, one in fixed.items() if one.get("control_slaves") == "TRUE"]
    hint = "ask for one with allocation_rule 1 and control_slaves TRUE; runs on one node need none"
    if usable:
        yield ok("pe", f"for several nodes: {', '.join(usable)}")
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


def _shown(*option: str) -> dict[str, str]:
    return read_settings(ask(["qconf", *option]).out)


def _free(free: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {count:g}" for name, count in free.items()) or "-"
