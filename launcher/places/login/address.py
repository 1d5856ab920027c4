"""Find the address of a login node: from the clusters file as it is now, because the node may have moved since the
submit, else from the run's plan.
"""

import msgspec

from launcher.errors import BadInput
from launcher.run.attempts import plan_as
from launcher.run.layout import AttemptDir, RunDir
from launcher.spec.model import Login
from launcher.states import LOCAL

KIND = "login"


class Address(msgspec.Struct, frozen=True):
    """The way to reach a cluster through its login node.

    `cluster` is the user's name for it, `login` the login node's name for ssh, `launch` the program there, `folder`
    where code and runs are kept there, and `on` the cluster's name on the login node.
    """

    cluster: str  # the user's name for the cluster
    login: str  # the login node for ssh: user@host or an alias
    launch: str  # path of the program on the login node
    folder: str  # where code and runs are kept on the login node
    on: str  # the cluster's name on the login node
    transport: str = "openssh"  # or paramiko

    def __str__(self) -> str:
        return f"login node {self.login} of {self.cluster}"


class _LoginHead(msgspec.Struct, frozen=True):
    """The part of a spec in a plan that says how to reach the login node."""

    node: str | None = None  # for ssh
    launch: str = "launch"  # the program on the login node
    folder: str = "~/launch"  # where code and runs are kept on the login node
    cluster: str | None = None  # the cluster's name on the login node; None: local
    transport: str = "openssh"  # or paramiko


class _SpecHead(msgspec.Struct, frozen=True):
    """The part of a plan's spec from which `launch status` finds the login node; the rest is not decoded."""

    login: _LoginHead = _LoginHead()


class _PlanHead(msgspec.Struct, frozen=True):
    """The part of a plan with the name of the run's cluster and, in the spec, how to reach its login node. Only this
    part is decoded, because `launch status` needs no more and is faster so.
    """

    cluster: str
    spec: _SpecHead


def address_of(run: RunDir, attempt: AttemptDir) -> Address:
    """Return the address at which the attempt's login node is to be reached: that of its cluster in the clusters file
    now, or else that in the attempt's plan.
    """
    plan = plan_as(run, attempt.number, _PlanHead)
    return now(as_planned(plan.cluster, plan.spec.login))


def as_planned(cluster: str, login: Login | _LoginHead) -> Address:
    """Return the address in `login`, the options `login` of a plan or the clusters file for the cluster that the user
    calls `cluster`; raise BadInput if they have no `node`.
    """
    if login.node is None:
        hint = "hint: `login: me@login.example.org` of a cluster in the clusters file, and --on its name"
        raise BadInput(f"--on {cluster}: no login node is named", hint)
    return Address(cluster, login.node, login.launch, login.folder, login.cluster or LOCAL, login.transport)


def now(planned: Address) -> Address:
    """Return the address that the clusters file gives the planned cluster now; return `planned` if the file cannot be
    read or has no such entry.
    """
    from launcher.places.clusters_file import login_of, named_clusters  # late: it reads YAML, for remote runs alone

    try:
        place = named_clusters().get(planned.cluster)
    except BadInput:
        return planned  # the address at submit is worth trying; the next submit reports what is wrong with the file
    login = login_of(place) if place is not None else None
    return planned if login is None or login.node is None else as_planned(planned.cluster, login)
