"""Describe a mesh of ranks: `pp=2,dp=2,tp=2` is two copies of the model, of four ranks each.

Neighbouring ranks divide each layer (tp), so that they are on one node; next to them are those with other samples (dp);
and pipeline stages (pp), which exchange the least, are farthest apart.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from trainer.errors import BadSettings
from trainer.world import World

DIMENSIONS = ("pp", "dp", "tp")
_OF_OTHERS = {"cp": "parts of a sequence (context parallel), which torch itself still calls experimental,"}
_PART = re.compile(r"\s*([a-z_]+)\s*=\s*(\d+)\s*")

Mesh = Mapping[str, int]


def parse_mesh(text: str) -> dict[str, int]:
    """Return the mesh in text such as `dp=2,tp=2` as a dict of sizes by dimension.

    Without dp, as in `tp=2`, the dict lacks it, and its size follows from the number of ranks. Raises ValueError for
    text of another form, or with a dimension twice.
    """
    found = [_PART.fullmatch(part) for part in text.split(",")]
    pairs = [(match[1], int(match[2])) for match in found if match is not None]
    if len(pairs) < len(found) or len(dict(pairs)) < len(pairs):
        raise ValueError(text)
    return dict(pairs)


def mesh_of(given: str | Mesh | None) -> Mesh:
    """Return the mesh, given as text or as a mapping, as a dict such as {"dp": 2, "tp": 2}, which is empty for None.

    Raises ValueError for text that is no mesh.
    """
    return parse_mesh(given) if isinstance(given, str) else dict(given or {})


def is_mesh(value: object) -> bool:
    """Return whether the value is a mesh, as text or as a mapping of dimensions to sizes of at least 1."""
    if isinstance(value, str):
        try:
            value = parse_mesh(value)
        except ValueError:
            return False
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(name, str) and type(size) is int and size >= 1 for name, size in value.items())
    )


def ranks_per_replica(mesh: Mesh) -> int:
    """Return how many ranks work on the same samples: pp times tp."""
    return mesh.get("pp", 1) * mesh.get("tp", 1)


def problems_of(mesh: Mesh, ranks: int) -> Iterator[str]:
    """Yield each reason why the mesh does not fit this number of ranks."""
    for name in mesh:
        if name in _OF_OTHERS:
            yield f"mesh: {name}: {_OF_OTHERS[name]} cannot be trained here yet\nhint: pp, dp and tp can"
        elif name not in DIMENSIONS:
            yield f"mesh: expected pp, dp and tp, got {name!r}"
    one = ranks_per_replica(mesh)
    if ranks % one:
        yield f"mesh: {_product(mesh, 'pp', 'tp')} does not divide the world's {ranks} ranks"
    elif (all_of := mesh.get("dp", ranks // one) * one) != ranks:
        yield f"mesh: {_product(mesh, *DIMENSIONS)} are {all_of} ranks, the world has {ranks}\nhint: leave dp out"


def _product(mesh: Mesh, *names: str) -> str:
    """Return the named dimensions that the mesh has as text, such as `pp=2 x tp=2`."""
    return " x ".join(f"{name}={mesh[name]}" for name in names if name in mesh)


def on_mesh(world: World, given: str | Mesh | None) -> World:
    """Return the world with the pipeline stages and tensor-parallel ranks of the mesh that the user gave.

    None, no mesh, changes nothing. Raises BadSettings if the mesh does not fit the number of ranks.
    """
    mesh = mesh_of(given)
    if found := list(problems_of(mesh, world.size)):
        raise BadSettings("\n".join(found))
    return replace(world, ranks_per_replica=ranks_per_replica(mesh), stages=mesh.get("pp", 1))
