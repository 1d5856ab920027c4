"""The README is one screen and does what it says: its commands run, and its spec is the shipped one."""

import re
import shutil

import pytest

from launcher.spec.read import parse_spec, read_spec
from tests.docs.blocks import ROOT, blocks
from tests.sizes import NIGHTLY

README = ROOT / "README.md"
# It prints the same lines after few steps; what it learns in all of them: tests/jobs/test_shipped_jobs/py
STEPS = 140 if NIGHTLY else 20


@pytest.fixture
def checkout(lab):
    """A project like a clone of this one, with a state folder of its own."""
    for name in ("jobs", "templates"):
        shutil.copytree(ROOT / name, lab.project / name)
    spec = lab.project / "jobs" / "resnet_ddp.yaml"
    text = spec.read_text()
    assert text.count("max-steps: 140\n") == 1
    spec.write_text(text.replace("max-steps: 140\n", f"max-steps: {STEPS}\n"))
    return lab


def shell(lab, command):
    words = command.removeprefix("uv run ").split()
    assert words[0] == "launch", command
    return lab.launch(*words[1:], timeout=600)


def shape(line):
    """A line of output without what differs from run to run."""
    return re.sub(
        r"\s+", " ", re.sub(r"[0-9a-f]{64}|resnet-ddp-\w+|[0-9][0-9:.]*[0-9]?m? ?\d*s?|^RUN +", "N", line)
    ).strip()


@pytest.mark.timeout(900)
def test_the_first_screen(checkout):
    """All three commands, in order, print what it shows; with the job of the YAML above them."""
    shown = parse_spec(blocks(README, "yaml")[0], "README.md")
    assert shown == read_spec(ROOT / "jobs" / "resnet_ddp.yaml")
    [console] = blocks(README, "console")
    for part in console.split("$ ")[1:]:
        command, *lines = part.strip().splitlines()
        done = shell(checkout, command.replace("max-steps=150", f"max-steps={STEPS + 10}"))
        said = {shape(line) for line in (done.stdout + done.stderr).splitlines()}
        wanted = [line for line in lines if line != "..."]
        assert wanted, command
        assert [line for line in wanted if shape(line) not in said] == [], f"{command}\n{done.stdout}\n{done.stderr}"
    checkout.launch("wait", "last")


def test_it_is_one_screen_and_leads_to_every_page():
    text = README.read_text()
    assert len(text.splitlines()) <= 70
    of_the_site = (ROOT / "launcher" / "docs" / "zensical.toml").read_text()
    pages = re.findall(r'"(launcher/docs/[\w-]+\.md)"', of_the_site)
    assert len(pages) > 10
    assert [page for page in pages if f"({page})" not in text] == []
