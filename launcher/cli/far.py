"""`launch _far`: what a login node runs for people at other machines. Spoken to by `launcher.remote` alone."""

from launcher.remote.far import serve


def run() -> int:
    return serve()
