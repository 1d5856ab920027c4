"""The runs that a new one is to follow, found by what a person calls them."""

from collections.abc import Sequence

from launcher.errors import NoSuchRun
from launcher.plan.facts import Misfit
from launcher.plan.model import AwaitedRun
from launcher.rundir import registry
from launcher.spec.model import Predecessor


def awaited_by(after: Sequence[Predecessor]) -> tuple[tuple[AwaitedRun, ...], list[Misfit]]:
    """Each of these, and what is wrong with those that are not to be found."""
    found, problems = list[AwaitedRun](), list[Misfit]()
    for index, one in enumerate(after):
        try:
            found.append(_awaited(one))
        except NoSuchRun as error:
            said, *more = error.lines
            hint = more[0].removeprefix("hint: ") if more else ""
            problems.append(Misfit(f"queue.after.{index}", said, hint))
    return tuple(found), problems


def _awaited(one: Predecessor) -> AwaitedRun:
    run_id, path = registry.find(one.run)
    return AwaitedRun(run_id, str(path), one.until, one.step)
