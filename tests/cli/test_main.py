"""Help, errors and exit codes of the command line as a whole."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import __version__
from launcher.cli.commands import COMMANDS, GROUPS, HEADINGS, INSTEAD, RENAMED, verbs_of
from launcher.errors import Exit
from launcher.states import Cause, exit_of
from tests.waits import until


def test_help_names_every_command_and_exit_code(desk):
    text = desk.launch("--help").stdout
    assert all(f"\n  {name} " in text for names in HEADINGS.values() for name in names)
    listed = [name for names in HEADINGS.values() for name in names]
    assert sorted(listed) == sorted({name.partition(" ")[0] for name in COMMANDS} - {*INSTEAD})
    assert len(HEADINGS["most used"]) == 10 and text.index("most used:") < text.index("manage:")
    assert all(", ".join(verbs_of(group)) in text for group in GROUPS)
    assert not any(f"\n  {older} " in text for older in (*RENAMED, *INSTEAD))
    codes = text.partition("exit codes:")[2]
    assert all(f"{int(code)} " in codes for code in Exit)
    assert desk.launch("-h").stdout == desk.launch("help").stdout == text


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_a_command_teaches_by_example(desk, command):
    text = desk.launch(*command.split(), "--help").stdout
    assert text.startswith(f"usage: launch {command}")
    assert f"launch {command}" in text.partition("examples:")[2]


def test_older_names_do_what_they_did_and_name_the_newer(desk):
    for older, newer in RENAMED.items():
        text = desk.launch(older, "--help").stdout
        assert text.startswith(f"usage: launch {newer}")
        assert f"(older name; now `launch {newer}`)" in " ".join(text.split())
    assert "now `launch edit RUN --tag TAG`" in " ".join(desk.launch("tag", "--help").stdout.split())
    assert desk.launch("schema").stdout == desk.launch("spec", "schema").stdout
    desk.run().succeeded()
    assert desk.launch("pardon", "last").stdout == desk.launch("nodes", "include", "last").stdout


def test_the_commands_of_a_group(desk):
    assert desk.launch("nodes", "--help").stdout == desk.launch("help", "nodes").stdout
    assert "  drain " in desk.launch("nodes", "--help").stdout
    assert desk.launch("help", "nodes", "drain").stdout == desk.launch("nodes", "drain", "--help").stdout
    assert "usage: launch spec COMMAND" in desk.launch("spec", check=2).stderr
    assert "hint: did you mean `launch nodes drain`?" in desk.launch("nodes", "drian", check=2).stderr
    assert "hint: there is init, validate, schema" in desk.launch("spec", "zzz", check=2).stderr


def test_help_by_the_word_that_comes_first(desk):
    assert desk.launch("help", "submit").stdout == desk.launch("submit", "--help").stdout
    assert "no such command or page: 'nope'" in desk.launch("help", "nope", check=2).stderr


def test_words_that_fingers_know(desk):
    """Some do the same, of the others the hint names ours."""
    desk.run().succeeded()
    for word in ("ls", "ps"):
        assert [line.split()[:2] for line in desk.launch(word).stdout.splitlines()] == [
            ["RUN", "STATE"], ["job-abcd", "succeeded"],
        ]  # fmt: skip
    assert "has already ended" in desk.launch("stop", "last").stdout
    for theirs, ours in (("kill", "cancel"), ("tail", "logs"), ("squeue", "status"), ("torchrun", "run")):
        assert f"hint: did you mean `launch {ours}`?" in desk.launch(theirs, check=2).stderr


def test_version(desk):
    assert desk.launch("--version").stdout == f"launch {__version__}\n"


def test_without_a_command(desk):
    done = desk.launch(check=2)
    assert done.stdout == ""
    assert "usage: launch" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("stats",), "did you mean `launch status`?"),
        (("--frobnicate",), "no such command"),
        (("status", "--frobnicate"), "unrecognized arguments"),
        (("logs",), "required: RUN"),
        (("logs", "x", "--rank", "two"), "expected numbers such as 0 or 0,3-5, got 'two'"),
        (("wait", "x", "--timeout", "-1"), "expected seconds"),
        (("wait", "x", "--timeout", "nan"), "expected seconds"),
        (("status", "--watch"), "--watch draws on a terminal"),
        (("submit", "x.yaml", "--follow", "--json"), "--follow does not go with --json"),
    ],
)
def test_a_wrong_command_line(desk, words, told):
    done = desk.launch(*words, check=2)
    assert done.stdout == ""
    assert done.stderr.startswith("launch: ")
    assert told in done.stderr
    assert "hint:" in done.stderr or "does not go" in done.stderr


@pytest.mark.parametrize("command", ["status", "checkpoints", "logs", "wait", "cancel", "resume"])
def test_a_run_that_does_not_exist(desk, command):
    desk.run().succeeded()
    done = desk.launch(command, "jub", check=3)
    assert done.stderr.startswith("launch: 'jub': no such run\nhint: ")


def test_what_a_name_holds_cannot_steer_the_terminal(desk):
    done = desk.launch("status", "\x1b]0;owned\x07\x1b[2J", check=3)
    assert "\x1b" not in done.stderr


def test_a_fault_of_ours_is_one_line_and_a_traceback_on_request(desk):
    run = desk.run().running()
    run.log(0, "x\n")
    blocked = {"PYTHONPATH": str(_sabotage(desk.root))}
    done = desk.launch("logs", "last", check=1, env=blocked)
    assert done.stderr == "launch: internal error: ZeroDivisionError: sabotaged; please report\n"
    told = desk.launch("logs", "last", check=1, env={**blocked, "LAUNCH_DEBUG": "1"}).stderr
    assert "Traceback" in told
    assert told.endswith(done.stderr)


def _sabotage(root, error="ZeroDivisionError('sabotaged')"):
    """A broken module in the place of one of ours."""
    (root / "sitecustomize.py").write_text(
        "import sys, types\n"
        "class Broken(types.ModuleType):\n"
        f"    def __getattr__(self, name): raise {error}\n"
        "sys.modules['launcher.cli.looking.log_lines'] = Broken('launcher.cli.looking.log_lines')\n"
    )
    return root


def test_a_reader_that_leaves_is_no_error(desk):
    desk.run().succeeded().log(0, "line\n" * 100_000)
    words = [sys.executable, "-m", "launcher.cli.main", "logs", "last"]
    process = subprocess.Popen(words, env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(150) == 128 + signal.SIGPIPE


def test_ctrl_c_ends_without_a_traceback(desk):
    desk.run().running().log(0, "line\n")
    words = [sys.executable, "-m", "launcher.cli.main", "logs", "last", "-f", "--json"]
    with subprocess.Popen(words, env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(150) == Exit.INTERRUPTED
        assert process.stderr.read() == b""


def test_a_terminal_that_knows_only_ascii(desk):
    desk.run().succeeded().log(0, "größe │\n")
    done = desk.launch("logs", "last", env={"PYTHONIOENCODING": "ascii"})
    assert "gr??e" in done.stdout


def test_only_the_command_that_is_used_is_imported(desk):
    seen = "import sys; from launcher.cli.main import main; main({!r}); print(*sys.modules, file=sys.stderr)"
    for words, unwanted in (
        (["--help"], ("argparse", "msgspec", "launcher.api")),
        (["status"], ("yaml", "torch", "asyncio")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", seen.format(words)], env=desk.env, capture_output=True, text=True, check=True
        )
        assert not set(unwanted) & set(done.stderr.split()), words


def test_main_gives_the_code_and_does_not_exit():
    done = subprocess.run(
        [sys.executable, "-c", "from launcher.cli.main import main; print(main(['nope']))"],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    assert done.stdout == "2\n"


@pytest.mark.parametrize("command", ["status", "checkpoints", "logs", "wait", "cancel", "resume", "fetch", "pardon"])
@pytest.mark.parametrize("ref", ["", " "])
def test_an_empty_reference_is_bad_input(desk, command, ref):
    desk.run().succeeded()
    done = desk.launch(command, ref, check=2)
    assert done.stderr.startswith("launch: expected the id of a run, got nothing\nhint: ")


def closed(desk, redirection, *words, env=None):
    """What a command gives that was started with descriptors that are closed."""
    line = f'exec "$0" -m launcher.cli.main "$@" {redirection}'
    return subprocess.run(
        ["/bin/sh", "-c", line, sys.executable, *words], env={**desk.env, **(env or {})}, cwd=desk.root,
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", ">/dev/null 2>&-"])
def test_streams_that_are_closed(desk, redirection):
    desk.run().succeeded().log(0, "hello\n")
    for words in (("status",), ("status", "last", "--json"), ("logs", "last")):
        done = closed(desk, redirection, *words)
        assert (done.returncode, done.stderr) == (0, "")
    assert closed(desk, redirection, "status", "none").returncode == 3


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2</dev/null", "2>&-"])
def test_nobody_who_hears_what_is_said_aside(desk, redirection):
    """The answer is the same, and so is the exit code: the disk behind stderr was taken for the command's own."""
    run = desk.run().succeeded()
    (desk.root / "bad.yaml").write_text("name: ]\n")
    for words, code in (
        (("status",), 0),
        (("logs", "last"), 0),
        (("wait", "last"), 0),
        (("status", "none"), 3),
        (("validate", "bad.yaml"), 2),
        (("init", "-o", "new.yaml"), 0),
        (("nonsense",), 2),
        ((), 2),
    ):
        assert closed(desk, redirection, *words).returncode == code, words
    assert closed(desk, redirection, "status", "last").stdout.startswith(run.run.id)
    assert closed(desk, f">/dev/full {redirection}", "status", "last").returncode == 4
    broken = {"PYTHONPATH": str(_sabotage(desk.root))}
    assert closed(desk, redirection, "logs", "last", env=broken).returncode == 1


def test_a_reader_of_what_is_said_aside_that_leaves(desk):
    desk.run().succeeded()
    reading, writing = os.pipe()
    os.close(reading)
    for words, code in ((("status",), 0), (("status", "none"), 3), (("nonsense",), 2)):
        line = [sys.executable, "-m", "launcher.cli.main", *words]
        done = subprocess.run(line, env=desk.env, stdout=subprocess.DEVNULL, stderr=writing, timeout=150, check=False)
        assert done.returncode == code
    os.close(writing)


def test_a_full_disk_behind_stdout(desk):
    desk.run().succeeded()
    done = closed(desk, ">/dev/full", "status", "last")
    assert (done.returncode, done.stderr) == (4, "launch: no space left on device\nhint: free some space there\n")


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "<&- >&-", "<&- >&- 2>&-"])
def test_a_run_that_is_submitted_with_closed_streams_runs(desk, redirection):
    (desk.root / "job.yaml").write_text("name: tiny\nrun:\n  command: 'true'\nresources: {ranks_per_node: 1}\n")
    assert closed(desk, redirection, "submit", "job.yaml").returncode == 0
    assert desk.launch("wait", "last").stdout.endswith(" succeeded: all ranks have finished\n")


@pytest.mark.parametrize(
    ("env", "code", "told"),
    [
        ({"XDG_STATE_HOME": "", "HOME": "there"}, 2, "launch: HOME: expected an absolute path, got 'there'\n"),
        ({"XDG_STATE_HOME": "state"}, 2, "launch: XDG_STATE_HOME: expected an absolute path, got 'state'\n"),
        ({"XDG_STATE_HOME": "", "HOME": "/proc/nowhere"}, 4, "launch: /proc/nowhere: no such file or directory\n"),
        ({"XDG_STATE_HOME": "", "HOME": "/dev/null"}, 4, "launch: /dev/null: not a directory\nhint: XDG_STATE_HOME "),
        ({"LAUNCH_RUNS": "/proc/nowhere"}, 2, "launch: LAUNCH_RUNS: /proc/nowhere: cannot be made: "),
        ({"LAUNCH_RUNS": "/proc/version"}, 2, "launch: LAUNCH_RUNS: /proc/version: cannot be made: "),
    ],
)  # fmt: skip
def test_a_place_where_nothing_can_be_kept(desk, env, code, told):
    (desk.root / "job.yaml").write_text("name: tiny\nrun:\n  command: 'true'\n")
    done = desk.launch("submit", "job.yaml", check=code, env=env)
    assert done.stderr.startswith(told)
    assert "hint: " in done.stderr
    assert "report" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("runs/job-abcd/state.json", "hint: LAUNCH_RUNS names another folder for what is kept\n"),
        ("elsewhere/.launch/runs/job-abcd", "hint: LAUNCH_RUNS names another folder for what is kept\n"),
        ("state/launch/runs", "hint: XDG_STATE_HOME names another folder for what is kept\n"),
        ("project/train.py", ""),
        ("elsewhere/.launch/job.schema.json", ""),
    ],
)
def test_only_of_what_is_kept_a_hint_says_how_to_keep_it_elsewhere(desk, path, hint):
    desk.run().running().log(0, "x\n")
    file = desk.root / path
    broken = f"PermissionError(13, 'Permission denied', {str(file)!r})"
    env = {"PYTHONPATH": str(_sabotage(desk.root, broken)), "LAUNCH_RUNS": str(desk.root / "runs")}
    assert desk.launch("logs", "last", check=4, env=env).stderr == f"launch: {file}: permission denied\n{hint}"


def test_a_disk_without_space(desk, tmp_path):
    """A run of which nothing could be written: what is in the way, and where."""
    small = tmp_path / "small"
    small.mkdir()
    words = ["unshare", "-rm", "/bin/sh", "-c", 'mount -t tmpfs -o size=8k none "$0" && exec "$@"', str(small)]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    (desk.root / "job.yaml").write_text("name: tiny\nrun:\n  command: 'true'\n")
    (desk.root / "large.bin").write_bytes(b"x" * 100_000)
    done = subprocess.run(
        [*words, sys.executable, "-m", "launcher.cli.main", "submit", "job.yaml"], cwd=desk.root,
        env={**desk.env, "LAUNCH_RUNS": str(small)}, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.startswith(f"launch: {small}")
    assert done.stderr.endswith(": no space left on device\nhint: free some space there\n")
    until(
        "the supervisor that stood by to leave", lambda: not any(str(small).encode() in one for one in environments())
    )


def environments():
    """Yield the environments of all processes of this machine."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def test_every_cause_has_an_exit_code_of_its_own():
    codes = [exit_of(cause) for cause in Cause]
    assert min(codes) >= Exit.USER_ERROR
    assert len({*codes}) == len(codes)
