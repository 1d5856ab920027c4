"""Hosts with a disk each copy their ranks' files to one store; from there the run goes on when their disks are lost."""

import shutil
import sys

import pytest

from trainer.checkpoint_files.object_store import ObjectStore

pytestmark = pytest.mark.nightly

# Where disks are apart, each of two ranks saves its file of step 10 as the trainer does; elsewhere nothing is saved.
SAVES = """
import json, os
from pathlib import Path
from trainer.checkpoint_files import catalog, commit, fence
from trainer.checkpoint_files.durable import make_folder, sync_folder, write_new
from trainer.checkpoint_files.layout import data_name
from trainer.checkpoint_files.manifest import FileEntry, Manifest

folder, rank = Path(os.environ["LAUNCH_CHECKPOINT_DIR"]), int(os.environ["RANK"])
print("starts from", catalog.steps(folder), flush=True)
if os.environ.get("LAUNCH_DISK") == "apart":
    make_folder(folder)
    mine = fence.take_token(folder, int(os.environ["LAUNCH_ATTEMPT"]), 1)
    draft = commit.begin(folder, 10, mine)
    written = [write_new(draft / data_name(one), [bytes([one]) * 1000]) for one in (0, 1)]
    (draft / data_name(1 - rank)).unlink()
    sync_folder(draft)
    files = tuple(FileEntry(data_name(one), *[two.size, two.digest]) for one, two in enumerate(written))
    manifest = Manifest(10, 2, "0123456789ab", files, {}, {}, apart=True, saved_unix_s=1.0)
    commit.prepare(draft, manifest, mine, away=[data_name(1 - rank)])
    commit.place(draft, manifest, mine)
with open(os.environ["LAUNCH_PROGRESS"], "w") as wire:
    wire.write(json.dumps({"step": 10, "checkpoint": 10}) + chr(10))
"""


def test_what_hosts_have_lost_comes_from_the_store(desk, tmp_path):
    desk.script("saves.py", SAVES)
    spec = desk.spec(
        "name: saves\nrun: {script: saves.py, preload: []}\nresources: {nodes: 2, ranks_per_node: 1}\n"
        f"checkpoint: {{copy_to: 'file://{tmp_path}/store'}}\n"
    )
    # What talks to the store is found where the hosts' own Python has it.
    run = desk.submit(spec, "--on", "pool", "--set", f"ssh.python={sys.executable}")
    desk.wait(run)
    (held,) = ObjectStore(f"file://{tmp_path}/store/{run}").saves()
    assert (held.step, len(held.present), held.missing) == (10, 2, ())
    for index in (0, 1):
        shutil.rmtree(desk.there(index, run, "checkpoints"))
    desk.launch("resume", run, "--on", "local")
    desk.wait(run)
    assert "starts from [10]" in desk.rank_logs(run)
