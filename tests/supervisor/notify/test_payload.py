"""A message in the words of each kind of recipient."""

import json

import pytest

from launcher.supervisor.notify.delivery import body, mail
from launcher.supervisor.notify.message import Message

LONG = tuple(f"line {number} " + "x" * 200 for number in range(200))


def message(**more):
    words = {"summary": "it broke", "tail": ("Traceback", "ValueError: <!channel> & ```"), "next": "launch resume x"}
    return Message("ended/1", "ended", "job-1", "job", "job-1 failed: user_error", 0.0, **{**words, **more})


def test_slack_shows_no_mention_and_one_block():
    text = json.loads(body("slack", message()))["text"]
    assert text.startswith("*job-1 failed: user_error*\nit broke\nnext: launch resume x\n```\n")
    assert "&lt;!channel&gt; &amp; '''" in text
    assert text.count("```") == 2


def test_discord_mentions_nobody():
    said = json.loads(body("discord", message(tail=("@everyone",))))
    assert said["allowed_mentions"] == {"parse": []}
    assert "**job-1 failed: user_error**" in said["content"] and "@everyone" in said["content"]


@pytest.mark.parametrize(("kind", "key", "most"), [("slack", "text", 3000), ("discord", "content", 2000)])
def test_of_a_long_log_the_end_is_sent(kind, key, most):
    text = json.loads(body(kind, message(tail=LONG)))[key]
    assert len(text) <= most
    assert LONG[-1] in text and text.startswith("*") and text.endswith("\n```")
    assert len(json.loads(body(kind, message(summary="y" * 9999)))[key]) <= most


def test_teams_gets_a_card():
    [card] = json.loads(body("teams", message()))["attachments"]
    assert card["contentType"] == "application/vnd.microsoft.card.adaptive"
    assert [block["text"] for block in card["content"]["body"]] == [
        "job-1 failed: user_error", "it broke", "next: launch resume x", "Traceback\nValueError: <!channel> & ```",
    ]  # fmt: skip


def test_plain_json_has_all_and_only_numbers():
    said = json.loads(body("json", message(metrics={"loss": float("nan"), "acc": 0.5})), parse_constant=pytest.fail)
    assert said["metrics"] == {"loss": None, "acc": 0.5}
    assert (said["run"], said["key"], said["kind"]) == ("job-1", "ended/1", "ended")
    assert said["text"].splitlines()[0] == said["title"]


def test_a_letter_has_one_line_as_its_subject():
    letter = mail(message(), "launch@host", "me@example.org")
    assert letter["Subject"] == "job-1 failed: user_error"
    assert letter["To"] == "me@example.org"
    assert letter.get_content().splitlines()[-1] == "next: launch resume x"
    odd = mail(Message("k", "ended", "r", "r", "a\nBcc: you@example.org", 0.0), "launch@host", "me@example.org")
    assert odd["Bcc"] is None and odd["Subject"] == "a Bcc: you@example.org"
