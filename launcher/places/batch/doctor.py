"""The base class of `launch doctor` for batch systems: it checks whether the scheduler answers, lists hosts, and can
run a trial job.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Finding, ok, problem
from launcher.places.batch.batch import ExecHost
from launcher.places.batch.trial.carry_out import all_findings, minutes
from launcher.places.batch.trial.checks import QueueNames
from launcher.places.batch.trial.trial_jobs import TrialJobs

_SHOWN = 16  # hosts, of which a big site has thousands
# A starter whose output goes elsewhere, to the job's own files, still leaves with the exit code of what it started.
_ON_EACH = """\
number=0
for host in $([ -r "$HOSTS" ] && awk '!seen[$1]++ {{ print $1 }}' "$HOSTS" || uname -n); do
  [ $number = 0 ] && start= || start="STARTER $host"
  {{ {{ PROGRAM; }} 2>&1 || echo "stopped $host $?"; }} | sed "s/^/$number: /" &
  number=$((number + 1))
done
wait"""
_BY_STDIN = """printf "NODE=%s; %s" "$host" {program} | $start /bin/sh -s"""  # what a shell there takes apart as words
_BY_WORDS = """$start /bin/sh -c "NODE=$host; "{program}"""


class BatchDoctor(ABC):
    """The checks of one batch system; `words` are the names of its programs in findings. A mapping `chosen` holds the
    options of the checked cluster by their names in the spec, such as `queue`.
    """

    words: QueueNames  # names for findings
    starting = ""  # the command that starts a program on a host of the job; "": words.starter
    by_stdin = True  # that command passes its stdin on

    @abstractmethod
    def site(self) -> str:
        """Return the name and version of the scheduler that answers; raise Unreachable if none does."""

    @abstractmethod
    def submits(self, chosen: Mapping[str, str], nodes: int, limit_minutes: int) -> list[str]:
        """Return the submitting command for a trial of `nodes` nodes and `limit_minutes`, with the options `chosen`; it
        reads the script from its stdin.
        """

    def findings(self) -> Iterable[Finding]:
        """Yield findings about this kind of site in addition to the common ones; by default there are none."""
        return ()

    def most_nodes(self, chosen: Mapping[str, str]) -> int | None:  # noqa: ARG002 - of those that know one
        """Return how many nodes a trial with the options `chosen` may have at most, or None if there is no limit."""
        return None

    def check_up(self, request: DoctorRequest, tell: Callable[[str], None]) -> Iterator[Finding]:
        """Yield all findings; `tell` is called with a line of text before each check that takes long."""
        request.refuse_all_but("try", "nodes", "within")
        return all_findings(self._site(request), self.words, request, tell)

    def _site(self, request: DoctorRequest) -> Generator[Finding, None, TrialJobs | None]:
        """Yield findings about the scheduler and its hosts; return how to submit a trial, or None if no host answers.
        Raise Unreachable if the scheduler does not answer.
        """
        yield ok(self.words.server, f"{self.site()} answers")
        system, chosen = self.words.queue(), request.chosen
        known = system.exec_hosts(chosen.get("queue"), chosen.get("gpu_resource", system.gpu_resource))
        hosts = [host for host in known if host.up]
        if hosts:
            more = [("...", "", "")] if len(hosts) > _SHOWN else []
            rows = [("host", "cores", "GPUs"), *((one.name, str(one.cpus), _gpus(one)) for one in hosts[:_SHOWN])]
            yield ok("hosts", f"{len(hosts)} answer", [*rows, *more])
        else:
            yield problem("hosts", "none answers", f"`{self.words.shows_nodes}` shows what there is")
        yield from self.findings()
        return self.trial(chosen, min(request.nodes or 2, len(hosts))) if hosts else None

    def trial(self, chosen: Mapping[str, str], nodes: int) -> TrialJobs:
        """Return how to submit trial jobs with the options `chosen`, of `nodes` nodes, or of the limit that the method
        `most_nodes` returns if that is less.
        """
        system = self.words.queue()
        nodes = min(nodes, self.most_nodes(chosen) or nodes)
        program = _BY_STDIN if self.by_stdin else _BY_WORDS
        starter = self.starting or self.words.starter
        on_each = _ON_EACH.replace("HOSTS", system.hosts_variable).replace("STARTER", starter)
        argv = self.submits(chosen, nodes, minutes())
        return TrialJobs(system, self.words, system.ask, argv, on_each.replace("PROGRAM", program), nodes, minutes())


def named(chosen: Mapping[str, str], **options: str) -> list[str]:
    """Return words of a submit command, such as ["-q", "gpu"]: for each option that is in `chosen`, its flag and the
    chosen value. `options` gives each option's flag by the option's name, such as queue="-q".
    """
    return [word for what, option in options.items() if what in chosen for word in (option, chosen[what])]


def _gpus(host: ExecHost) -> str:
    """Return the number of GPUs of a host as text, `-` if it is unknown."""
    if host.gpus is not None:
        return str(host.gpus)
    return "-" if host.free_gpus is None else f"{host.free_gpus} free"
