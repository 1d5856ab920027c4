"""Handing over one message: to servers that take it, fail, hang, and to commands; no error has an address in it."""

import json
import os
import socket

import msgspec
import pytest
from listeners import Mail, open_listener

from launcher.plan.secret_values import without_secrets
from launcher.supervisor.notify import delivery
from launcher.supervisor.notify.delivery import NotDelivered, deliver
from launcher.supervisor.notify.message import Message
from launcher.supervisor.notify.record import MailServer, Notifying, Recipient

MESSAGE = Message("ended/1", "ended", "job-1", "job", "job-1 failed: user_error", 0.0, summary="it broke")


def to(kind, address="", argv=(), mail=None):
    recipient = Recipient(f"{kind}-1", kind, address, tuple(argv))
    return recipient, Notifying((recipient,), ("ended",), mail=mail)


def failing(kind, address="", argv=(), mail=None, folder=None, **limits):
    recipient, what = to(kind, address, argv, mail)
    with pytest.raises(NotDelivered) as error:
        deliver(recipient, MESSAGE, what, folder, **limits)
    assert "s3cr3t" not in error.value.text
    return error.value


@pytest.fixture
def nobody():
    """A port on which nobody listens, and that nobody gets."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("kind", ["slack", "discord", "teams", "json"])
def test_a_webhook_is_told(web, tmp_path, kind):
    recipient, what = to(kind, web.address)
    deliver(recipient, MESSAGE, what, tmp_path)
    [(path, said, _)] = web.posts
    assert path == "/services/T0/s3cr3t-path"
    assert "job-1 failed: user_error" in json.dumps(said)


@pytest.mark.parametrize(("code", "again"), [(500, True), (503, True), (429, True), (404, False), (403, False)])
def test_an_answer_says_whether_to_try_again(web, code, again):
    web.answers.append(code)
    error = failing("slack", web.address)
    assert error.again is again
    assert error.text.startswith(f"it answers {code}")


def test_who_asks_for_time_says_how_much(web):
    web.answers.append(429)
    web.headers["Retry-After"] = "7"
    assert failing("slack", web.address).after_s == 7.0


def test_a_redirect_is_not_followed(web):
    web.answers.append(302)
    web.headers["Location"] = "/elsewhere"
    assert failing("slack", web.address).again is False
    assert len(web.posts) == 1


def test_nobody_answers(nobody):
    error = failing("json", f"http://me:s3cr3t@127.0.0.1:{nobody}/s3cr3t")
    assert error.again is True
    assert error.text == "connection refused"


def test_who_hangs_is_left_after_the_limit(web):
    web.hangs.set()
    error = failing("json", web.address, answer_s=0.2)
    assert error.again is True
    assert error.text == "no answer within 0.2 s"


def test_a_login_in_the_address_is_sent_as_one(web, tmp_path):
    recipient, what = to("json", web.address.replace("//", "//me:p%40ss@"))
    deliver(recipient, MESSAGE, what, tmp_path)
    assert web.heads[-1]["Authorization"] == "Basic bWU6cEBzcw=="
    assert web.heads[-1]["Idempotency-Key"] == "job-1/ended/1/json-1"


def test_mail_is_taken(mail, tmp_path):
    server = MailServer("127.0.0.1", mail.port, sender="launch@example.org")
    recipient, what = to("email", "me@example.org", mail=server)
    deliver(recipient, MESSAGE, what, tmp_path)
    [letter] = mail.letters
    assert "Subject: job-1 failed: user_error" in letter and "it broke" in letter
    assert mail.recipients == ["<me@example.org>"]


@pytest.mark.parametrize(("says", "again"), [("550 no such box", False), ("451 later", True)])
def test_mail_is_refused(says, again):
    with open_listener(Mail, says) as mail:
        error = failing("email", "me@example.org", mail=MailServer("127.0.0.1", mail.port))
    assert error.again is again
    assert error.text == f"127.0.0.1 refuses me@example.org: {says}"


def test_a_password_is_not_sent_in_the_clear(mail):
    server = MailServer("127.0.0.1", mail.port, "me", "s3cr3t-password")
    assert failing("email", "me@example.org", mail=server).again is False
    assert mail.letters == []


def test_mail_with_nobody_there(nobody):
    assert failing("email", "me@example.org", mail=MailServer("127.0.0.1", nobody)).again is True


def test_sendmail_takes_mail(tmp_path, monkeypatch):
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/letter\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    recipient, what = to("email", "me@example.org")
    deliver(recipient, MESSAGE, what, tmp_path)
    assert (tmp_path / "words").read_text() == "-t -i\n"
    assert "To: me@example.org" in (tmp_path / "letter").read_text()


def test_no_sendmail(monkeypatch):
    monkeypatch.setattr(delivery.shutil, "which", lambda *_, **__: None)
    error = failing("email", "me@example.org")
    assert error.again is False
    assert "there is no sendmail" in error.text


def test_a_command_gets_the_message(tmp_path):
    recipient, what = to("command", argv=("/bin/sh", "-c", 'cat > said; echo "$LAUNCH_NOTIFY $LAUNCH_RUN_ID" > words'))
    deliver(recipient, MESSAGE, what, tmp_path)
    assert msgspec.json.decode((tmp_path / "said").read_bytes())["title"] == MESSAGE.title
    assert (tmp_path / "words").read_text() == "ended job-1\n"


def test_a_command_that_fails_says_why(tmp_path):
    error = failing("command", argv=("/bin/sh", "-c", "echo first; echo last >&2; exit 3"), folder=tmp_path)
    assert (error.text, error.again) == ("/bin/sh: exit code 3: last", True)


def test_a_command_that_is_not_there(tmp_path):
    error = failing("command", argv=("/no/such/program",), folder=tmp_path)
    assert (error.text, error.again) == ("/no/such/program: no such file or directory", False)


def test_a_command_that_does_not_end_is_ended_with_all_it_started(tmp_path):
    os.mkfifo(tmp_path / "held")
    held = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    try:
        words = ("/bin/sh", "-c", "exec 3> held; sleep 600 & sleep 600")
        assert failing("command", argv=words, folder=tmp_path, command_s=1.0).again is True
        os.set_blocking(held, True)
        assert os.read(held, 1) == b""  # once none of them has it open any more
    finally:
        os.close(held)


def test_labels_name_no_secret():
    cases = {
        ("slack", "https://hooks.slack.com/services/T0/s3cr3t"): "slack hooks.slack.com",
        ("json", "https://me:s3cr3t@example.org:8443/s3cr3t?k=s3cr3t"): "json example.org",
        ("email", "me@example.org"): "email me@example.org",
    }
    for (kind, address), label in cases.items():
        recipient = Recipient("x", kind, address)
        assert recipient.label == label
        assert "s3cr3t" not in repr(Notifying((recipient,), ())) and "s3cr3t" not in str(recipient)
    assert Recipient("x", "command", argv=("/bin/sh", "-c", "curl https://s3cr3t")).label == "command curl"
    assert Recipient("x", "command", argv=("notify-send", "s3cr3t")).label == "command notify-send"


def by_apprise(web):
    return web.address.replace("http://", "json://")


def test_a_service_that_apprise_knows_is_told(web, tmp_path):
    recipient, what = to("apprise", by_apprise(web))
    deliver(recipient, MESSAGE, what, tmp_path)
    [(path, said, _)] = web.posts
    assert path.startswith("/services/T0/s3cr3t-path")
    assert said["title"] == MESSAGE.title and "it broke" in said["message"]


def test_what_apprise_could_not_send_is_tried_again_and_says_why(web, capfd):
    web.answers.append(403)
    error = failing("apprise", by_apprise(web))
    assert error.again is True
    assert "403" in error.text
    assert capfd.readouterr() == ("", "")


def test_an_apprise_url_shows_only_its_scheme():
    recipient = Recipient("apprise-1", "apprise", "tgram://s3cr3t:AAB%2Bcc/s3cr3t2/?thread=s3cr3t3")
    assert recipient.label == "apprise tgram"
    hidden = without_secrets("at s3cr3t of AAB+cc or AAB%2Bcc, s3cr3t2 and s3cr3t3", recipient.secrets())
    assert "s3cr3t" not in hidden and "AAB" not in hidden
