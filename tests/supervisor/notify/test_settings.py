"""The user's own settings, what they and a spec make together, and that no problem shows an address."""

import sys

import pytest

from launcher.errors import BadInput
from launcher.spec.model import NotifyOptions
from launcher.spec.read import parse_spec
from launcher.supervisor.notify.record import MailServer
from launcher.supervisor.notify.settings import notifying_of

HOOK = "https://hooks.example.org/services/s3cr3t"


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config" / "launch" / "notify.yaml"

    def write(text, mode=0o600):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        return file

    return write


def of(project, notify="", **environ):
    spec = parse_spec(f"name: a\nrun: {{script: t.py}}\n{notify and f'notify: {notify}'}\n", "job.yaml").notify
    return notifying_of(spec, project / "job.yaml", project, environ)


def refused(project, notify="", **environ):
    with pytest.raises(BadInput) as error:
        of(project, notify, **environ)
    assert "s3cr3t" not in str(error.value)
    return error.value.lines


def test_nobody_hears_where_nobody_is_named(settings, tmp_path):
    assert of(tmp_path) is None
    settings("on: ended\n")
    assert of(tmp_path) is None


def test_a_spec_names_a_variable_or_a_file(settings, tmp_path):
    (tmp_path / "hook").write_text(f"{HOOK}2\n")
    what = of(
        tmp_path, "{to: [{slack: HOOK}, {slack: {file: hook}}, {slack: HOOK}, {email: me@example.org}]}", HOOK=HOOK
    )
    assert [(one.id, one.address) for one in what.recipients] == [
        ("slack-1", HOOK), ("slack-2", f"{HOOK}2"), ("email-1", "me@example.org"),
    ]  # fmt: skip
    assert (what.on, what.restarts, what.stalled_after_s) == (("started", "restarted", "stalled", "ended"), 3, 600.0)


def test_settings_hold_for_what_a_spec_does_not_say(settings, tmp_path):
    settings(f"to: [{{json: '{HOOK}'}}]\non: ended\nrestarts: 7\nstalled_after: 1h\n")
    what = of(tmp_path, "{restarts: 1}")
    assert ([one.address for one in what.recipients], what.on) == ([HOOK], ("ended",))
    assert (what.restarts, what.stalled_after_s) == (1, 3600.0)
    assert [one.kind for one in of(tmp_path, "{to: [{command: [true]}]}").recipients] == ["command"]
    assert of(tmp_path, "{to: []}") is None


def test_who_takes_mail(settings, tmp_path):
    file = settings(
        "smtp: {host: mail.example.org, user: me, password: {file: pass}, from: a@example.org, port: 465}\n"
    )
    (file.parent / "pass").write_text("s3cr3t\n")
    what = of(tmp_path, "{to: [{email: me@example.org}]}")
    assert what.mail == MailServer("mail.example.org", 465, "me", "s3cr3t", "a@example.org")
    assert "s3cr3t" in what.secrets() and "s3cr3t" not in repr(what)
    assert of(tmp_path, "{to: [{command: [true]}]}").mail is None


def test_what_is_not_set_is_told_for_all(settings, tmp_path):
    assert refused(tmp_path, "{to: [{slack: A}, {json: {file: b}}]}") == (
        f"{tmp_path}/job.yaml: notify: slack: A is not set",
        "hint: export A=..., or keep it in a file: slack: {file: PATH}",
        f"{tmp_path}/job.yaml: notify: json: b cannot be read",
    )


@pytest.mark.parametrize("value", ["s3cr3t", "ftp://s3cr3t", "https://[s3cr3t", "https://host:99999/s3cr3t", ""])
def test_what_is_no_address_is_refused(settings, tmp_path, value):
    assert refused(tmp_path, "{to: [{slack: A}]}", A=value) == (
        "notify: slack: expected an address such as https://host/path in A",
    )


@pytest.mark.parametrize(
    "notify",
    [
        f"{{to: [{{slack: '{HOOK}'}}]}}",
        f"{{to: ['{HOOK}']}}",
        f"{{to: '{HOOK}'}}",
        f"{{to: [{{slack: ['{HOOK}']}}]}}",
        f"{{to: [{{slack: {{file: [a], url: '{HOOK}'}}}}]}}",
        "{to: [{slack: s3cr3t-text}]}",
    ],
)
def test_an_address_in_a_spec_is_refused_and_not_shown(tmp_path, notify):
    with pytest.raises(BadInput) as error:
        parse_spec(f"name: a\nrun: {{script: t.py}}\nnotify: {notify}\n", "job.yaml")
    assert "s3cr3t" not in str(error.value)


def test_a_kind_that_is_none_has_a_hint():
    with pytest.raises(BadInput) as error:
        parse_spec("name: a\nrun: {script: t.py}\nnotify: {to: [{slak: A}]}\n", "job.yaml")
    assert error.value.lines == (
        "job.yaml:3:16: notify.to[0].slak: unknown kind of recipient", "hint: did you mean slack?",
    )  # fmt: skip


def test_problems_of_the_settings_name_their_place(settings, tmp_path):
    file = settings("to: [{slack: [a]}]\non: never\nsmtp: {port: 0}\n")
    lines = [line for line in refused(tmp_path) if not line.startswith("hint")]
    assert [line.partition(": expected")[0].partition(": missing")[0] for line in lines] == [
        f"{file}:1:14: to[0].slack", f"{file}:2:5: on", f"{file}:3:7: smtp.host", f"{file}:3:14: smtp.port",
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "words"), [(0o644, "others can read it"), (0o620, "others can write it")])
def test_settings_that_others_can_read_or_write_are_refused(settings, tmp_path, mode, words):
    settings(f"to: [{{slack: '{HOOK}'}}]\n", mode)
    [problem, hint] = refused(tmp_path)
    assert words in problem and hint.startswith("hint: chmod")


def test_the_default_spec_says_nothing(settings, tmp_path):
    assert notifying_of(NotifyOptions(), tmp_path, tmp_path, {}) is None


def test_an_apprise_url_is_a_secret_of_a_kind_that_apprise_knows(settings, tmp_path):
    what = of(tmp_path, "{to: {apprise: NTFY}}", NTFY="ntfy://s3cr3t-topic")
    assert [(one.id, one.kind, one.address) for one in what.recipients] == [
        ("apprise-1", "apprise", "ntfy://s3cr3t-topic")
    ]
    [problem, hint] = refused(tmp_path, "{to: {apprise: NTFY}}", NTFY="nosuch://s3cr3t-topic")
    assert problem == "notify: apprise: expected a URL that apprise knows, such as ntfy://TOPIC in NTFY"
    assert hint.startswith("hint: https://appriseit.com")
    settings("to: {apprise: 'ntfy://s3cr3t-topic'}\n")
    assert [one.address for one in of(tmp_path).recipients] == ["ntfy://s3cr3t-topic"]


def test_an_apprise_url_does_not_stand_in_a_spec(settings, tmp_path):
    with pytest.raises(BadInput, match="an address is a secret") as error:
        of(tmp_path, "{to: {apprise: 'ntfy://s3cr3t-topic'}}")
    assert "s3cr3t" not in str(error.value)


def test_where_apprise_is_missing_a_submit_says_how_to_install_it(settings, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)
    monkeypatch.delitem(sys.modules, "launcher.supervisor.notify.by_apprise", raising=False)
    [problem, hint] = refused(tmp_path, "{to: {apprise: NTFY}}", NTFY="ntfy://s3cr3t-topic")
    assert problem == "notify: apprise is not installed"
    assert "apprise" in hint or "notify" in hint
