"""Earlier names of programs, by which an older version still starts them: in scripts of jobs that wait in a queue, in
crontabs of hosts, and from its processes that run on after an upgrade.
"""

import os
import sys

_SUPERVISOR, _NODE, _PROGRAM = "launcher.supervisor", "launcher.node", "launcher.programs"
_LOCAL = "launcher.places.local.local_supervisor:LocalSupervisor"
_DEFERRED = "launcher.submission.deferred_start:DeferredStart"
_CONDUCTOR = "launcher.apps.sweeps.conductor:Conductor"
_BATCH = "launcher.places.batch.job.batch_process:BatchSupervisor"
_SWAPPED = "launcher.clusters.batch.job.batch_process"  # takes KIND RUN_DIR, the supervisor RUN_DIR KIND
_TODAY = {  # `launcher.clusters.X` is also the earlier `launcher.places.X`
    "launcher.clusters.batch.job.guard": (_PROGRAM, "guard"),  # scripts of jobs
    "launcher.clusters.batch.job.environment": (_PROGRAM, "environment"),  # scripts of jobs
    "launcher.clusters.batch.environment": (_PROGRAM, "environment"),  # scripts of jobs
    "launcher.clusters.kubernetes.pod": (_PROGRAM, "pod"),  # JobSets
    _SWAPPED: (_SUPERVISOR, _BATCH),  # scripts of jobs; a running guard
    "launcher.clusters.batch.job.on_node": (_PROGRAM, "on-node"),  # a running batch process, for its next attempt
    "launcher.clusters.slurm.nudge": (_PROGRAM, "nudge"),  # a running batch process that requeues its job
    "launcher.clusters.ssh.comeback.there": (_PROGRAM, "come-back"),  # crontabs
    "launcher.clusters.ssh.host.server": (_PROGRAM, "host"),  # a submitter of the older version, on another machine
    "launcher.node.inside.there": (_PROGRAM, "visit"),  # likewise
    "launcher.clusters.local.keeper": (_SUPERVISOR, _LOCAL),  # a running program that submits through the API
    "launcher.submission.carrier": (_SUPERVISOR, _DEFERRED),  # likewise, and a running deferred start
    "launcher.apps.sweeps.conductor": (_SUPERVISOR, _CONDUCTOR),  # likewise
    "launcher.agent": (_NODE,),  # a running supervisor, for its next attempt
    "launcher.notify": (_PROGRAM, "notify"),  # likewise
    "launcher.supervisor.notify": (_PROGRAM, "notify"),  # likewise
}


def start_by_newer_name() -> None:
    """If this process was started as `python -m NAME` with an earlier name of a program, replace it by that program
    under its present name; else return.
    """
    if "-m" not in sys.orig_argv:
        return  # Python allows `-Pm NAME` too, which no version of ours has used
    at = sys.orig_argv.index("-m")
    name, words = sys.orig_argv[at + 1].replace("launcher.places.", "launcher.clusters."), sys.orig_argv[at + 2 :]
    if name not in _TODAY:
        return
    if name == _SWAPPED:
        words[:2] = reversed(words[:2])
    argv = [*sys.orig_argv[: at + 1], *_TODAY[name], *words]
    os.execv(sys.executable, argv)  # noqa: S606 - it is what it is for
