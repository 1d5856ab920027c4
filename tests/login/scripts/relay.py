"""Stands between the launcher and ssh: writes down what passes, and cuts the connection once where it is told to.

relay.py SSH FOLDER ARGUMENT...; FOLDER/cut is JSON: {"up": bytes} or {"down": bytes}, with {"parent": true} to end who
called, too. The cut is made when so many bytes have passed; it is used up then. What passes is in a file of this call's
in FOLDER/passed before anybody gets it: whoever ends this program, and when, is all the same.
"""

import base64
import json
import os
import select
import signal
import subprocess
import sys
import time

ssh, folder, *arguments = sys.argv[1:]
caller = os.getppid()
with open(f"{folder}/cut") as file:
    cut = json.load(file)
notes = os.open(f"{folder}/passed/{time.time_ns()}-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(what):
    os.write(notes, json.dumps(what).encode() + b"\n")


note({"argv": arguments, "env": dict(os.environ)})
child = subprocess.Popen([ssh, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
passed = {"up": 0, "down": 0}
ways = {0: ("up", child.stdin.fileno()), child.stdout.fileno(): ("down", 1)}


def cut_off():
    with open(f"{folder}/cut", "w") as file:
        file.write("{}")
    if cut.get("parent") and os.getppid() == caller:
        os.kill(caller, signal.SIGKILL)
    child.kill()
    os.kill(os.getpid(), signal.SIGKILL)


if cut.get("up") == 0 or cut.get("down") == 0:
    cut_off()
while child.stdout.fileno() in ways:
    ready, _, _ = select.select(list(ways), [], [])
    for source in ready:
        way, sink = ways[source]
        data = os.read(source, 65536)
        left = cut.get(way, 1 << 62) - passed[way]
        passed[way] += len(data[:left])
        note([way, base64.b64encode(data[:left]).decode()])
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
sys.exit(code if code >= 0 else 255)
