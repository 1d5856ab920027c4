"""Help, errors and exit codes of the command line as a whole."""

import os
import signal
import subprocess
import sys

import pytest

from launcher import __version__
from launcher.cli.main import COMMANDS
from launcher.errors import Exit


def test_help_names_every_command_and_exit_code(desk):
    text = desk.launch("--help").stdout
    assert all(f"  {name} " in text for name in COMMANDS)
    codes = text.partition("exit codes:")[2]
    assert all(f"{int(code)} " in codes for code in Exit)
    assert desk.launch("-h").stdout == desk.launch("help").stdout == text


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_of_a_command_teaches_by_example(desk, command):
    text = desk.launch(command, "--help").stdout
    assert text.startswith(f"usage: launch {command}")
    assert f"launch {command}" in text.partition("examples:")[2]


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
        (("logs", "x", "--rank", "two"), "expected a rank such as 0, got 'two'"),
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


def _sabotage(root):
    """A broken module in the place of one of ours."""
    (root / "sitecustomize.py").write_text(
        "import sys, types\n"
        "class Broken(types.ModuleType):\n"
        "    def __getattr__(self, name): raise ZeroDivisionError('sabotaged')\n"
        "sys.modules['launcher.cli.log_lines'] = Broken('launcher.cli.log_lines')\n"
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
    assert process.wait(30) == 128 + signal.SIGPIPE


def test_ctrl_c_ends_without_a_traceback(desk):
    desk.run().running().log(0, "line\n")
    words = [sys.executable, "-m", "launcher.cli.main", "logs", "last", "-f", "--json"]
    with subprocess.Popen(words, env=desk.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == Exit.INTERRUPTED
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
