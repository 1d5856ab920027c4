"""Fill in references such as `${steps.train.run_dir}`, by which a step's `run` and `env` use another step's outputs.
Pure; `tree` is the YAML tree of a step's spec. A reference is passed on without the braces and `steps.`, here as
`train.run_dir`, and a function `give` returns the text that replaces it.
"""

import re
from collections.abc import Callable, Collection

from msgspec import Struct

from launcher.spec.problems import Gather, Problem, Wrong
from launcher.spec.tree import Entry, Mapping, Mark, Node, Scalar, Sequence

_SECTIONS = ("run", "env")
_REFERENCE = re.compile(r"\$\{steps\.([^{}]*)\}")

Give = Callable[[str, Mark], str]  # from a reference and its position to the text in its place. Raises Wrong


class StepOutputs(Struct, frozen=True):
    """The outputs of a step that other steps can refer to, all known before the step starts: its run's id and
    directory, its checkpoint folder, and the path that its best checkpoint will have.
    """

    run: str  # the id of its run
    run_dir: str  # the run's folder
    checkpoints: str  # the folder, from which the newest is loaded
    best_checkpoint: str  # a path that stands for the best one at the time it is loaded


OUTPUTS = StepOutputs.__struct_fields__


def filled_in(tree: Mapping, give: Give) -> Mapping:
    """Return the spec of a step with every reference in `run` and `env` replaced by `give(reference, position)`.

    Raise Wrong with the problems of all references for which `give` raises Wrong.
    """
    gather = Gather()
    sections = {
        name: Entry(entry.key, _filled(gather, (name,), entry.value, give))
        for name, entry in tree.entries.items()
        if name in _SECTIONS
    }
    gather.close()
    return Mapping({**tree.entries, **sections}, tree.mark)


def check_reference(reference: str, mark: Mark, mine: str, known: Collection[str], needed: Collection[str]) -> None:
    """Raise Wrong, at the position `mark`, unless the step `mine` may use the reference.

    The reference's step must be one of the file's steps (`known`) and one that must succeed before `mine` starts
    (`needed`), and the output must exist.
    """
    step, _, word = reference.partition(".")
    shown = f"${{steps.{reference}}}"
    if step not in known:
        raise Wrong(Problem(mark, f"{shown}: no step {step!r}", word=step, options=tuple(known)))
    if word not in OUTPUTS:
        raise Wrong(Problem(mark, f"{shown}: expected one of {', '.join(OUTPUTS)}", word=word, options=OUTPUTS))
    if step == mine:
        raise Wrong(Problem(mark, f"{shown}: a step is given nothing of itself", "LAUNCH_RUN_DIR is its own folder"))
    if step not in needed:
        raise Wrong(Problem(mark, f"{shown}: {mine} does not need {step}", f"write {step} into its `needs`"))


def _filled(gather: Gather, key: tuple[str | int, ...], node: Node, give: Give) -> Node:
    """Return a copy of `node` in which each reference, also in nodes inside of it, is replaced by
    `give(reference, position)`; the position is that of the text in the YAML file.

    If `give` raises Wrong, the text stays, and the problems are added to `gather` under the text's path in the tree;
    `key` is the path of `node`.
    """
    match node:
        case Mapping():
            below = {
                name: Entry(one.key, _filled(gather, (*key, name), one.value, give))
                for name, one in node.entries.items()
            }
            return Mapping(below, node.mark)
        case Sequence():
            items = [_filled(gather, (*key, index), item, give) for index, item in enumerate(node.items)]
            return Sequence(items, node.mark)
        case Scalar() if _REFERENCE.search(node.text):
            try:
                return Scalar(_REFERENCE.sub(lambda found: give(found[1], node.mark), node.text), False, node.mark)
            except Wrong as error:
                gather.blame(error, *key)
    return node
