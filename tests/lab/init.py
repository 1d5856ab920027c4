"""The first process of a node: own process table, host name, mounts and network; it starts programs and reaps.

Run as `python -I init.py NAME ETC MOUNTS [--net] [--stay]`, with nothing of this project on its path; ETC is a folder
of files that the node has in /etc instead of this machine's, MOUNTS is JSON, a list of what `mount` is given, each a
list of words. It prints its pid as the machine knows it, waits for one line (what `ip -batch` is to do, `;` between
commands) while the cable is plugged in, and then answers one JSON request a line: {"start": name, "argv": [...],
"env": {...}, "log": path}, {"signal": name, "number": 9} and {"running": null}. When nobody is left to ask, it ends,
and with it everything in the node; with --stay it goes on.
"""

import ctypes
import json
import os
import select
import signal
import socket
import sys

CLONE = {"mount": 0x00020000, "uts": 0x04000000, "pid": 0x20000000, "net": 0x40000000}


def main():
    name, etc, mounts, *flags = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    wanted = CLONE["mount"] | CLONE["uts"] | CLONE["pid"] | (CLONE["net"] if "--net" in flags else 0)
    if libc.unshare(wanted) != 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    pid = os.fork()
    if pid:
        send_answer(pid)
        for stream in (0, 1):
            os.close(stream)  # they are the child's alone: the other end sees it go
        os.waitpid(pid, 0)
        return
    setup(name, etc, json.loads(mounts))
    commands = sys.stdin.readline().replace(";", "\n")
    if commands.strip():
        done = run(["ip", "-batch", "-"], commands)
        if done:
            raise SystemExit(f"ip: {done}")
    Init(stay="--stay" in flags).serve()


def setup(name, etc, mounts):
    socket.sethostname(name)
    for words in (
        ["--make-rslave", "/"],  # a disk that this machine mounts later is seen, nothing of ours gets out
        ["-t", "proc", "proc", "/proc"],
        # Not file by file: what is mounted on a file goes with it when this machine replaces that, as adduser does.
        ["-t", "overlay", "-o", f"lowerdir={etc}:/etc", "none", "/etc"],
        *mounts,
    ):
        if done := run(["mount", *words]):
            raise SystemExit(f"mount {words}: {done}")


def run(argv, text=""):
    """The exit code of a program that is given this text."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)])
    os.close(reading)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def send_answer(answer):
    """Print the answer as a line of JSON."""
    print(json.dumps(answer), flush=True)


class Init:
    def __init__(self, stay):
        self.stay = stay
        self.programs = {}
        self.woken, wake = os.pipe()
        for end in (self.woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self):
        asked, ears = b"", [0, self.woken]
        send_answer("ready")
        while True:
            ready = select.select(ears, [], [])[0]
            if self.woken in ready:
                os.read(self.woken, 4096)
                self.reap()
            if 0 in ready:
                chunk = os.read(0, 65536)
                if not chunk and not self.stay:
                    return
                if not chunk:
                    ears.remove(0)
                asked += chunk
                *lines, asked = asked.split(b"\n")
                for line in lines:
                    send_answer(self.answer(json.loads(line)))

    def reap(self):
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.programs = {name: running for name, running in self.programs.items() if running != pid}

    def answer(self, request):
        if "start" in request:
            self.programs[request["start"]] = spawn(request["argv"], request["env"], request["log"])
        elif "signal" in request:
            os.kill(self.programs[request["signal"]], request["number"])
        return self.programs


def spawn(argv, env, log):
    return os.posix_spawnp(
        argv[0],
        argv,
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
    )


if __name__ == "__main__":
    main()
