"""Turn what was found on the hosts of a pool into findings. Pure functions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launcher.errors import LaunchError
from launcher.health.checks import CLOCK_S, space_finding
from launcher.health.findings import Finding, Level, ahead, ok, problem, some, warning
from launcher.health.machine_there import MachineFacts, Torch
from launcher.places.ssh.facts import Surveyed
from launcher.remote.shipping import bundle
from launcher.spec.amounts import size

SLOW_LOGIN_S = 5.0
_HEAD = ("HOST", "LOGIN", "KEY", "PYTHON", "TORCH", "LAUNCHER", "GPUS", "CPUS", "DISK FREE", "CLOCK", "TAKEN BY")


@dataclass(frozen=True, slots=True)
class SeenHost:
    """A host that was examined, with the facts found on it."""

    found: Surveyed  # its name, Python, GPUs, disk and clock, which a submit asks for, too
    looked: MachineFacts  # further facts, such as limits of the system, which only `launch doctor` asks for
    login_s: float  # seconds that an SSH login took
    key: str  # the SSH key that the host accepted

    @property
    def name(self) -> str:
        """Return the host's name in the pool."""
        return self.found.host.name


def trouble_finding(name: str, error: LaunchError, *, alone: bool) -> Finding:
    """Return the finding, a problem, about the host `name` that could not be examined because of `error`.

    `alone` says that no host of the pool could be: the doctor then ends with the exit code for unreachable hosts.
    """
    first, *more = error.lines
    hints = [line.removeprefix("hint: ") for line in more if line.startswith("hint: ")]
    notes = [line.strip() for line in more if not line.startswith("hint: ")]
    text = "; ".join([first.removeprefix(f"{name}: "), *notes])
    hint = "; ".join(hints) or "runs start on the others, where `resources.nodes` is a range"
    return problem(name, text, hint, unreachable=alone)


def table_finding(hosts: Sequence[SeenHost], all_of_them: int) -> Finding:
    """Return the finding with a table of the hosts that could be examined; `all_of_them` is the number of hosts in the
    pool.
    """
    text = f"{len(hosts)} of {all_of_them} can be looked at"
    return Finding(Level.OK, "hosts", text, rows=(_HEAD, *map(_row, hosts)))


def reboot_finding(workdirs: Sequence[str]) -> Finding:
    """Return the finding, of level OK, that tells how runs continue on a host after a reboot. Its hint has, for each of
    `workdirs`, the folders in which the pool's hosts keep runs, a crontab line that continues them without a user's
    command.
    """
    text = "a host that was rebooted takes part in its runs again when `launch status` is asked next"
    lines = "; or ".join(map(crontab_line, workdirs))
    hint = f"without anybody, with this line in the crontab of each (crontab -e there): {lines}"
    return Finding(Level.OK, "reboot", text, hint)


def crontab_line(workdir: str) -> str:
    """Return the crontab line that, after a reboot, restarts the supervisors of the runs in `workdir` that the host
    took part in and that have not ended. The newest launcher on the host does it; each supervisor gets the launcher
    version that it had.
    """
    return f"@reboot $(ls -t {workdir}/lib/*/bin/python | head -n 1) -P -m launcher.programs come-back {workdir}"


def _row(host: SeenHost) -> tuple[str, ...]:
    """Return the cells of the host's row in the table of `launch doctor`: from its name to the runs on it."""
    found, facts = host.found, host.found.facts
    return (
        host.name,
        f"{host.login_s:.2f} s",
        host.key,
        ".".join(map(str, facts.version)),
        facts.torch or "-",
        _launcher(found),
        f"{len(found.gpus) - found.taken('gpu')} of {len(found.gpus)}" if found.gpus else "-",
        f"{max(0, facts.cpus - found.taken('cpu'))} of {facts.cpus}",
        size(facts.disk_free),
        f"{found.clock_off_s:+.1f} s",
        some(sorted({f"{holder.run} ({holder.user})" for holder in found.occupancy.held if holder.run})) or "-",
    )


def _launcher(found: Surveyed) -> str:
    """Return the text on the launcher for a host: `there` if this version is installed, `comes with a run` if a run
    will install it, or `lacks ...` if that is impossible for want of compiled packages for this kind of host.
    """
    facts = found.facts
    theirs = facts.tag != bundle.own_tag()
    if bundle.digest(facts.tag) in facts.libraries:
        return "there"
    return f"lacks {some(facts.missing)}" if theirs and facts.missing else "comes with a run"


def host_findings(host: SeenHost) -> Iterable[Finding]:
    """Yield a finding for each problem of the host."""
    name, found, facts = host.name, host.found, host.found.facts
    if host.login_s > SLOW_LOGIN_S:
        hint = "UseDNS and GSSAPI of its sshd, or its network, are the usual reasons; a run waits as long"
        yield warning(name, f"a login takes {host.login_s:.1f} s", hint)
    if _launcher(found).startswith("lacks"):
        hint = f"{facts.python} -m pip install {' '.join(facts.missing)}; or `python:` names one like that here"
        yield problem(name, f"{facts.python} ({facts.tag}) has no {some(facts.missing)}", hint)
    yield from _gpu_findings(host)
    (folder,) = host.looked.folders
    refusals = folder.refusals or ([f"new folders ({folder.error})"] if folder.error else [])
    if refusals or not facts.writable:
        text = f"{facts.workdir}: does not take {some(refusals or ['files'])}"
        yield problem(name, text, "`workdir:` of the host names a folder that does")
    else:
        elsewhere = "`workdir:` of the host names a folder on another file system"
        space = space_finding(name, facts.workdir, facts.disk_free, facts.inodes_free, elsewhere)
        if space.level is not Level.OK:
            yield space
    if abs(found.clock_off_s) - found.took_s / 2 > CLOCK_S:  # it was read at some time during the question
        text = f"its clock is {ahead(found.clock_off_s)} the one here"
        yield warning(name, text, "have a time service keep it: times in logs and `status` are off by so much")
    if host.looked.is_killed:
        text = f"systemd-logind ends what {facts.user} has started when the login ends: runs die with the connection"
        hint = f"KillUserProcesses=no, or KillExcludeUsers={facts.user}, in its logind.conf (lingering does not help)"
        yield warning(name, text, hint)
    if waiting := found.occupancy.waiting:
        runs = some([waiter.run for waiter in waiting])
        yield ok(name, f"{runs} {'waits' if len(waiting) == 1 else 'wait'} for room there")


def together(hosts: Sequence[SeenHost]) -> Iterable[Finding]:
    """Yield the findings about all hosts, one for each problem even if several hosts have it."""
    names: dict[tuple[Level, str, str], list[str]] = {}
    for one in (finding for host in hosts for finding in host_findings(host)):
        names.setdefault((one.level, one.text, one.hint), []).append(one.about)
    for (level, text, hint), who in names.items():
        if len(who) == 1:
            yield Finding(level, who[0], text, hint)
        else:
            whom = "all of them" if len(who) == len(hosts) else ", ".join(who)
            yield Finding(level, "hosts", f"{whom}: {text}", hint)


def _gpu_findings(host: SeenHost) -> Iterable[Finding]:
    """Yield a finding if the host has fewer GPUs than its entry in the clusters file says, and one if its Python has no
    torch, or a torch that cannot be imported or sees fewer GPUs than runs may use there.
    """
    name, found, facts, torch = host.name, host.found, host.found.facts, host.looked.torch or Torch()
    if (found.host.gpus or 0) > len(facts.gpus):
        has = f"there are {len(facts.gpus)}" if facts.gpus else "there is none"
        hint = "correct `gpus:` of the host, or look whether its driver is loaded (/dev/nvidia0 ...)"
        yield problem(name, f"`gpus: {found.host.gpus}`, but {has}", hint)
    if facts.torch is None:
        hint = f"a job that trains needs it: {facts.python} -m pip install torch; or `python:` names another"
        yield warning(name, f"{facts.python} has no torch", hint)
    elif torch.error:
        yield problem(name, f"torch: {torch.error}", f"`{facts.python} -c 'import torch'` shows all of it")
    elif found.gpus and torch.gpus < len(found.gpus):
        text = f"torch {facts.torch} sees {torch.gpus} of {len(facts.gpus)} GPUs"
        yield problem(name, text, "`nvidia-smi` shows whether the driver works; a build for CPUs alone sees none")
