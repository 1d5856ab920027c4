"""Hostile neighbours for tests: hostile messages, users who read what they may, and how to observe them."""

import io
import json
import os
import random
import stat
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from lab import all_pids, command

from tests.sizes import SEED

OF_THE_RUN = {  # variables of a rank's environment whose values are others in each run
    "LAUNCH_ARTIFACTS", "LAUNCH_RUN_ID", "LAUNCH_RUN_DIR", "LAUNCH_CHECKPOINT_DIR", "LAUNCH_PROGRESS", "LAUNCH_CONTROL",
    "LAUNCH_NOTES_DIR", "MASTER_PORT", "PWD", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE",
}  # fmt: skip
NASTY = [
    "; touch canary", "$(touch canary)", "`touch canary`", "a\nb", "tab\there", "quote'd", 'double"d', "--flag", "-",
    "", " lead and trail ", "*", "~", "$HOME", "\\", "%n%x", "é漢字🎉", "a=b", "#no comment", "| touch canary",
    "&& touch canary", "a,b", "x\\", "\\\\ y", "it's \"both\"", "\\0057", "(null)", "!x", "a # b", "\\n", "%b", "{a,b}",
    "{{x}}", "!!python/object:os.system", "a" * 3000, "../../x", "/etc/passwd", "${IFS}touch${IFS}canary", "!!", "^x^y",
    "#SBATCH --wrap=x",
]  # fmt: skip
CANARY = f"canary-{os.getpid():08x}"  # of these tests alone: all on this machine see what others have in the open

_WITNESS = "import json, os, sys\nprint(json.dumps({'argv': sys.argv[1:], 'env': dict(os.environ)}), flush=True)\n"


def drawn(many, most):
    """Return random words of any characters; the seed decides which."""
    print("seed", SEED)
    draw = random.Random(SEED)
    signs = [*range(32, 127), 9, 0xE9, 0x6F22, 0x1F389]
    return ["".join(chr(draw.choice(signs)) for _ in range(draw.randrange(1, most))) for _ in range(many)]


def witness(desk, resources, args=(), env=None, **more):
    """A spec whose ranks say what reached them; a command of its own finds witness.py beside it."""
    desk.script("witness.py", _WITNESS)
    body = {
        "name": "witness",
        "run": {"script": "witness.py", "args": [*args], "preload": []},
        "env": env or {},
        "resources": resources,
        **more,
    }
    return desk.spec(json.dumps(body, ensure_ascii=False))


def heard(desk, run):
    """Return the output of each rank, by rank."""
    desk.wait(run)
    desk.launch("logs", run)  # brings them here, where they lie elsewhere
    said = [json.loads(line) for line in desk.rank_logs(run).splitlines() if line.startswith("{")]
    return sorted(said, key=lambda one: one["env"]["RANK"])


def below(folder):
    """Return all paths in a folder at any depth; those removed meanwhile may be missing."""
    return [Path(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files)]


def no_canary(*folders):
    for folder in folders:
        assert not [path for path in below(folder) if path.name == "canary"], folder
    assert not [path for path in (Path("/"), Path.cwd(), Path("/tmp"), Path.home()) if (path / "canary").exists()]


def open_to_others(folder):
    """Return the paths that another user could read, write or enter if the folder itself were open."""
    found = []
    for path in [folder, *below(folder)]:
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & 0o077:
                found.append(f"{stat.S_IMODE(mode):o} {path.relative_to(folder)}")
    return found


def files_with(text, *folders):
    found = []
    for folder in folders:
        for path in sorted(below(folder)):
            with suppress(FileNotFoundError):
                if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes():
                    found.append(path)
    return found


@contextmanager
def command_lines():
    """Every command line that any process of this machine has had meanwhile: all its users see them."""
    seen, over = set(), Event()

    def look():
        while not over.wait(0.005):
            seen.update(command(pid) for pid in all_pids())

    watcher = Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def others_see(*folders):
    """Return everything that an arbitrary user can read of processes and in these folders."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    script = 'cat /proc/*/environ /proc/*/cmdline; find "$@" -type f -exec cat {} +'
    done = subprocess.run([*nobody, "sh", "-c", script, "sh", *folders], capture_output=True)
    return done.stdout + done.stderr


def fields_of(value, at=()):
    """Yield the keys that lead to each part of a message: there a test puts a wrong value."""
    if at:
        yield at
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in below:
        yield from fields_of(one, (*at, key))


class Says:
    """Another machine that says this, and no more."""

    who = "node0"

    def __init__(self, said):
        self._said = io.BytesIO(said)

    def feed(self, _data, _limit_s):
        return True

    def read(self, most, _limit_s):
        return self._said.read(most)

    def last_error_lines(self):
        return []

    def close(self):
        pass
