"""Uploads of one node, and a real S3 server that can be killed, started again, and told to misbehave."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from launcher.copies.uploads import UploadRules, Uploads
from launcher.wire.messages import Start

BOUND_S = 120.0
ACCESS, SECRET = "access-key-of-the-tests", "secret-key-of-the-tests"


class S3Server:
    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process = None

    @property
    def env(self):
        """Return the variables that a client needs beside the two credentials."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }  # fmt: skip

    def start(self, *buckets):
        (self.folder / "up").unlink(missing_ok=True)
        words = [sys.executable, str(Path(__file__).with_name("s3_server.py")), str(self.port), str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                words, stdout=log, stderr=log, env={**os.environ, "MOTO_ACCOUNT_ID": "1" * 12}
            )
        end = time.monotonic() + BOUND_S
        while not (self.folder / "up").exists():
            assert self._process.poll() is None and time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.01)
        for bucket in buckets:
            self.make(bucket)

    def make(self, bucket):
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}/{bucket}", method="PUT")
        urllib.request.urlopen(asked, timeout=BOUND_S).close()

    def kill(self):
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def told(self, word):
        """Make the store hang, be full or lie within this context."""
        (self.folder / word).touch()
        try:
            yield
        finally:
            (self.folder / word).unlink()


def start(group_rank=0, nodes=1, ranks=2):
    return Start(1, group_rank * ranks, ranks, nodes * ranks, group_rank, nodes, "127.0.0.1", 1, 0)


class Node:
    """One node's uploads and what it says."""

    def __init__(self, folder, store, **rules):
        self.said = []
        rules = UploadRules(**{"retry_s": 0.01, "retry_max_s": 0.05, "give_up_s": 30.0, **rules})
        self.uploads = Uploads(folder, lambda: store, rules, lambda kind, text: self.said.append((kind, text)))


def steps(store):
    return [held.step for held in store.saves()]
