"""Chooses the checkpoint that a generation loads: the newest of which every file is somewhere. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.copies.protocol import LoadDecision, Save, SaveChoice
from trainer.checkpoint_files.layout import Kind
from trainer.checkpoint_files.partial import Held

_MOST_NAMED = 4  # silent nodes

Inventories = Mapping[int, Sequence[Held] | None]  # by node; None: it did not answer


@dataclass(slots=True)
class _Found:
    """The copies of one save on all nodes."""

    save: Save
    order: tuple[int, int, float, str]
    committed: bool = False
    with_manifest: list[int] = field(default_factory=list)
    holders: dict[str, list[int]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return all(self.holders.values())


def decide(
    inventories: Inventories,
    members: Collection[int],
    *,
    all_here: bool = True,
    kept: bool = False,
    anew: bool = False,
) -> LoadDecision:
    """Return which checkpoint ranks load. `kept` says that there were checkpoints, whatever is found; `anew` that a
    person has allowed the run to start without one.
    """
    load = choose(inventories, members, all_here=all_here)
    lacks = "" if load.save is not None or anew else _lacks(inventories, kept)
    return LoadDecision(load, choose(inventories, members, "best", all_here=all_here), lacks)


def choose(
    inventories: Inventories, members: Collection[int], kind: Kind = "step", *, all_here: bool = True
) -> SaveChoice:
    """Choose the newest checkpoint that is whole. Drafts count if a node has committed the same one; a checkpoint
    that no node has committed does not exist. Newer ones that are not whole are hopeless only if every node that may
    have files has answered and no other may join (`all_here`), because an absent file may come back.
    """
    saves = [found for found in _saves(inventories, kind) if found.committed]
    chosen = max((found for found in saves if found.whole), key=lambda found: found.order, default=None)
    certain = all_here and all(held is not None for held in inventories.values())
    above = -1 if chosen is None else chosen.save.step
    newer = tuple(sorted(found.save for found in saves if found.save.step > above))
    hopeless, passed_over = (newer, ()) if certain else ((), newer)
    if chosen is None:
        return SaveChoice(hopeless=hopeless, passed_over=passed_over)
    return SaveChoice(
        save=chosen.save,
        with_manifest=tuple(chosen.with_manifest),
        holders={name: tuple(nodes) for name, nodes in chosen.holders.items()},
        hopeless=hopeless,
        passed_over=passed_over,
        fetches=not set(members) <= set(chosen.with_manifest).intersection(*chosen.holders.values()),
    )


def _lacks(inventories: Inventories, kept: bool) -> str:
    """Return what is missing if no checkpoint is whole, or "" if there never was one."""
    newest = max((found for found in _saves(inventories, "step") if found.committed), key=_order, default=None)
    silent = _silent([node for node, held in sorted(inventories.items()) if held is None])
    if newest is None:
        return f"none of the run's checkpoints is on a node that is here{silent}" if kept else ""
    lost = [name for name, nodes in sorted(newest.holders.items()) if not nodes]
    what = f"{lost[0]} and {len(lost) - 1} more of {newest.save} are" if lost[1:] else f"{lost[0]} of {newest.save} is"
    return f"no checkpoint is whole: {what} on no node that is here{silent}"


def _silent(nodes: Sequence[int]) -> str:
    """Return words about the nodes that do not answer, short enough for one sentence."""
    more = f"; {len(nodes) - _MOST_NAMED} more do not either" if nodes[_MOST_NAMED:] else ""
    return "".join(f"; node {node} does not answer" for node in nodes[:_MOST_NAMED]) + more


def order(held: Held) -> tuple[int, int, float, str]:
    """Return the sort key of a save; of two saves of one step that of the later attempt is newer."""
    return held.step, held.attempt, held.saved_unix_s, held.digest


def _order(found: _Found) -> tuple[int, int, float, str]:
    return found.order


def _saves(inventories: Inventories, kind: Kind) -> list[_Found]:
    saves: dict[Save, _Found] = {}
    for node, all_held in sorted(inventories.items()):
        for held in (held for held in all_held or () if held.kind == kind):
            save = Save(held.kind, held.step, held.digest)
            found = saves.setdefault(save, _Found(save, order(held)))
            found.committed = found.committed or held.committed
            found.with_manifest.append(node)
            for name in (*held.present, *held.missing):
                found.holders.setdefault(name, [])
            for name in held.present:
                found.holders[name].append(node)
    return list(saves.values())
