"""Find the addresses of the other programs of a run, from within one of its ranks."""

import os

from launcher.errors import BadInput

_ADDRESSES = "LAUNCH_ADDR_"


def peers(role: str) -> list[str]:
    """Return the address, HOST:PORT, of each rank of this role, in their order; they are the same after a restart."""
    found = os.environ.get(_ADDRESSES + role.upper())
    if found is None:
        known = [name.removeprefix(_ADDRESSES).lower() for name in os.environ if name.startswith(_ADDRESSES)]
        there = f"hint: there is {', '.join(sorted(known))}" if known else "hint: only ranks of a run with `roles` do"
        raise BadInput(f"{role!r}: this process knows of no such role", there)
    return found.split(",")
