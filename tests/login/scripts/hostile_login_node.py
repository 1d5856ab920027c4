"""In ssh's place: `launch _far` of a login node that somebody else has taken over.

hostile_login_node.py FOLDER ARGUMENT...
  FOLDER/real    argv and environment of the real program: it is asked, and its answers are noted in FOLDER/answers
  FOLDER/lie     {"type", "at", "value"}: what is answered in its place, from those answers, to requests of that type,
                 or {"raw"}: nothing of the wire at all
"""

import base64
import json
import os
import subprocess
import sys
import time

folder = sys.argv[1]
line = sys.argv[-1]


def read(name):
    try:
        with open(f"{folder}/{name}") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def say(data, fd=1):
    while data:
        data = data[os.write(fd, data) :]


def grown(value):
    """Large values are written small."""
    if isinstance(value, dict) and value.keys() == {"times", "of"}:
        return value["of"] * value["times"]
    if isinstance(value, dict) and value.keys() == {"deep"}:
        whole = []
        for _ in range(value["deep"]):
            whole = [whole]
        return whole
    return value


def put(answer, at, value):
    if not at:
        return value
    holder = answer
    for step in at[:-1]:
        holder = holder[step]
    holder[at[-1]] = value
    return answer


def contents(request):
    return sum(size for _, size, _, *link in request.get("files", ()) if not (link and link[0]))


def requests():
    for text in sys.stdin.buffer:
        request = json.loads(text)
        data = sys.stdin.buffer.read(contents(request)) if request["type"] == "tree" else b""
        yield request, text + data


def relayed(real):
    far = subprocess.Popen(real["argv"], env=real["env"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    greeting = far.stdout.readline()
    with open(f"{folder}/greeting", "wb") as file:
        file.write(greeting)
    say(greeting)
    for request, whole in requests():
        far.stdin.write(whole)
        far.stdin.flush()
        answer = far.stdout.readline()
        with open(f"{folder}/answers", "a") as file:
            file.write(json.dumps([request["type"], json.loads(answer)]) + "\n")
        say(answer)


def lying(lie, answers):
    say(GREETING)
    told = dict(answers)
    seen = {}
    for request, _ in requests():
        kind = request["type"]
        answer = json.loads(json.dumps(told.get(kind, {"value": None})))
        if kind == "give" and lie["type"] != "give":
            piece = base64.b64encode(open(f"{told['files']}/{request['name'] or 'MANIFEST.json'}", "rb").read())
            answer = {"value": "" if request["at"] else piece.decode()}
        seen[kind] = seen.get(kind, 0) + 1
        if lie["type"] == kind:
            answer = put(answer, lie["at"], grown(lie["value"]))
        if lie.get("late") and lie["type"] == kind:
            time.sleep(1000)
        say(json.dumps(answer).encode() + b"\n")


def raw(how):
    if how == "silence":
        time.sleep(1000)
    if how == "silence after the greeting":
        say(GREETING)
        time.sleep(1000)
    if how == "a line without an end":
        while True:
            say(b"x" * 65536)
    if how == "lines without an end":
        while True:
            say(b"\n" * 65536)
    if how == "an answer without an end":
        say(GREETING)
        while True:
            say(b"x" * 65536)
    if how == "answers nobody asked for":
        say(GREETING)
        while True:
            say(b'{"value":null}\n' * 4096)
    if how == "words on stderr without an end":
        while True:
            say(b"pwned\x1b]0;x\x07 " * 4096, 2)
    if how == "a long version":
        say(b'launch-far {"wire":99,"launch":"' + b"v" * (1 << 24) + b'"}\n')
        time.sleep(1000)
    if how == "a wire that is none":
        say(b'launch-far {"wire":1e400,"launch":[]}\n')
        time.sleep(1000)
    if how == "words that steer a terminal":
        say("\x1b]0;pwned\x07\u202e not here\n".encode() * 3, 2)
        sys.exit(1)
    if how == "nothing that is JSON":
        say(GREETING + b"\xff\xfe{{{\n")
        time.sleep(1000)
    if how == "half an answer":
        say(GREETING + b'{"value"')
    if how == "many errors":
        sys.stdin.buffer.readline()
        say(GREETING + json.dumps({"error": ["no\x1b[2J"] * 1_000_000, "exit_code": 0}).encode() + b"\n")
    if how == "a version without an end" and not line.endswith("_far"):
        while True:
            say(b"launch 1 " * 8192)
    if how == "a version without an end":
        sys.exit(2)


lie = read("lie")
if lie is not None:
    with open(f"{folder}/greeting", "rb") as file:
        GREETING = file.read()
if "-G" in sys.argv:
    os.execv("/usr/bin/ssh", ["ssh", *sys.argv[2:]])
elif lie is None:
    relayed(read("real"))
elif "raw" in lie:
    raw(lie["raw"])
else:
    lying(lie, read("told"))
