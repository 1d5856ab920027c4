"""Choose the checkpoint that a generation loads, when each node has its own disk: the newest of which every file is on
some node. Pure functions of what the nodes have (`inventories`; None for a node that does not answer). A draft is a
checkpoint that a node has not committed, because its manifest is not in its final place. A generation is one set of
ranks that train together, and its members are the nodes with those ranks.
"""

from collections.abc import Collection, Mapping, Sequence

from launcher.copies.protocol import LoadDecision, Save, SaveChoice
from trainer.checkpoint_files.layout import Kind
from trainer.checkpoint_files.partial import Held, SaveOnDisks, committed_over

_MOST_NAMED = 4  # silent nodes

Inventories = Mapping[int, Sequence[Held] | None]  # by node; None: it did not answer


def decide(
    inventories: Inventories,
    members: Collection[int],
    *,
    all_here: bool = True,
    kept: bool = False,
    anew: bool = False,
) -> LoadDecision:
    """Return the checkpoint that ranks load, the best one by a metric, of which nodes only keep their files, and the
    reason if no rank may start because none of the run's checkpoints can be loaded.

    `members` are the numbers of the nodes that load it. `all_here` means that no further node can join. With `kept` the
    run once had checkpoints, so that finding none is such a reason too; with `anew` there is never one, because a user
    has allowed the run to start without a checkpoint.
    """
    load = choose(inventories, members, all_here=all_here)
    lacks = "" if load.save is not None or anew else _lacks(inventories, kept)
    return LoadDecision(load, choose(inventories, members, "best", all_here=all_here), lacks)


def choose(
    inventories: Inventories, members: Collection[int], kind: Kind = "step", *, all_here: bool = True
) -> SaveChoice:
    """Return the newest checkpoint of this kind (saved steps, or the best by a metric) of which every file can be had
    from some node; the choice's `save` is None if there is none. `members` are the numbers of the nodes that load it.

    A draft counts if another node has committed the same checkpoint; one that no node has committed does not exist. A
    newer, incomplete one is `hopeless`, to be set aside, only if every node that may have files has answered and no
    other can join (`all_here`).
    """
    saves = _saves(inventories, kind)
    chosen = next((found for found in reversed(saves) if found.whole), None)
    certain = all_here and all(held is not None for held in inventories.values())
    above = -1 if chosen is None else chosen.held.step
    newer = tuple(sorted(Save.of(found.held) for found in saves if found.held.step > above))
    hopeless, passed_over = (newer, ()) if certain else ((), newer)
    if chosen is None:
        return SaveChoice(hopeless=hopeless, passed_over=passed_over)
    return SaveChoice(
        save=Save.of(chosen.held),
        with_manifest=tuple(chosen.with_manifest),
        holders={name: tuple(nodes) for name, nodes in chosen.holders.items()},
        hopeless=hopeless,
        passed_over=passed_over,
        fetches=not set(members) <= set(chosen.with_manifest).intersection(*chosen.holders.values()),
    )


def _lacks(inventories: Inventories, kept: bool) -> str:
    """Return as text which file of the newest checkpoint is missing; to be called only if no checkpoint is complete.
    Return "" if no node has any files and the run never had a checkpoint (`kept` is False).
    """
    newest = next(reversed(_saves(inventories, "step")), None)
    silent = _silent([node for node, held in sorted(inventories.items()) if held is None])
    if newest is None:
        return f"none of the run's checkpoints is on a node that is here{silent}" if kept else ""
    save, lost = Save.of(newest.held), [name for name, nodes in sorted(newest.holders.items()) if not nodes]
    what = f"{lost[0]} and {len(lost) - 1} more of {save} are" if lost[1:] else f"{lost[0]} of {save} is"
    return f"no checkpoint is whole: {what} on no node that is here{silent}"


def _silent(nodes: Sequence[int]) -> str:
    """Return a text about these nodes, which do not answer, "" if there are none; it is cut if there are many."""
    more = f"; {len(nodes) - _MOST_NAMED} more do not either" if nodes[_MOST_NAMED:] else ""
    return "".join(f"; node {node} does not answer" for node in nodes[:_MOST_NAMED]) + more


def _saves(inventories: Inventories, kind: Kind) -> list[SaveOnDisks]:
    """Return all checkpoints of this kind that some node has committed, the oldest first, each with the nodes that have
    its files.
    """
    return committed_over(((node, held) for node, held in sorted(inventories.items()) if held is not None), kind)
