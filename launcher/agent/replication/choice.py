"""Which checkpoint a generation loads: the newest of which every file is somewhere. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.agent.replication.protocol import LoadDecision, Save, SaveChoice
from trainer.checkpoint_files.layout import Kind
from trainer.checkpoint_files.partial import Held

Inventories = Mapping[int, Sequence[Held] | None]  # by node; None: it did not answer


@dataclass(slots=True)
class _Found:
    """All that the nodes have of one save."""

    save: Save
    order: tuple[int, int, float, str]  # of two saves of one step the later attempt's is the newer
    committed: bool = False
    keepers: list[int] = field(default_factory=list)
    holders: dict[str, list[int]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        return all(self.holders.values())


def decide(inventories: Inventories, members: Collection[int]) -> LoadDecision:
    return LoadDecision(choose(inventories, members), choose(inventories, members, "best"))


def choose(inventories: Inventories, members: Collection[int], kind: Kind = "step") -> SaveChoice:
    """Drafts count where some node has committed the same; a checkpoint that nobody has committed does not exist.

    Newer ones that are not whole are hopeless only when every node has answered: an absent file may come back.
    """
    saves = [found for found in _saves(inventories, kind) if found.committed]
    chosen = max((found for found in saves if found.whole), key=lambda found: found.order, default=None)
    certain = all(held is not None for held in inventories.values())
    above = -1 if chosen is None else chosen.save.step
    hopeless = tuple(sorted(found.save for found in saves if found.save.step > above)) if certain else ()
    if chosen is None:
        return SaveChoice(hopeless=hopeless)
    return SaveChoice(
        save=chosen.save,
        keepers=tuple(chosen.keepers),
        holders={name: tuple(nodes) for name, nodes in chosen.holders.items()},
        hopeless=hopeless,
        fetches=not set(members) <= set(chosen.keepers).intersection(*chosen.holders.values()),
    )


def _saves(inventories: Inventories, kind: Kind) -> list[_Found]:
    saves: dict[Save, _Found] = {}
    for node, all_held in sorted(inventories.items()):
        for held in (held for held in all_held or () if held.kind == kind):
            save = Save(held.kind, held.step, held.digest)
            order = (held.step, held.attempt, held.saved_unix_s, held.digest)
            found = saves.setdefault(save, _Found(save, order))
            found.committed = found.committed or held.committed
            found.keepers.append(node)
            for name in (*held.present, *held.missing):
                found.holders.setdefault(name, [])
            for name in held.present:
                found.holders[name].append(node)
    return list(saves.values())
