"""`launch predict --on` a pool of hosts with disks of their own: the checkpoint goes there, the answers come here."""

import json
import sys

import pytest

pytestmark = pytest.mark.nightly

SPEC = """
name: words
run:
  module: trainer.tasks.gpt
  args: {layers: 1, width: 16, heads: 2, context: 32, max-steps: 2, batch-size: 4, strategy: none, text: some.txt}
resources: {ranks_per_node: 1}
"""


@pytest.mark.timeout(600)
def test_two_hosts_answer_as_this_machine_does(desk):
    (desk.project / "some.txt").write_text("".join(f"line {number}\n" for number in range(2000)))
    run = desk.submit(desk.spec(SPEC))
    desk.wait(run)
    desk.wait(desk.launch("predict", run, "-o", "here.jsonl").stdout.strip())
    there = ("--on", "pool", "--set", f"ssh.python={sys.executable}", "--set", "resources.nodes=2")
    job = desk.launch("predict", run, "-o", "there.jsonl", "--follow", *there, timeout=500).stdout.split()[0]
    assert len(json.loads(desk.launch("status", job, "--json").stdout)["nodes"]) == 2
    assert (desk.project / "there.jsonl").read_bytes() == (desk.project / "here.jsonl").read_bytes()
    assert (desk.project / "there.jsonl.about.json").read_bytes() == (
        desk.project / "here.jsonl.about.json"
    ).read_bytes()
    said = desk.launch("predict", run, "-o", "there.jsonl", *there, check=4).stderr
    assert "there.jsonl: is there already" in said
