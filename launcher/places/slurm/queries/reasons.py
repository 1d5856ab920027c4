"""Explain in plain words why Slurm does not start a job. Pure functions; an unknown reason is quoted."""

import re

_WAITING = {
    "None": "Slurm has not looked at it yet",
    "Resources": "waiting for nodes to become free",
    "Priority": "other jobs are before it",
    "BeginTime": "starts after a delay",
    "Dependency": "waiting for another job to end",
    "Licenses": "waiting for a license",
    "Reservation": "waiting for its reservation to begin",
    "JobArrayTaskLimit": "as many elements of its array are running as may at once",
    "Prolog": "the site's prolog is preparing its nodes",
    "Cleaning": "its last start is still being cleaned up",
    "Constraints": "no node that it may use is free now",
    "FrontEndDown": "waiting for a front end node to come back",
    "FedJobLock": "waiting for the other clusters of the federation",
    "BurstBufferResources": "waiting for space in the burst buffer",
    "BurstBufferStageIn": "its data is being staged into the burst buffer",
    "PowerNotAvail": "waiting for electric power to become free",
    "PowerReserved": "waiting for electric power that is reserved",
    "SchedDefer": "asked to start at once, which this site does not do",
    "QOSUsageThreshold": "your share of the cluster is used up below what your QOS demands",
    "NodeDown": "a node that it needs is down",
    "PartitionDown": "its partition is down: new jobs do not start",
    "PartitionInactive": "its partition is inactive: no jobs start",
}
_HELD = {
    "JobHeldUser": "held by you or your account's coordinator; `scontrol release JOB` lets it start",
    "JobHeldAdmin": "held by an administrator, who alone can release it",
    "JobHoldMaxRequeue": "held: requeued as often as the site allows; `scontrol release JOB` lets it start",
    "launch failed requeued held": (
        "held: a node could not start it; `scontrol release JOB` lets it start, `slurm.exclude` keeps it off that node"
    ),
    "user env retrieval failed requeued held": (
        "held: Slurm could not read your login environment; `scontrol release JOB` lets it start"
    ),
    "job requeued in held state": "held at its requeue; `scontrol release JOB` lets it start",
    "job requeued in special exit state": "held at its requeue, marked special; `scontrol release JOB` lets it start",
    "ReservationDeleted": "held: its reservation was deleted; choose another, then `scontrol release JOB`",
    "Burst buffer stage-in timeout": "held: its data could not be staged in; `scontrol release JOB` lets it start",
}
_NEVER = {
    "DependencyNeverSatisfied": "will never start: the job that it waits for ended otherwise than it demands",
    "BadConstraints": "will never start: no node has what it asks for",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionNodeLimit": "asks for more, or fewer, nodes than its partition has up and allows",
    "PartitionConfig": "asks for more than its partition allows",
    "MaxMemPerLimit": "asks for more memory on a node, or for a CPU, than allowed",
    "AccountNotAllowed": "your account may not use this partition",
    "InvalidAccount": "its account does not exist or is not yours",
    "QOSNotAllowed": "your account or this partition does not allow its QOS",
    "InvalidQOS": "its QOS does not exist or is not yours",
    "ReservationInvalid": "its reservation does not exist or is not for you",
    "DeadLine": "cannot end before its deadline any more",
    "AccountingPolicy": "a limit of your account or QOS forbids it",
    "AssociationJobLimit": "your account has as many jobs as it may",
    "AssociationResourceLimit": "your account uses as much as it may",
    "AssociationTimeLimit": "your account's time is used up",
    "QOSJobLimit": "your QOS has as many jobs as it may",
    "QOSResourceLimit": "your QOS is used as much as it may",
    "QOSTimeLimit": "your QOS's time is used up",
    "BurstBufferOperation": "the burst buffer failed",
}
# A job that was requeued, or has just ended, still carries these.
_ENDED = {
    "JobLaunchFailure": "a node could not start it",
    "SystemFailure": "Slurm, a file system or the network failed",
    "NonZeroExitCode": "its process ended with an exit code other than 0",
    "RaisedSignal": "its process was killed by a signal",
    "TimeLimit": "its time limit is reached",
    "InactiveLimit": "did nothing for longer than the site allows",
    "OutOfMemory": "used more memory than it asked for",
}
_LONGEST = 1000
_FIXED = _WAITING | _HELD | _NEVER | _ENDED


def _loose(text: str) -> str:
    """Return the text in lower case, with single spaces instead of `_`, which older versions of Slurm write, so that
    reasons of all versions compare as equal.
    """
    return " ".join(text.replace("_", " ").lower().split())


_BY_LOOSE = {_loose(known): words for known, words in _FIXED.items()}
_NOT_AVAILABLE = re.compile(r"ReqNodeNotAvail\W*(?:Unavailable(?:Nodes)?:(?P<nodes>.*)|(?P<why>.*))")
_NOTHING_FREE = re.compile(r"Nodes required for job are DOWN, DRAINED.*", re.IGNORECASE)
_SIGNAL = re.compile(r"RaisedSignal:\s*(\d+).*")
# Limits of accounts and QOS have names made of parts: AssocGrpGRESRunMinutes, QOSMaxCpuPerUserLimit, MaxJobsPerAccount.
_LIMIT = re.compile(
    r"(?P<owner>Assoc|QOS|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>SubmitJob|Job|Wall(?:Duration)?|C(?:pu|PU)|Mem(?:ory)?|Node|GRES|Energy|License|BB|Billing|Unknown)s?"
    r"(?P<minutes>(?:Run)?(?:Minutes|Mins))?(?:Per(?P<per>Job|Node|User|Account))?(?:NotSatisfied)?(?:Limit)?"
)
_JOBS = {"Job": "running", "SubmitJob": "running or waiting"}
# What there may be too much of, and what its minutes are called.
_THINGS = {
    "C": ("CPUs", "CPU minutes"),
    "M": ("memory", "memory minutes"),
    "N": ("nodes", "node minutes"),
    "G": ("GPUs (or other gres)", "GPU (or other gres) minutes"),
    "E": ("energy", "energy minutes"),
    "L": ("licenses", "license minutes"),
    "BB": ("burst buffer space", "burst buffer minutes"),
    "Bi": ("billing units", "billing minutes"),
    "U": ("of a resource", "minutes of a resource"),
}


def plain(reason: str) -> str:
    """Return in plain words why a pending job does not start, given Slurm's reason, and what the user can do, if
    anything.
    """
    said = " ".join("".join(char if char.isprintable() else " " for char in reason[:_LONGEST]).split())
    if said.startswith("(") and said.endswith(")"):
        said = said[1:-1].strip()
    if said in ("", "null"):
        return "Slurm gives no reason"
    if known := _BY_LOOSE.get(_loose(said)):
        return known
    if found := _NOT_AVAILABLE.fullmatch(said):
        return _not_available(found["nodes"], found["why"])
    if _NOTHING_FREE.fullmatch(said):
        return "the nodes that it may use are down, drained, or kept for more important partitions"
    if found := _SIGNAL.fullmatch(said):
        return f"its process was killed by signal {found[1]}"
    if found := _LIMIT.fullmatch(said):
        return _limit(found)
    return f"Slurm says: {said}"


def _not_available(nodes: str | None, why: str | None) -> str:
    """Return the text on nodes that the job needs and that are not available. Slurm names them in `nodes`, or says why
    in `why`; what it does not say is None, and then the text is general.
    """
    if nodes is not None and (named := nodes.strip(" ()")):
        return f"a node that it needs is down, drained or does not answer: {named}"
    said = (why or "").strip(" ,()")
    if _loose(said).startswith("reserved for maintenance"):
        return "would not end before a maintenance begins: a shorter time limit may let it start"
    if _loose(said).startswith("may be reserved"):
        return "a node that it needs is kept for another job"
    return "a node that it needs is in use, reserved or down" + (f" (Slurm says: {said})" if said else "")


def _limit(name: re.Match[str]) -> str:
    """Return the sentence for a limit of an account or QOS. Its name, such as AssocGrpCpuLimit, was matched into parts:
    whose limit it is, of what, and whether for each job or for all users together.
    """
    whose = "your account" if name["owner"] == "Assoc" else "your QOS"
    what, per, grouped = name["what"], name["per"], name["kind"] == "Grp"
    if running := _JOBS.get(what):
        who = f"the users of {whose} together have" if grouped else "you have"
        return f"{'your account has' if per == 'Account' else who} as many jobs {running} as {whose} allows"
    if what.startswith("Wall"):
        return f"the run time of {whose} is used up" if grouped else f"its time limit is longer than {whose} allows"
    things, minutes = next(words for beginning, words in _THINGS.items() if what.startswith(beginning))
    asked = minutes if name["minutes"] else things
    match name["kind"], per:
        case "Min", _:
            return f"{whose} demands more {asked} than it asks for"
        case "Grp", _ if name["minutes"] and name["minutes"].startswith("Run"):
            return f"running jobs have claimed all {asked} of {whose}"
        case "Grp", _ if name["minutes"]:
            return f"all {asked} of {whose} are used up"
        case "Grp", _:
            return f"all users of {whose} together may use no more {asked}"
        case _, "User":
            return f"with it, you would use more {asked} than {whose} allows a user"
        case _, "Account":
            return f"with it, your account would use more {asked} than {whose} allows an account"
        case _, "Node":
            return f"asks for more {asked} on a node than {whose} allows"
        case _:
            return f"asks for more {asked} than {whose} allows a job"
