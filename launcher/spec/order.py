"""Sort the steps of a file by which of them each needs. Pure functions; `needs` has the needed steps of each step."""

from collections.abc import Mapping, Sequence


def in_order(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the steps so that each comes after those it needs, otherwise in the file's order.

    The steps must have no cycle.
    """
    done = dict[str, None]()
    while len(done) < len(needs):
        done |= dict.fromkeys([next(name for name in needs if name not in done and done.keys() >= {*needs[name]})])
    return [*done]


def circle(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return steps that form a cycle, each needing the next and the last the first; an empty list if there is none."""
    left = {name: [one for one in some if one in needs] for name, some in needs.items()}
    while free := [name for name, some in left.items() if not some]:
        left = {name: [one for one in some if one not in free] for name, some in left.items() if name not in free}
    if not left:
        return []
    path = [next(iter(left))]
    while (after := left[path[-1]][0]) not in path:
        path.append(after)
    return path[path.index(after) :]


def needed_by(name: str, needs: Mapping[str, Sequence[str]]) -> set[str]:
    """Return every step that must have succeeded before step `name` starts, directly or indirectly.

    `needs` has by name the steps that each step needs directly.
    """
    found, left = set[str](), [*needs[name]]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += needs.get(one, ())
    return found
