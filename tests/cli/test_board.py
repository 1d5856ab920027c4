"""`launch board` as a user starts it: the address leads to the page, and Ctrl-C ends it."""

import http.client
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from urllib.parse import urlsplit


def ask(address, path, **headers):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", path, headers=headers)
    with closing(connection), connection.getresponse() as answer:
        return answer.status, answer.getheader("set-cookie"), answer.read()


def test_the_address_that_is_printed_leads_to_the_page(desk):
    desk.run().succeeded()
    command = [sys.executable, "-m", "launcher.cli.main", "board", "--no-open", "last"]
    here = {name: value for name, value in desk.env.items() if name != "SSH_CONNECTION"}
    with subprocess.Popen(
        command, env=here, cwd=desk.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as board:
        try:
            address = urlsplit(board.stdout.readline().strip())
            assert address.hostname == "127.0.0.1"
            assert address.fragment == "/run/job-abcd"
            status, cookie, page = ask(address, f"/?{address.query}")
            assert status == 200
            assert b"<title>launch board</title>" in page
            assert ask(address, "/", Cookie=cookie.split(";")[0]) == (200, None, page)
            assert ask(address, "/")[0] == 401
        finally:
            board.send_signal(signal.SIGINT)
        assert board.wait(60) == 0
        assert board.stderr.read() == "Ctrl-C ends it; runs go on\n"


def test_a_port_that_cannot_be_is_said(desk):
    said = desk.launch("board", "--no-open", "--port", "65536", check=2).stderr
    assert "expected a port, 0 to 65535" in said


def test_runs_are_exported_without_a_server(desk):
    desk.run().succeeded().log(0, "hello\n")
    said = desk.launch("board", "--export", "page", "job-abcd")
    assert said.stdout == "page/index.html\n"
    assert "hello" in (desk.root / "page" / "index.html").read_text()
    probe = "import launcher.apps.board.export, sys; sys.exit('starlette' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_which_runs_are_exported_is_said_together_with_where(desk):
    assert "launch board --export page last" in desk.launch("board", "--export", "page", check=2).stderr


def test_a_run_that_the_page_is_to_begin_with_has_to_be_one(desk):
    desk.run().succeeded()
    assert "did you mean job-abcd?" in desk.launch("board", "--no-open", "job-abce", check=3).stderr


def test_the_browser_is_led_there_by_a_file_that_only_its_user_can_read(desk):
    """A command line is for everybody to see."""
    programs, seen = desk.root / "programs", desk.root / "seen"
    programs.mkdir()
    opener = programs / "xdg-open"
    # The test waits for `seen`, so that it is there as a whole.
    opener.write_text(
        f'#!/bin/sh\n{{ echo "$#"; stat -c %a "$1"; cat "$1"; }} > {seen}.draft\nmv {seen}.draft {seen}\n'
    )
    opener.chmod(0o755)
    drafts = desk.root / "tmp"
    drafts.mkdir()
    path = f"{programs}{os.pathsep}{desk.env['PATH']}"
    here = {name: value for name, value in desk.env.items() if name != "SSH_CONNECTION"}
    env = {**here, "PATH": path, "DISPLAY": ":0", "TMPDIR": str(drafts)}
    command = [sys.executable, "-m", "launcher.cli.main", "board"]
    with subprocess.Popen(command, env=env, cwd=desk.root, stdout=subprocess.PIPE, text=True) as board:
        try:
            address = board.stdout.readline().strip()
            bound = time.monotonic() + 60
            while not seen.exists():
                assert time.monotonic() < bound
                time.sleep(0.05)
            words, mode, page = seen.read_text().split("\n", 2)
            assert (words, mode) == ("1", "600")
            assert f"url={address}" in page
            assert len([*drafts.glob("launch-board-*")]) == 1
            assert ask(urlsplit(address), f"/?{urlsplit(address).query}")[0] == 200
            assert [*drafts.glob("launch-board-*")] == []  # the browser has come
        finally:
            board.send_signal(signal.SIGINT)
        assert board.wait(60) == 0
