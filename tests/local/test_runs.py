"""Real runs on this machine, through the real command line."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

# Rank 1 is at it before its peer says so.
FAILS_FIRST = """
import os, pathlib, time
gone = pathlib.Path("gone-" + os.environ["LAUNCH_GENERATION"])
if os.environ["RANK"] == "1":
    gone.touch()
    raise KeyError("mine")
while not gone.exists():
    time.sleep(0.01)
"""
PEER_GONE = "raise RuntimeError('[gloo/transport/tcp/pair.cc:534] Connection closed by peer')\n"


def test_a_run_from_submit_to_success_and_seen_from_any_folder(lab, tmp_path):
    run = lab.submit(lab.chain(args="steps: 20"))
    assert re.fullmatch(r"chain-[a-z0-9]{4,}", run)
    status = lab.wait(run)
    assert (status["state"], status["exit_code"], status["restarts"]["total"]) == ("succeeded", 0, 0)
    assert (status["step"], status["checkpoint"], status["world_size"]) == (20, 20, 2)
    assert status["fingerprint"] in lab.rank_logs(run)
    table = lab.launch("status", cwd=tmp_path).stdout
    assert run in table and "succeeded" in table
    assert json.loads(lab.launch("status", "--json", cwd=tmp_path).stdout)[0]["run"] == run


MEASURES = """
import json, os, signal, time
from pathlib import Path
wire = open(os.environ["LAUNCH_PROGRESS"], "w", buffering=1)
again = os.environ["LAUNCH_GENERATION"] != "1"
kept = Path(os.environ["LAUNCH_RUN_DIR"])
def are_kept():
    return sum(path.read_text().count('"values"') for path in kept.glob("metrics/reported.*"))
before = are_kept()
for step in range(4 if again else 1, 7):
    wire.write(json.dumps({"step": step, "loss": step / 10 if again else step, "said": "x"}) + "\\n")
    before += 1
    while are_kept() < before:
        time.sleep(0.01)
    time.sleep(0.06)  # reports in quick succession are thinned
    if step == 5 and not again:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_script_reports_is_kept_as_it_went_in_the_end(lab):
    lab.script("measures.py", MEASURES)
    spec = "name: m\nrun: {script: measures.py}\nresources: {ranks_per_node: 1}\nrecovery: {no_progress: off}\n"
    run = lab.submit(lab.spec(spec))
    assert lab.wait(run)["restarts"]["total"] == 1
    [found] = json.loads(lab.launch("metrics", run, "--json").stdout)
    assert [(row["step"], row["loss"]) for row in found["rows"]] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 0.4),
        (5, 0.5),
        (6, 0.6),
    ]


HOLDS = """
import os
held = bytearray(os.urandom(1000)) * 300_000
print("held", flush=True)
while True:
    pass
"""


def test_what_a_rank_uses_is_shown(lab):
    lab.script("holds.py", HOLDS)
    run = lab.submit(lab.spec("name: holds\nrun: {script: holds.py}\nresources: {nodes: 2, ranks_per_node: 1}\n"))

    def seen():
        nodes = json.loads(lab.launch("top", run, "--json").stdout)["nodes"]
        ranks = {rank["rank"]: rank for node in nodes for rank in node["ranks"]}
        busy = [rank for rank in ranks.values() if rank["memory"] >= 300_000_000 and rank["cpu"] > 0]
        return ranks if len(busy) == 2 else None

    ranks = lab.until("a sample of both ranks", seen)
    assert all(rank["memory"] < 500_000_000 for rank in ranks.values())
    assert "rank 1" in lab.launch("top", run).stdout
    lab.launch("cancel", run)
    lab.launch("top", run, check=4)


def test_an_interpreter_of_the_project(lab, tmp_path):
    """As the reference has it: relative to the project, wherever one stands."""
    own = lab.project / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text(f'#!/bin/sh\nTHROUGH_IT=1 exec {sys.executable} "$@"\n')
    own.chmod(0o755)
    lab.script("show.py", "import os\nprint('through it:', os.environ['THROUGH_IT'])\n")
    spec = lab.spec("name: own\nrun:\n  script: show.py\n  python: .venv/bin/python\nresources: {ranks_per_node: 1}\n")
    for here in (lab.project, tmp_path, lab.project / ".venv"):
        run = lab.submit(str(lab.project / spec) if here != lab.project else spec, cwd=here)
        assert lab.wait(run)["attempt"] == 1
        assert "through it: 1" in lab.rank_logs(run)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (
            "echo \"TypeError: 'type' object is not subscriptable\" >&2; exit 1",
            "TypeError: 'type' object is not subscriptable",
        ),
        ("exit 3", "it left with exit code 3"),
    ],
)
def test_an_interpreter_that_can_run_no_rank_is_named_and_nothing_is_tried_again(lab, says, why):
    own = lab.project / "python"
    own.write_text(f'#!/bin/sh\ncase "$*" in *zygote.py*) {says};; esac\nexec {sys.executable} "$@"\n')
    own.chmod(0o755)
    lab.script("show.py", "print('hello')\n")
    run = lab.submit(
        lab.spec(f"name: own\nrun: {{script: show.py, python: {own}}}\nresources: {{ranks_per_node: 1}}\n")
    )
    status = lab.wait(run, check=10)
    assert (status["attempt"], status["restarts"]["total"]) == (1, 0)
    assert status["failure"]["summary"] == f"{own} cannot run ranks on node 0: {why}"


def test_three_nodes_are_three_agents_on_addresses_of_their_own(lab):
    run = lab.submit(lab.chain(args="steps: 5", resources="nodes: 3\nranks_per_node: 2"))
    assert lab.wait(run)["world_size"] == 6
    joined = " ".join(event["text"] for event in lab.events(run, "agent_joined"))
    assert all(address in joined for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
    assert all(f"rank {rank} of 6" in lab.rank_logs(run) for rank in range(6))


def test_a_user_error_that_recurs_ends_the_run_with_its_place(lab):
    lab.script("bad.py", "def train():\n    raise ValueError('bad shape (3, 4)')\n\ntrain()\n")
    run = lab.submit(lab.spec("name: bad\nrun:\n  script: bad.py\nresources:\n  ranks_per_node: 2\n"))
    status = lab.wait(run, check=10)
    assert (status["state"], status["cause"]) == ("failed", "user_error")
    assert "ValueError: bad shape (3, 4)" in status["failure"]["summary"]
    assert status["failure"]["where"] == "bad.py:2 in train"
    assert any("ValueError" in line for line in status["failure"]["tail"])
    page = lab.launch("status", run).stdout
    assert page.index("ValueError") < page.index("launch resume")


def test_the_same_crash_at_the_same_step_ends_the_run_with_its_stack(lab):
    lab.script("crash.py", (
        "import json, os, signal\nwire = open(os.environ['LAUNCH_PROGRESS'], 'w', buffering=1)\n"
        "def kernel(step):\n    if step == 3:\n        os.kill(os.getpid(), signal.SIGSEGV)\n\n"
        "for step in range(5):\n    kernel(step)\n    print(json.dumps({'step': step}), file=wire)\n"
    ))  # fmt: skip
    status = lab.wait(
        lab.submit(lab.spec("name: crash\nrun:\n  script: crash.py\nresources: {ranks_per_node: 1}\n")), check=12
    )
    assert (status["cause"], status["restarts"]["total"], status["step"]) == ("killed", 1, 2)
    assert status["message"] == "the same crash at the same step again, without progress"
    assert status["failure"]["summary"] == "rank 0 on node 0 was killed by SIGSEGV (crash.py:5 in kernel)"
    assert status["failure"]["tail"][-2].endswith('crash.py", line 5 in kernel')


@pytest.mark.parametrize(
    ("body", "causes"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "killed"),
        ("import socket\nsocket.create_connection(('127.0.0.1', 1), 1)\n", "user_error"),
        ("raise MemoryError('no more')\n", "out_of_memory"),
        ("import sys\nsys.exit(3)\n", "user_error"),
        (FAILS_FIRST + PEER_GONE, "user_error"),
    ],
)  # fmt: skip
def test_causes_are_named(lab, body, causes):
    lab.script("bad.py", body)
    run = lab.submit(lab.spec(
        "name: bad\nrun:\n  script: bad.py\nresources:\n  ranks_per_node: 2\n"
        "recovery:\n  killed: 1\n  out_of_memory: 1\n  user_error: 1\n  communication: 1\n"
    ))  # fmt: skip
    lab.launch("wait", run, check=None)
    assert lab.status(run)["cause"] == causes


def test_a_command_that_is_not_python(lab):
    (lab.project / "work.sh").write_text('#!/bin/bash\necho shell rank $RANK of $WORLD_SIZE "$1"\n')
    run = lab.submit(lab.spec(
        "name: shell\nrun:\n  command: [bash, work.sh]\n  args: ['a b; echo $HOME']\nresources:\n  ranks_per_node: 2\n"
    ))  # fmt: skip
    lab.wait(run)
    logs = lab.rank_logs(run)
    assert "shell rank 0 of 2 a b; echo $HOME" in logs and "shell rank 1 of 2" in logs


def test_the_cause_of_a_command_is_what_it_has_written_into_its_error_file(lab):
    said = {"message": {"message": "ValueError: no such shard"}}
    body = f"json.dump({said}, open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w'))"
    lab.script("bad.py", f"import json, os, sys\n{body}\nprint('OSError: of no account')\nsys.exit(1)\n")
    run = lab.submit(lab.spec(
        f"name: bad\nrun:\n  command: [{sys.executable}, bad.py]\n"
        "recovery: {user_error: 0}\nresources: {ranks_per_node: 1}\n"
    ))  # fmt: skip
    assert "rank 0 on node 0: ValueError: no such shard" in lab.wait(run, check=10)["failure"]["summary"]


def test_a_package_module(lab):
    (lab.project / "pkg").mkdir()
    (lab.project / "pkg" / "__init__.py").write_text("")
    (lab.project / "pkg" / "other.py").write_text("WORD = 'from the package'\n")
    (lab.project / "pkg" / "main.py").write_text(
        "import sys\nfrom .other import WORD\n\nif __name__ == '__main__':\n    print(WORD, sys.argv[1:])\n"
    )
    run = lab.submit(lab.spec("name: pkg\nrun:\n  module: pkg.main\n  args:\n    lr: 0.1\n    amp: true\n"))
    lab.wait(run)
    assert "from the package ['--lr', '0.1', '--amp']" in lab.rank_logs(run)


def test_setup_runs_once_a_node_before_the_ranks_and_its_failure_is_the_users(lab):
    lab.script("look.py", "print(open('made').read())\n")
    body = "name: setup\nrun:\n  script: look.py\n  setup: |\n    {}\nresources:\n  ranks_per_node: 2\n"
    run = lab.submit(lab.spec(body.format("echo once >> made")))
    lab.wait(run)
    assert lab.rank_logs(run).count("once") == 2
    run = lab.submit(lab.spec(body.format("echo oh no >&2; exit 7")))
    status = lab.wait(run, check=10)
    assert "setup" in status["failure"]["summary"] and "7" in status["failure"]["summary"]


def test_follow_shows_the_log_and_ends_with_the_runs_exit_code(lab):
    done = lab.launch("submit", lab.chain(args="steps: 5"), "--follow")
    assert re.search(r"0:1.*rank 1 of 2 starts at step 0", done.stdout + done.stderr)
    lab.script("bad.py", "raise SystemExit(9)\n")
    done = lab.launch("submit", lab.spec("name: bad\nrun:\n  script: bad.py\n"), "--follow", check=10)
    assert "exit code 9" in done.stderr or "9" in done.stderr


def test_a_repeated_run_knows_which_it_is_when_it_is_resumed_too(lab):
    lab.script(
        "which.py",
        "import os, sys\nprint('repeat', os.environ['LAUNCH_REPEAT'])\nsys.exit(os.environ['LAUNCH_ATTEMPT'] == '1')",
    )
    spec = lab.spec("name: which\nrun: {script: which.py}\nresources: {ranks_per_node: 1}\nrecovery: {user_error: 0}\n")
    _, second = lab.launch("submit", spec, "--repeat", "2").stdout.split()
    lab.wait(second, check=None)
    lab.launch("resume", second)
    lab.wait(second)
    assert lab.rank_logs(second).count("repeat 1") == 2


def test_resume_goes_on_from_the_checkpoint_with_another_world(lab):
    run = lab.submit(lab.chain(args="steps: 100", hold=99))
    lab.until_step(run, 12)
    lab.launch("cancel", run)
    lab.let_go()
    assert lab.status(run)["state"] == "cancelled"
    lab.launch("resume", run, "--set", "resources.ranks_per_node=3", "--set", "run.args.pause=0")
    status = lab.wait(run)
    assert (status["attempt"], status["world_size"], status["step"]) == (2, 3, 100)
    starts = re.findall(r"rank 0 of 3 starts at step (\d+)", lab.rank_logs(run))
    assert int(starts[0]) >= 10


def test_other_users_can_read_nothing_of_a_run(lab):
    before = os.umask(0)
    try:
        run = lab.submit(lab.chain(args="steps: 3"))
        lab.wait(run)
    finally:
        os.umask(before)
    root = lab.run_dir(run)
    ours = [path for path in [root, *root.rglob("*")] if "checkpoints" not in path.parts]
    assert [path for path in ours if path.lstat().st_mode & 0o077 and not path.is_symlink()] == []


def test_a_torch_script_of_a_stranger_runs_unmodified(lab):
    """argparse, LOCAL_RANK, env://, and DataLoader workers by fork and by spawn."""
    lab.script(
        "stranger.py",
        """
import argparse, os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.tensor(float(index * index))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float)
    parser.add_argument("--local-rank", type=int, default=int(os.environ["LOCAL_RANK"]))
    args = parser.parse_args()
    dist.init_process_group("gloo", init_method="env://")
    total = torch.zeros(())
    for method in ("fork", "spawn"):
        for batch in DataLoader(Squares(), batch_size=4, num_workers=1, multiprocessing_context=method):
            total += batch.sum() * args.scale
    dist.all_reduce(total)
    print("total", total.item(), "local rank", args.local_rank, flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
""",
    )
    run = lab.submit(lab.spec(
        "name: stranger\nrun:\n  script: stranger.py\n  args:\n    scale: 0.5\nresources:\n  ranks_per_node: 2\n"
    ))  # fmt: skip
    lab.wait(run)
    logs = lab.rank_logs(run)
    assert "total 2480.0 local rank 0" in logs and "total 2480.0 local rank 1" in logs


def test_the_run_goes_on_when_the_terminal_closes(lab):
    lab.chain(args="steps: 60", hold=59)
    shell = subprocess.Popen(
        ["sh", "-c", f"{sys.executable} -m launcher.cli.main submit job.yaml; sleep 600"],
        cwd=lab.project, env=lab.env, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    run = shell.stdout.readline().strip()
    lab.until_step(run, 2)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL):
        os.killpg(shell.pid, number)
    shell.wait()
    shell.stdout.close()
    lab.let_go()
    assert lab.wait(run)["state"] == "succeeded"
