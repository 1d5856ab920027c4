"""Runs command lines of `launch`, each in a process of its own that has imported everything already.

A line of stdin is JSON: number, argv, cwd, limit_s. A line of stdout: that number, exit code (None: it hung), out, err,
size, peak_kb, seconds.
"""

import json
import os
import resource
import select
import signal
import sys
import tempfile
import time

import launcher.submission.opening
import launcher.submission.reopening  # noqa: F401
from launcher import api  # noqa: F401
from launcher.cli import main
from launcher.cli.keeping import cancel, fetch, include, wait  # noqa: F401
from launcher.cli.looking import checkpoints, logs, status  # noqa: F401
from launcher.cli.starting import resume, submit  # noqa: F401
from launcher.places.login import cluster, files, handover, lines
from launcher.remote.rpc import client

# So that silence is noticed within seconds; what is looked at is that it is noticed.
client.GREETING_S = cluster.LIMIT_S = cluster.ANSWER_S = files._ANSWER_S = files._LONG_S = files._STOCK_S = 2.0
lines._PAUSES_S = (0.05,)
handover._PATIENT = handover._HASTY = handover._Patience(2.0, 2.0)


def run(case, out, err):
    os.setsid()
    os.chdir(case["cwd"])
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    code = main.main(case["argv"])
    sys.stdout.flush()
    import atexit

    atexit._run_exitfuncs()
    os._exit(code)


for line in sys.stdin:
    case = json.loads(line)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.monotonic()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            try:
                run(case, out, err)
            finally:
                import traceback

                traceback.print_exc()
                os._exit(99)
        ended = os.pidfd_open(pid)
        hung = not select.select([ended], [], [], case["limit_s"])[0]
        os.close(ended)
        if hung:
            os.killpg(pid, signal.SIGKILL)
        _, status_, usage = os.wait4(pid, 0)
        told = [file.seek(0) or file.read(1 << 22).decode(errors="replace") for file in (out, err)]
        sizes = [os.fstat(file.fileno()).st_size for file in (out, err)]
    code = None if hung else os.waitstatus_to_exitcode(status_)
    answer = [case["number"], code, *told, max(sizes), usage.ru_maxrss, time.monotonic() - started]
    print(json.dumps(answer), flush=True)
