"""Find the addresses of the other programs of a run, from within one of its ranks."""

import os

from launcher.errors import BadInput

_ADDRESSES = "LAUNCH_ADDR_"


def peers(role: str, port: str = "") -> list[str]:
    """Return the address, HOST:PORT, of each rank of the role `role` (one of the run's programs, by its name in the
    spec), in order of rank. Addresses stay equal over restarts.

    `port` selects one of the role's `ports` by name; "" is its only or unnamed one. Raise BadInput if the run has no
    such role or port.
    """
    found = os.environ.get(_ADDRESSES + (f"{role}_{port}" if port else role).upper())
    if found is None:
        known = [name.removeprefix(_ADDRESSES).lower() for name in os.environ if name.startswith(_ADDRESSES)]
        there = f"hint: there is {', '.join(sorted(known))}" if known else "hint: only ranks of a run with `roles` do"
        role = f"{role}, port {port}" if port else role
        raise BadInput(f"{role!r}: this process knows of no such role", there)
    return found.split(",")
