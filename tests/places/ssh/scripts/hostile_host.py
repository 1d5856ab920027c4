"""A host of a pool that lies: the real server, but for what lie.json beside HEARD says of each answer, as it is then.

    python hostile_host.py HEARD      a file of all answers as they were before they were made lies of

{"at": [field, ...], "is": VALUE}     the answer with that in the place of a field that it has
{"floods": "line" | "bytes" | "noise" | "stderr"}, {"hangs": true}, {"hangs_up": true}, {"drips": true}
"""

import json
import os
import sys
import time
from pathlib import Path

from launcher.places.ssh.host import server as host
from launcher.remote.rpc import server as rpc
from launcher.remote.rpc.wire import encoded

HEARD = Path(sys.argv[1])


def lie():
    file = HEARD.with_name("lie.json")
    return json.loads(file.read_text()) if file.exists() else {}


def told(reply):
    line = encoded(reply)
    with HEARD.open("ab") as heard:
        heard.write(line)
    wanted = lie()
    if wanted.get("hangs"):
        time.sleep(3600)
    if wanted.get("hangs_up"):
        sys.exit()
    if wanted.get("drips"):
        drip(line)
    if "floods" in wanted:
        flood(wanted["floods"])
    return with_lie(line, wanted) if "at" in wanted else line


def with_lie(line, wanted):
    answer = json.loads(line)
    *way, last = wanted["at"]
    place = answer
    try:
        for step in way:
            place = place[step]
        if last not in (place if isinstance(place, dict) else range(len(place))):
            return line
        place[last] = wanted["is"]
    except (KeyError, IndexError, TypeError):
        return line
    return json.dumps(answer).encode() + b"\n"


def drip(line):
    for byte in line:
        OUT.write(bytes([byte]))
        time.sleep(0.5)


def flood(where):
    piece = b"x" * (1 << 20)
    if where == "bytes":
        OUT.write(b'{"value":null,"follows":1000000000000000}\n')
    if where == "noise":
        piece = b"noise\n" * 100_000
    while True:
        (sys.stderr.buffer if where == "stderr" else OUT).write(piece)


if __name__ == "__main__":
    OUT = os.fdopen(os.dup(1), "wb", buffering=0)
    if lie().get("floods") == "greeting":
        flood("noise")
    rpc.encoded = told
    sys.exit(host.main([]))
