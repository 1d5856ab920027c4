"""How to get to a cluster now: a login node may have moved since the run was submitted."""

from launcher.errors import BadInput
from launcher.remote.known import Login


def logins() -> dict[str, Login]:
    """By cluster, as the user's clusters file says; nothing where it cannot be read."""
    from launcher.clusters.clusters_file import (  # late: it reads YAML, which only remote runs pay for
        login_of,
        named_clusters,
    )

    try:
        places = named_clusters()
    except BadInput:
        return {}  # what was good at submit is worth trying; the next submit tells what is wrong with the file
    return {
        name: Login(name, way.node, way.launch, way.folder)
        for name, place in places.items()
        if (way := login_of(place)).node is not None
    }


def now(login: Login, places: dict[str, Login] | None = None) -> Login:
    """The same cluster where it is now; where it was at submit, if the clusters file does not name it."""
    return (logins() if places is None else places).get(login.cluster, login)
