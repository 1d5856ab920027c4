"""`launch _far`: what a login node runs for people at other machines. Spoken to by clusters/login alone."""

from launcher.clusters.login.messages import Request
from launcher.far import answer
from launcher.hostlink.rpc.server import serve


def run() -> int:
    return serve(Request, answer)
