"""The option --role, for commands that show one of several programs of a run. A role, or one rank of it that restarts
alone, is a part of the run with records of its own.
"""

from collections.abc import Collection, Sequence

from launcher import api
from launcher.cli.arguments import Arguments
from launcher.errors import BadInput


def takes_role(arguments: Arguments) -> None:
    """Declare the option --role."""
    arguments.add_argument("--role", metavar="ROLE", help="the role, in a run of several programs")


def parts_of(one: api.Run, role: str | None, ranks: Collection[int] = ()) -> list[api.Part]:
    """Return the parts of the run that belong to a role, or the run itself if `role` is None.

    Raise BadInput for an unknown role. For a role whose ranks restart alone, each rank is a part; only those in `ranks`
    are returned, if any are given.
    """
    if role is None:
        return [api.Part(one, str(one.id))]
    found = api.parts(one, role)
    chosen = [part for part in found if not ranks or part.rank is None or part.rank in ranks]
    if not chosen:
        numbers = ", ".join(str(part.rank) for part in found)
        raise BadInput(f"role {role} of {one.id} has no rank {min(ranks)}", f"hint: it has {numbers}")
    return chosen


def refuse_several(parts: Sequence[api.Part], what: str) -> None:
    """Raise BadInput if there are several parts, because the option `what` shows only one."""
    if len(parts) > 1:
        raise BadInput(f"{what} takes one role at a time", f"hint: --role {parts[0].run.path.name}")


def only_part_of(one: api.Run, role: str | None, rank: int) -> tuple[api.Run, int]:
    """Return (the run or the part of it in which rank `rank` of the role has its records, the rank's number there).
    Raise BadInput for an unknown role.

    Without a role (None), that is the run itself. A rank that restarts alone is rank 0 of its part.
    """
    part = parts_of(one, role, [rank])[0]
    return part.run, 0 if part.rank is not None else rank
