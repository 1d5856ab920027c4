"""`launch board` as a user starts it: the address leads to the page, and Ctrl-C ends it."""

import http.client
import signal
import subprocess
import sys
from contextlib import closing
from urllib.parse import urlsplit


def ask(address, path, **headers):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    connection.request("GET", path, headers=headers)
    with closing(connection), connection.getresponse() as answer:
        return answer.status, answer.getheader("set-cookie"), answer.read()


def test_the_address_that_is_printed_leads_to_the_page(desk):
    command = [sys.executable, "-m", "launcher.cli.main", "board", "--no-open"]
    here = {name: value for name, value in desk.env.items() if name != "SSH_CONNECTION"}
    with subprocess.Popen(
        command, env=here, cwd=desk.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as board:
        try:
            address = urlsplit(board.stdout.readline().strip())
            assert address.hostname == "127.0.0.1"
            status, cookie, _ = ask(address, f"/?{address.query}")
            assert status == 200
            status, _, page = ask(address, "/", Cookie=cookie.split(";")[0])
            assert status == 200
            assert b"<title>launch board</title>" in page
            assert ask(address, "/")[0] == 401
        finally:
            board.send_signal(signal.SIGINT)
        assert board.wait(60) == 0
        assert board.stderr.read() == "Ctrl-C ends it; runs go on\n"


def test_a_port_that_cannot_be_is_said(desk):
    said = desk.launch("board", "--no-open", "--port", "65536", check=2).stderr
    assert "expected a port, 0 to 65535" in said
