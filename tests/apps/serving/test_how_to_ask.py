"""The file with the token and the line that asks a server."""

import shlex

import pytest

from launcher.apps.serving.how_to_ask import curl_line, read_token, write_header
from launcher.apps.web.listening import listen
from launcher.errors import BadInput

TOKEN = "t" * 32


def test_the_token_is_in_a_file_that_its_user_alone_reads_and_in_no_command_line(tmp_path):
    header = write_header(tmp_path / "serving", "8000", TOKEN)
    assert (header.stat().st_mode & 0o777, header.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    line = curl_line("http://127.0.0.1:8000", header, {"text": "it's"}, tmp_path)
    assert shlex.split(line) == [
        "curl", "http://127.0.0.1:8000/predict", "-H", f"@{header}", "-H", "Content-Type: application/json",
        "-d", '{"text":"it\'s"}',
    ]  # fmt: skip
    assert read_token(header) == TOKEN


def test_a_long_example_is_read_from_a_file(tmp_path):
    line = shlex.split(curl_line("https://here:1", None, [0] * 1000, tmp_path, tmp_path / "cert.pem"))
    assert line[:4] == ["curl", "--cacert", str(tmp_path / "cert.pem"), "https://here:1/predict"]
    assert line[-1] == f"@{tmp_path / 'example.json'}"
    assert (tmp_path / "example.json").read_text() == f"[{','.join('0' * 1000)}]"


def test_a_service_without_an_example_is_asked_how_it_is(tmp_path):
    assert curl_line("http://here:1", tmp_path / "x", None, tmp_path) == "curl http://here:1/health"


@pytest.mark.parametrize("text", ["short\n", "Authorization: Bearer short\n", "\n" + TOKEN])
def test_a_token_is_no_shorter_than_can_be_guessed(tmp_path, text):
    (tmp_path / "token").write_text(text)
    with pytest.raises(BadInput, match="at least 16 characters"):
        read_token(tmp_path / "token")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0"])
def test_no_server_listens_on_all_addresses_of_a_machine(host):
    with pytest.raises(BadInput, match="expected one address"):
        listen(host, 0).close()
