"""Stands between the launcher and ssh: writes down what passes, and cuts the connection once where it is told to.

relay.py SSH FOLDER ARGUMENT...; FOLDER/cut is JSON: {"up": bytes} or {"down": bytes}, with {"parent": true} to end who
called, too. The cut is made when so many bytes have passed; it is used up then.
"""

import base64
import json
import os
import select
import signal
import subprocess
import sys

ssh, folder, *arguments = sys.argv[1:]
caller = os.getppid()
with open(f"{folder}/cut") as file:
    cut = json.load(file)
child = subprocess.Popen([ssh, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
passed = {"up": b"", "down": b""}
ways = {0: ("up", child.stdin.fileno()), child.stdout.fileno(): ("down", 1)}


def note():
    record = {
        "argv": arguments,
        "env": {name: value for name, value in os.environ.items()},
        **{way: base64.b64encode(data).decode() for way, data in passed.items()},
    }
    with open(f"{folder}/passed", "a") as file:
        file.write(json.dumps(record) + "\n")


def cut_off():
    with open(f"{folder}/cut", "w") as file:
        file.write("{}")
    note()
    if cut.get("parent") and os.getppid() == caller:
        os.kill(caller, signal.SIGKILL)
    child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def leave(*_):
    note()
    child.kill()
    os._exit(255)


signal.signal(signal.SIGTERM, leave)  # the launcher has heard all it wanted
if cut.get("up") == 0 or cut.get("down") == 0:
    cut_off()
while child.stdout.fileno() in ways:
    ready, _, _ = select.select(list(ways), [], [])
    for source in ready:
        way, sink = ways[source]
        data = os.read(source, 65536)
        left = cut.get(way, 1 << 62) - len(passed[way])
        passed[way] += data[:left]
        try:
            os.write(sink, data[:left])
        except BrokenPipeError:
            data = b""
        if len(data) >= left:
            cut_off()
        if not data:
            del ways[source]
            if way == "up":
                child.stdin.close()
code = child.wait()
note()
sys.exit(code if code >= 0 else 255)
