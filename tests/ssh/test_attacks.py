"""Bad neighbours on plain hosts: hostile values, environments and folders, strangers at ports, and what all may see."""

import io
import json
import os
import random
import socket
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hostile import (
    CANARY,
    NASTY,
    OF_THE_RUN,
    command_lines,
    drawn,
    files_with,
    heard,
    no_canary,
    open_to_others,
    others_see,
    witness,
)

from launcher.copies.mirror import tails
from launcher.errors import LaunchError
from launcher.places.ssh.host.server import HostServer
from launcher.places.ssh.host_client import HostClient, Place
from launcher.places.ssh.messages import AskReport, AskTails, Request, RunReport
from launcher.places.ssh.submit import report
from launcher.remote.rpc.server import answer_all
from launcher.remote.rpc.wire import Incoming, Reply, decoded, encoded
from launcher.run.layout import RunDir
from launcher.spec.model import SshHost
from launcher.states import State
from launcher.wire.frames import proof_of, wire_key
from launcher.wire.messages import WIRE_VERSION
from tests.lab.hosts import UIDS
from tests.sizes import SCALE, SEED

pytestmark = pytest.mark.nightly

PLACED = {"nodes": 2, "ranks_per_node": 1}
OF_THE_HOST = {"MASTER_ADDR", "SSH_CONNECTION", "SSH_CLIENT", "TMPDIR"}


@pytest.mark.daily
def test_ranks_get_the_same_bytes_as_on_one_machine(desk, hosts, tmp_path):
    """Arguments and variables, as arguments of a script and as a command of their own."""
    words = NASTY + drawn(400 * SCALE, 40)
    env = {f"T_{number}": word for number, word in enumerate(words)}
    spec = witness(desk, PLACED, words, env)
    theirs, ours = heard(desk, desk.submit(spec, "--on", "pool")), heard(desk, desk.submit(spec))
    for here, there in zip(ours, theirs, strict=True):
        assert here["argv"] == there["argv"] == words
        assert [{name: one["env"].get(name) for name in env} for one in (here, there)] == [env, env]
    own = {"command": ["/usr/bin/python3", "witness.py", *NASTY]}
    theirs = heard(desk, desk.submit(witness(desk, PLACED, run=own), "--on", "pool"))
    assert [one["argv"] for one in theirs] == [NASTY, NASTY]
    no_canary(tmp_path, hosts.folder)


POISON = {
    "SLURM_NTASKS": "99", "SLURM_JOB_ID": "4711", "SLURM_NODELIST": "node3", "SLURM_PROCID": "5",
    "SBATCH_TIMELIMIT": "7",
    "SRUN_CPUS_PER_TASK": "3", "PMI_RANK": "4", "PMIX_RANK": "4", "OMPI_COMM_WORLD_RANK": "4",
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1", "RANK": "7", "WORLD_SIZE": "99", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "4",
    "NODE_RANK": "4", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "9", "PET_NNODES": "3",
    "LAUNCH_RUN_DIR": "/tmp", "LAUNCH_ATTEMPT": "9", "LAUNCH_NODE": "3", "LAUNCH_DISK": "shared", "LAUNCH_GRACE_S": "1",
    "SUBMITIT_EXECUTOR": "local", "ROLE_RANK": "4",
}  # fmt: skip
OF_THE_CALLER = {"LD_LIBRARY_PATH": "/x", "PYTHONPATH": "/x", "PYTHONHASHSEED": "7", "LC_ALL": "tlh", "BASH_ENV": "/x"}


def test_poisoned_environments_make_the_same_ranks(desk, hosts, tmp_path):
    """The caller's, of which nothing is sent, and a host's, whose shell files also talk, and open all to all."""
    spec = witness(desk, PLACED)
    clean = heard(desk, desk.submit(spec, "--on", "pool"))
    exports = "".join(f"export {name}={value}\n" for name, value in POISON.items())
    for index in range(4):
        (hosts.home(index) / ".bashrc").write_text(f"{exports}umask 000\necho welcome to node{index}\necho oops >&2\n")
    before = os.umask(0)
    try:
        run = desk.submit(spec, "--on", "pool", env=POISON | OF_THE_CALLER | {"PYTHONPATH": ""})
        poisoned = heard(desk, run)
    finally:
        os.umask(before)
    for one, other in zip(clean, poisoned, strict=True):
        ours, theirs = (
            {name: value for name, value in each["env"].items() if name not in OF_THE_RUN | OF_THE_HOST}
            for each in (one, other)
        )
        assert ours == theirs
    assert not open_to_others(desk.run_dir(run))
    for index in (0, 1):
        assert not open_to_others(hosts.home(index) / "launch" / "runs")


def tree(folder):
    return sorted((str(path.relative_to(folder)), path.lstat().st_size) for path in folder.rglob("*"))


def test_links_and_folders_that_were_there_before(desk, hosts):
    """Nothing is written, read or removed through a link that somebody laid between our own things."""
    outside = hosts.home(0) / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "file").write_text("theirs")
    for kind in ("runs", "code", "lib"):
        folder = hosts.home(0) / "launch" / kind
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in (".tmp-", ".tmp-x,y,1,1,00000000", ".tmp-node0,dead,1,1,00000000", "chain-aaaa"):
            (folder / name).symlink_to(hosts.place / "home" / "outside")
    before = tree(outside)
    try:
        status = desk.wait(desk.submit(desk.job(3), "--on", "pool"))
    finally:
        for link in hosts.home(0).glob("launch/*/*"):
            if link.is_symlink():
                link.unlink()
    assert [node["host"] for node in status["nodes"]] == ["node0", "node1"]
    assert tree(outside) == before


def test_a_folder_that_somebody_else_can_write_is_not_used(desk, hosts):
    """Whoever owns it could have us run their code."""
    cases = [(kind, who) for kind in ("", "runs", "code", "lib") for who in ((UIDS["ann"], 0o700), (0, 0o777))]
    spec = desk.job(3)
    for kind, (owner, bits) in random.Random(SEED).sample(cases, min(len(cases), 2 * SCALE)):
        folder = hosts.home(0) / "launch" / kind
        folder.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
        os.chown(folder, owner, owner)
        folder.chmod(bits)
        try:
            done = desk.launch("submit", spec, "--on", "pool")
        finally:
            os.chown(folder, 0, 0)
            folder.chmod(mode)
        status = desk.wait(done.stdout.strip())
        assert [node["host"] for node in status["nodes"]] == ["node1", "node2"], (kind, owner, done.stderr)
        desk.until("hosts that are free again", lambda: not desk.left())


NO_RUNS = ["..", ".", "", "../x", "a/b", "/etc", ".tmp-x", "a/../../x", "x\0y"]


@pytest.mark.daily
def test_a_host_gives_nothing_but_of_runs(tmp_path):
    (tmp_path / "runs" / "ours").mkdir(parents=True)
    (tmp_path / "secret").write_text("tweet")
    (tmp_path / "runs" / "ours" / "logs").mkdir()
    (tmp_path / "runs" / "ours" / "logs" / "link").symlink_to(tmp_path / "secret")
    asked = [encoded(AskReport(name, str(tmp_path), 0)) for name in NO_RUNS]
    asked += [encoded(AskTails(name, str(tmp_path), ("logs",), {})) for name in NO_RUNS]
    asked += [
        encoded(AskTails("ours", str(tmp_path), (folder,), {})) for folder in ("..", "../..", "/etc", "", "logs/../..")
    ]
    assert all(said(line).error for line in asked)
    answer = said(encoded(AskTails("ours", str(tmp_path), ("logs",), {})))
    assert (json.loads(bytes(answer.value))["parts"], answer.follows) == ([], 0)


def said(line):
    """Return the host's answer to this."""
    heard, told = io.BytesIO(line), io.BytesIO()
    answer_all(Incoming(lambda _deadline, most: heard.read(most)), told.write, Request, HostServer().answer)
    return decoded(told.getvalue().splitlines()[1], Reply)


@pytest.mark.daily
@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/x",
        "attempts/../../x",
        "code/link/x",
        "",
        ".",
        "secrets.json",
        "plan.json",
        "attempts/0001/hosts.json",
        "attempts/0001/handle.json",
        "a\0b",
    ],
)
def test_a_host_writes_nothing_here_but_its_records(tmp_path, name):
    run = RunDir(tmp_path / "runs" / "ours")
    run.code.mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (run.code / "link").symlink_to(tmp_path / "outside")
    before = tree(tmp_path)
    lies = RunReport(State.RUNNING, attempt=1, files=(tails.Part(name, 0, 1),))
    client = HostClient(None, Place(SshHost("node0"), False, "python", "/w", "node0"))
    client.ask_with_bytes = lambda *_: (lies, b"x")
    with pytest.raises(LaunchError, match=r"node0: .* no record of a run that a host may write"):
        report.ask_report(run, client)
    with pytest.raises(LaunchError):
        tails.put(run.path, ("logs",), tails.Tail(name, 0, b"x"))
    assert tree(tmp_path) == before


@pytest.mark.daily
def test_a_secret_is_nowhere_but_in_its_files_and_in_the_ranks(desk, hosts, tmp_path):
    desk.script("keeps.py", "import os, time\nprint('has', len(os.environ['TOKEN']), flush=True)\ntime.sleep(600)\n")
    spec = desk.spec(
        "name: keeps\nrun:\n  script: keeps.py\n  preload: []\nsecrets: [TOKEN]\n"
        "resources: {nodes: 2, ranks_per_node: 1}\n"
    )
    had, heard_ = {"TOKEN": CANARY}, ""
    with command_lines() as lines:
        dry = desk.launch("submit", spec, "--on", "pool", "--dry-run", env=had)
        done = desk.launch("submit", spec, "--on", "pool", env=had)
        run = done.stdout.strip()
        desk.until("both ranks", lambda: desk.launch("logs", run).stdout.count(f"has {len(CANARY)}") == 2)
        heard_ = "".join(one.stdout + one.stderr for one in (dry, done))
        for verb in (["status"], ["status", run, "--json"], ["logs", run], ["hosts", "--json"]):
            heard_ += desk.launch(*verb).stdout
        places = [desk.run_dir(run), desk.there(0, run), desk.there(1, run)]
        seen = others_see(*places)
        desk.launch("cancel", run)
    assert CANARY not in heard_
    assert any(b"launcher.places.ssh.host.host_supervisor" in line for line in lines)
    assert not [line for line in lines if CANARY.encode() in line]
    assert CANARY.encode() not in seen
    holds = files_with(CANARY, tmp_path, hosts.folder)
    assert sorted(holds) == sorted(place / "secrets.json" for place in places)
    assert [open_to_others(place) for place in places] == [[], [], []]


def listeners(node):
    """The addresses and ports at which something on a host listens, but for its sshd."""
    rows = [
        line.split() for line in node.exec("ss", "--listening", "--tcp", "--numeric", "--no-header").stdout.splitlines()
    ]
    found = [row[3].rpartition(":") for row in rows]
    return [(address.partition("%")[0], int(port)) for address, _, port in found if port != "22"]


def knock(address, port, *lines):
    """Return what a client receives that sends these lines after the greeting."""
    with socket.create_connection((address, port), timeout=60) as stranger, stranger.makefile("rwb") as talk:
        greeting = talk.readline()
        with suppress(ConnectionError):
            for line in lines:
                talk.write(line(greeting) if callable(line) else line)
            talk.flush()
            return talk.read()
        return b""


@pytest.mark.daily
def test_who_listens_and_whom_they_let_in(desk, hosts):
    """Supervisors, the coordinator, the replica servers: at their address alone, for those who prove the token."""
    run = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, run, 3)
    found = [(node, *one) for node in hosts.nodes[:2] for one in listeners(node)]
    assert not [one for one in found if one[1] not in (one[0].address, "127.0.0.1", "[::1]")]
    doors = [(address, port) for node, address, port in found if address == node.address]
    print(f"{len(doors)} listeners")
    assert len(doors) >= 5  # two supervisors, two replica servers, the coordinator
    knocks = [(door, lines) for door in doors for lines in strangers()]
    with ThreadPoolExecutor(len(knocks)) as crowd:
        assert [*crowd.map(lambda one: knock(*one[0], *one[1]), knocks)] == [b""] * len(knocks)
    state = desk.state_there(0, run)
    assert (state["state"], state["generation"], state["restarts"]) == ("running", 1, {})
    desk.launch("cancel", run)


def strangers():
    """Nonsense, a proof of another token, and questions without any proof."""

    def proof(wire):
        def line(greeting):
            nonce = json.loads(greeting or b"{}").get("nonce", "") if greeting.startswith(b"{") else ""
            key = wire_key("ab" * 32, wire, "run", 1)
            mac = proof_of(key, "client", "127.0.0.1 1", "127.0.0.1 2", f"{nonce}|{'0' * 32}")
            said = {"v": WIRE_VERSION, "nonce": "0" * 32, "mac": mac}
            return json.dumps(said).encode() + b"\n"

        return line

    ask = b'{"t":"ask"}\n'
    return [
        [b"\0" * 600],
        [b"GET / HTTP/1.0\r\n\r\n"],
        [ask, ask],
        *[[proof(wire), ask] for wire in ("keepers", "agents")],
    ]
