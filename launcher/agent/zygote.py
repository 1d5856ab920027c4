"""The process that imports torch once and forks ranks on request. One file, standard library only: it runs under the
user's interpreter, which need not have the launcher installed. Started by path as

    python zygote.py serve FD AGENT_PID      JSON lines over a socket: preload, fork → ready, forked, refused, exited
    python zygote.py run FD                  become one rank, without a fork; the order comes as a line from FD
"""

import sys

if __name__ == "__main__":
    del sys.path[0]  # our own folder: a user's `import wire` must not find the launcher's

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import time

PR_SET_PDEATHSIG = 1
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPORT_BYTES = 4000


def die_with(parent):
    """Have the kernel kill us when our parent ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel knew


class Zygote:
    """Serves one agent. `serve` returns only in a forked child, with the child's order."""

    def __init__(self, connection):
        self.connection = connection
        self.children = set()
        self.buffer = b""
        self.bell, bell_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.inherited = [self.bell, bell_end, connection.fileno()]
        self.before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
        self.before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(bell_end, warn_on_full_buffer=False)

    def serve(self):
        while True:
            for words in self.heard():
                if words.get("op") == "preload":
                    self.say(preload(words["modules"]))
                elif words.get("op") == "fork":
                    if self.fork(words["id"]):
                        return words["order"]
                else:
                    self.say({"op": "error", "reason": "unknown op"})

    def heard(self):
        """Lines from the agent; deaths are told in between. At the end of the stream everything ends."""
        select.select([self.connection, self.bell], [], [])
        self.ring()
        try:
            data = self.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not data:
            self.end()
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            try:
                words = json.loads(line)
            except ValueError:
                words = {}
            yield words if isinstance(words, dict) else {}

    def ring(self):
        """Tell of every child that has ended."""
        try:
            os.read(self.bell, 4096)
        except BlockingIOError:
            pass  # no signal came: the agent spoke
        while self.children:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            self.children.discard(pid)
            self.say({"op": "exited", "pid": pid, "status": status, "maxrss_kb": usage.ru_maxrss})

    def fork(self, number):
        """True in the child."""
        reason = unsafe()
        if reason:
            self.say({"op": "refused", "id": number, "reason": reason})
            return False
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self.leave()
            os.setsid()
            die_with(parent)
            return True
        self.children.add(pid)
        self.say({"op": "forked", "id": number, "pid": pid})
        return False

    def leave(self):
        """In the child: nothing of the zygote is left."""
        signal.set_wakeup_fd(-1)
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.connection.close()
        for fd in self.inherited[:2]:
            os.close(fd)

    def say(self, words):
        try:
            self.connection.sendall(json.dumps(words).encode() + b"\n")
        except OSError:
            self.end()

    def end(self):
        """The agent is gone: nobody is left to answer for our children."""
        for pid in self.children:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        os._exit(0)


def preload(modules):
    """Import them all; one that cannot be had is told, not fatal."""
    began = time.monotonic()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else importing numpy starts threads, and then no fork is safe
    loaded, failed = [], []
    for name in modules:
        try:
            importlib.import_module(name)
            loaded.append(name)
        except Exception as error:  # whatever a module does while it is imported, the rank will meet it too
            failed.append([name, f"{type(error).__name__}: {error}"])
    gc.collect()
    gc.freeze()
    return {"op": "ready", "seconds": time.monotonic() - began, "loaded": loaded, "failed": failed}


def unsafe():
    """Why a fork would not be safe now; empty: it is."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        return f"the preloaded modules have started {threads - 1} threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "the preloaded modules have initialised CUDA"
    return ""


def settle(order):
    """Make this process the rank's: log, environment, folder, signals."""
    log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    nothing = os.open(order["stdin"], os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, max(log, nothing) + 64)
    sys.stdout.reconfigure(line_buffering=True, write_through=False)
    sys.stderr.reconfigure(line_buffering=True)
    for name in order["unset"]:
        os.environ.pop(name, None)
    os.environ.update(order["env"])
    os.chdir(order["cwd"])


def reseed():
    """A fork shares its parent's generators; ranks started apart would not."""
    if "random" in sys.modules:
        sys.modules["random"].seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def become(order):
    """Run the user's program as `python` itself would."""
    if order["kind"] == "command":
        os.execvpe(order["target"], [order["target"], *order["args"]], os.environ)
    import faulthandler

    faulthandler.register(order["dump_signal"], all_threads=True, chain=False)
    reseed()
    main = type(sys)("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    if order["kind"] == "module":
        import runpy

        sys.path.insert(0, os.getcwd())
        sys.argv[:] = [order["target"], *order["args"]]
        runpy._run_module_as_main(order["target"], alter_argv=True)
        return
    from importlib.machinery import SourceFileLoader

    path = order["target"]
    sys.argv[:] = [path, *order["args"]]
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    main.__file__ = path
    main.__cached__ = None
    main.__loader__ = SourceFileLoader("__main__", path)
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def report(error, order):
    """Tell the agent what nobody caught, before the interpreter says it in the log."""
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    own = [frame for frame in frames if os.path.abspath(frame[0]).startswith(order["cwd"] + os.sep)]
    file, line, name = (own or frames)[-1]
    words = {
        "type": type(error).__name__,
        "message": str(error)[:1000],
        "line": f"{type(error).__name__}: {error}".splitlines()[0][:1000],
        "where": f"{os.path.relpath(file, order['cwd']) if own else file}:{line} in {name}"[:500],
    }
    try:
        fd = os.open(order["progress"], os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, json.dumps({"exception": words}).encode()[:REPORT_BYTES] + b"\n")
        os.close(fd)
    except OSError:
        return  # nobody listens: the log has it all the same


def run(order):
    settle(order)
    try:
        become(order)
    except Exception as error:
        report(error, order)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        raise error.with_traceback(trace) from error.__cause__


def main():
    """Give the order of the rank that this process is to become."""
    mode, fd = sys.argv[1], int(sys.argv[2])
    if mode == "run":
        die_with(os.getppid())
        with open(fd, "rb") as file:
            return json.loads(file.readline())
    die_with(int(sys.argv[3]))
    return Zygote(socket.socket(fileno=fd)).serve()


if __name__ == "__main__":
    run(main())
