"""`launch doctor POOL`: what hosts are like, whether they reach each other and how fast; nothing is left on them."""

import contextlib
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lab import BOUND_S

from launcher.health import machine_there
from launcher.health.findings import Level
from launcher.health.machine_there import FolderFacts, MachineFacts, Torch
from launcher.health.session import read_answer
from launcher.health.ways import Way, findings, rounds, slow
from launcher.places.ssh.doctor_checks import SeenHost, crontab_line, host_findings, together
from launcher.places.ssh.facts import Facts, Surveyed
from launcher.remote.shipping import bundle
from launcher.spec.model import SshHost

pytestmark = pytest.mark.nightly

TOKEN = "ab" * 32
PROGRAM = Path(machine_there.__file__).read_text()


def doctor(desk, *words, check=0, pool=None):
    """Return the doctor's findings by level; `pool` is another clusters file."""
    if pool is not None:
        path = desk.project / "clusters.yaml"
        path.write_text(pool)
        path.chmod(0o600)
        words = ("--clusters", str(path), *words)
    found = json.loads(desk.launch("doctor", "pool", "--json", *words, check=check).stdout)
    return {level: [one for one in found if one["level"] == level] for level in ("ok", "warning", "problem")}


def texts(found):
    return [f"{one['about']}: {one['text']}" for one in found]


def column(finding, name):
    """Return a column of the doctor's table, by the first column."""
    head, *rows = finding["rows"]
    return {row[0]: row[head.index(name)] for row in rows}


def files(hosts):
    return [sorted(hosts.disk(index).rglob("*")) for index in range(hosts.size)]


# -- a pool


@pytest.mark.daily
def test_a_pool_that_is_well(desk):
    before = files(desk.hosts)
    found = doctor(desk, pool=desk.hosts.clusters_yaml(python=sys.executable))
    assert found["problem"] == []
    slow = [one for one in found["warning"] if one["about"] == "network" or "a login takes" in one["text"]]
    assert slow == found["warning"]  # as on a busy machine
    hosts, reboot, network = found["ok"]
    assert hosts["text"] == "4 of 4 can be looked at"
    assert reboot["hint"].endswith(f": {crontab_line('~/launch')}")
    assert column(hosts, "KEY") == {f"node{index}": str(desk.hosts.key) for index in range(4)}
    assert set(column(hosts, "PYTHON").values()) == {".".join(map(str, sys.version_info[:3]))}
    assert all(float(took.split()[0]) < BOUND_S for took in column(hosts, "LOGIN").values())
    assert network["text"].startswith("12 of 12 ways measured")
    assert set(column(network, "WITH").values()) == {"3"}
    assert all(speed.endswith("/s") for speed in column(network, "SENDS").values())
    assert files(desk.hosts) == before and desk.left() == []


def test_the_launcher_is_there_once_a_run_has_brought_it_and_who_has_slots_is_named(desk):
    run = desk.submit(desk.job(100_000), "--on", "pool")
    desk.until_step_there(0, run, 2)
    hosts = doctor(desk)["ok"][0]
    assert column(hosts, "LAUNCHER")["node0"] == "there"
    assert column(hosts, "TAKEN BY")["node1"] == f"{run} (root)"
    assert column(hosts, "TAKEN BY")["node3"] == "-"
    desk.launch("cancel", run)


def test_a_host_without_power_is_a_problem_and_the_others_are_measured(desk):
    desk.hosts.nodes[1].power_off()
    found = doctor(desk, check=4)
    (problem,) = found["problem"]
    assert (problem["about"], problem["unreachable"]) == ("node1", False) and desk.hosts.nodes[1].address in problem[
        "text"
    ]
    assert found["ok"][0]["text"] == "3 of 4 can be looked at"
    assert found["ok"][2]["text"].startswith("6 of 6 ways measured")


def test_where_no_host_answers_the_exit_code_says_so(desk):
    found = doctor(desk, "--try", check=5, pool="pool: {kind: ssh, hosts: [nowhere.invalid]}\n")
    assert [one["about"] for one in found["problem"]] == ["nowhere.invalid"] and found["ok"] == []


def test_a_way_that_is_closed_in_one_direction(desk):
    chain = "chain input { type filter hook input priority 0;"
    rule = (
        f"ip saddr {desk.hosts.nodes[0].address} tcp dport != 22 tcp flags & (syn | ack) == syn reject with tcp reset"
    )
    desk.hosts.nodes[2].exec("nft", f"table inet cut {{ {chain} {rule}\n}}\n}}")
    found = doctor(desk, "--try", check=4, pool=desk.hosts.clusters_yaml(python=sys.executable))
    (problem,) = found["problem"]
    assert problem["text"].startswith("node2 cannot be reached from node0: ")
    assert "Connection refused" in problem["text"] and "both ways" in problem["hint"]
    assert found["ok"][2]["text"].startswith("11 of 12 ways measured")
    assert "all-reduce: not tried: not all hosts reach each other" in texts(found["warning"])


def test_killed_it_leaves_nothing(desk):
    words = [sys.executable, "-m", "launcher.cli.main", "doctor", "pool"]
    before = files(desk.hosts)
    with subprocess.Popen(words, cwd=desk.project, env=desk.env, stdout=subprocess.PIPE) as program:
        desk.until("measuring", lambda: desk.own(machine_there.__doc__.splitlines()[0]))
        program.kill()
    desk.until("the end of all of it", lambda: not desk.everything())
    assert files(desk.hosts) == before


def test_an_all_reduce_over_all_hosts(desk):
    before = files(desk.hosts)
    pool = desk.hosts.clusters_yaml(python=sys.executable, hosts=["node0", "node2", "node3"])
    found = doctor(desk, "--try", pool=pool)
    assert found["ok"][-1]["text"].startswith("16 MB over 3 hosts by torch (gloo) in ")
    assert files(desk.hosts) == before and desk.left() == []


def test_an_all_reduce_where_a_host_has_no_torch(desk):
    bare = desk.project / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", bare], check=True)
    hosts = ["node0", {"name": "node1", "python": str(bare / "bin" / "python")}]
    found = doctor(desk, "--try", pool=desk.hosts.clusters_yaml(python=sys.executable, hosts=hosts))
    assert "all-reduce: not tried: node1 has no torch" in texts(found["warning"])
    assert f"node1: {bare}/bin/python has no torch" in texts(found["warning"])


def test_what_a_host_has_not(desk):
    hosts = ["node0", {"name": "node1", "gpus": 8}, {"name": "node2", "workdir": "/proc/runs"}]
    hosts += [{"name": "node3", "python": "/nowhere/python"}]
    found = doctor(desk, check=4, pool=desk.hosts.clusters_yaml(hosts=hosts))
    problems = {one["about"]: one for one in found["problem"]}
    assert problems["node1"]["text"] == "`gpus: 8`, but there is none"
    assert problems["node2"]["text"].startswith("/proc/runs: does not take new folders (")
    assert "there is no /nowhere/python" in problems["node3"]["text"] and "`python:`" in problems["node3"]["hint"]
    assert all(one["hint"] for one in problems.values())


def test_of_several_keys_the_one_that_opens_is_named(desk):
    other = desk.project / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    own = desk.project / "ssh_config"
    own.write_text(f"Host *\n  IdentityFile {other}\n" + desk.hosts.config.read_text())
    desk.env["LAUNCH_SSH_CONFIG"] = str(own)
    assert set(column(doctor(desk)["ok"][0], "KEY").values()) == {str(desk.hosts.key)}


def test_what_it_does_not_take(desk):
    assert "--nodes is of Slurm clusters" in desk.launch("doctor", "pool", "--nodes", "1", check=2).stderr
    assert "no hosts are named" in desk.launch("doctor", "ssh", check=2).stderr


# -- which ways are measured when


@pytest.mark.daily
@pytest.mark.parametrize("count", range(34))
def test_rounds(count):
    plan = rounds(count)
    for pairs in plan:
        busy = [one for pair in pairs for one in pair]
        assert pairs and len(busy) == len(set(busy))
    ways = [frozenset(pair) for pairs in plan for pair in pairs]
    assert len(ways) == len(set(ways)) and all(len(way) == 2 for way in ways)
    assert {one for way in ways for one in way} == (set(range(count)) if count > 1 else set())
    assert count < 2 or {frozenset((one, (one + 1) % count)) for one in range(count)} <= set(ways)
    assert len(plan) <= 3 + count.bit_length()


@pytest.mark.daily
def test_thirty_two_hosts_have_six_partners_each_after_six_rounds():
    plan = rounds(32)
    assert len(plan) == 6 and sum(map(len, plan)) == 6 * 16


# -- what is said of ways


def all_ways(hosts, speed):
    pairs = [(one, other) for one in hosts for other in hosts if one != other]
    return [Way(one, other, 1e-4, speed(one, other)) for one, other in pairs]


def texts_of_problems(hosts, ways):
    """Return the texts of all findings about these hosts that are not OK."""
    return [one.text for one in findings(hosts, ways) if one.level is not Level.OK]


@pytest.mark.daily
def test_a_host_that_sends_slowly_to_all():
    ways = all_ways("abcd", lambda one, other: 4e7 if one == "c" else 1e9)
    assert texts_of_problems("abcd", ways) == ["c sends 40 MB/s at best, 1 GB/s is usual"]
    assert {way.start for way in slow(ways)} == {"c"}


@pytest.mark.daily
def test_a_host_that_is_slow_both_ways_among_three():
    ways = all_ways("abc", lambda one, other: 4e7 if "a" in (one, other) else 1e9)
    assert texts_of_problems("abc", ways) == ["a sends and receives 40 MB/s at best, 1 GB/s is usual"]


@pytest.mark.daily
def test_a_single_slow_way():
    ways = all_ways("abcd", lambda one, other: 4e7 if (one, other) == ("a", "b") else 1e9)
    assert texts_of_problems("abcd", ways) == ["a sends to b 40 MB/s, 1 GB/s is usual"]
    ways = all_ways("ab", lambda one, other: 4e7 if one == "a" else 1e9)
    assert texts_of_problems("ab", ways) == ["a sends to b 40 MB/s, 1 GB/s is usual"]


@pytest.mark.daily
def test_ways_that_are_alike():
    assert texts_of_problems("abcd", all_ways("abcd", lambda one, other: 6e8 if one == "a" else 1e9)) == []
    assert list(findings("a", [])) == []


@pytest.mark.daily
def test_who_is_closed_is_said_once_for_all_who_tried():
    ways = [Way(one, "z", error="refused") for one in "abcdefg"]
    assert texts_of_problems("abcdefgz", ways) == ["z cannot be reached from a, b, c and 4 more: refused"]


# -- what is said of a host


def host(name="gpu01", looked=(), **facts):
    usual = {
        "python": "/usr/bin/python3", "version": (3, 11, 2), "tag": bundle.own_tag(), "torch": "2.10.0",
        "missing": (), "hostname": name, "boot_id": "", "user": "ann", "address": "10.0.0.1", "workdir": "/home/ann",
        "libraries": (), "cpus": 8, "gpus": (), "sockets": (), "disk_free": 10**12, "inodes_free": 10**6,
        "writable": True, "memory": 10**10, "clock": 0.0,
    }  # fmt: skip
    off_s, gpus, login_s = facts.pop("off_s", 0.0), facts.pop("wanted", None), facts.pop("login_s", 0.1)
    found = Surveyed(SshHost(name, gpus=gpus), Facts(**(usual | facts)), off_s, 0.1)
    well = {"refusals": (), "killed": False, "sees": 0, "torch_error": ""} | dict(looked)
    folder = FolderFacts("/home/ann", "/home/ann", "user 7 on it", refusals=well["refusals"])
    torch = Torch("2.10.0", "CUDA 12.8", well["sees"], well["torch_error"])
    seen = MachineFacts(8, None, (1024, 4096), 0.0, True, (folder,), well["killed"], torch)
    return SeenHost(found, seen, login_s, "k")


@pytest.mark.daily
@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        ({"disk_free": 4 * 10**9}, "warning", "4 GB free"),
        ({"disk_free": 10**6}, "problem", "1 MB free"),
        ({"inodes_free": 50}, "warning", "room for 50 more files"),
        ({"off_s": 5.5}, "warning", "5.5 s ahead of the one here"),
        ({"off_s": -60.0}, "warning", "60.0 s behind the one here"),
        ({"login_s": 9.0}, "warning", "a login takes 9.0 s"),
        ({"torch": None}, "warning", "has no torch"),
        ({"tag": "other", "missing": ("msgspec", "xxhash")}, "problem", "has no msgspec and xxhash"),
        ({"gpus": (0, 1), "looked": {"sees": 2}, "wanted": 4}, "problem", "`gpus: 4`, but there are 2"),
        ({"gpus": (0, 1), "looked": {"sees": 1}}, "problem", "sees 1 of 2 GPUs"),
        ({"looked": {"torch_error": "OSError: libcudart"}}, "problem", "torch: OSError: libcudart"),
        ({"looked": {"refusals": ("flock (No locks available)",)}}, "problem", "does not take flock"),
        ({"looked": {"killed": True}}, "warning", "ends what ann has started when the login ends"),
    ],
)
def test_what_is_not_well_with_a_host(facts, level, words):
    (one,) = host_findings(host(**facts))
    assert (one.level, one.about) == (level, "gpu01") and words in one.text and one.hint


@pytest.mark.daily
def test_nothing_is_said_of_a_host_that_is_well():
    assert list(host_findings(host(off_s=4.9, gpus=(0, 1), looked={"sees": 2}, wanted=2))) == []


@pytest.mark.daily
def test_the_same_of_several_hosts_is_said_once():
    bare = [host(name, torch=None) for name in "ab"]
    assert [(one.about, one.text) for one in together(bare)] == [
        ("hosts", "all of them: /usr/bin/python3 has no torch")
    ]
    assert [(one.about, one.text) for one in together([*bare, host("c", login_s=9.0)])] == [
        ("hosts", "a, b: /usr/bin/python3 has no torch"),
        ("c", "a login takes 9.0 s"),
    ]


@pytest.mark.daily
@pytest.mark.parametrize(
    ("settings", "kills"),
    [
        ("KillUserProcesses=no\nKillOnlyUsers=\nKillExcludeUsers=root\n", False),
        ("KillUserProcesses=yes\nKillOnlyUsers=\nKillExcludeUsers=root\n", True),
        ("KillUserProcesses=yes\nKillOnlyUsers=\nKillExcludeUsers=root ann\n", False),
        ("KillUserProcesses=yes\nKillOnlyUsers=ben\n", False),
        ("KillUserProcesses=yes\nKillOnlyUsers=ben ann\n", True),
        ("", False),
    ],
)
def test_what_logind_says_of_processes_at_logout(settings, kills):
    assert machine_there.kills(settings, "ann") is kills


@pytest.mark.daily
@pytest.mark.parametrize(
    ("torch", "sees", "error"),
    [
        (
            (
                "__version__ = '2'\nclass version: cuda = hip = None\nclass cuda:\n"
                "    is_available = staticmethod(lambda: True)\n    device_count = staticmethod(lambda: 3)\n"
            ),
            3,
            "",
        ),
        ("raise OSError('libcudart is not there')\n", 0, "OSError: libcudart is not there"),
    ],
)
def test_what_torch_sees(tmp_path, torch, sees, error):
    (tmp_path / "torch.py").write_text(torch)
    asked = {"do": "look", "folders": [str(tmp_path / "not" / "there" / "yet")], "user": "ann", "torch": True}
    words = [sys.executable, "-I", "-c", PROGRAM]
    env, given = {"PYTHONPATH": str(tmp_path)}, json.dumps(asked).encode()
    done = subprocess.run(words, env=env, input=given, capture_output=True, check=True)
    said = read_answer(done.stdout, MachineFacts)
    assert said.folders[0].refusals == () and not said.folders[0].error and not said.is_killed
    assert (said.torch.gpus, said.torch.error) == (sees, error)
    assert {path.name for path in tmp_path.iterdir()} <= {"torch.py", "__pycache__"}


# -- the programs on the hosts


class There:
    """The other machine, played on this one."""

    def __init__(self, address="127.0.0.1", token=TOKEN):
        words = [sys.executable, "-I", "-c", PROGRAM]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.own = {"own": address, "token": token}
        self.opened = self.ask(do="open", address=address, token=token)

    def ask(self, **words):
        print(json.dumps(words), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def call(self, other, address="127.0.0.1"):
        return self.ask(do="call", address=address, ports=other.opened["ports"], **self.own)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        assert self.process.wait(BOUND_S) == 0
        self.process.stdout.close()


@pytest.mark.daily
def test_two_measure_the_way_between_them():
    with There() as one, There("127.0.0.2") as other:
        for _ in range(2):
            there, back = one.call(other, "127.0.0.2"), other.call(one)
            assert min(there["bytes_per_s"], back["bytes_per_s"]) > 1e6
            assert 0 < there["round_trip_s"] < 1


@pytest.mark.daily
def test_it_listens_on_its_address_alone():
    with There("127.0.0.2") as one:
        for port in one.opened["ports"]:
            socket.create_connection(("127.0.0.2", port), BOUND_S).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), BOUND_S)
        master, _ = one.opened["ports"]
        assert 20_000 <= master <= 32_000


@pytest.mark.daily
@pytest.mark.parametrize("address", ["", "192.0.2.7"])
def test_an_address_that_it_has_not(address):
    with There(address) as one:
        assert one.opened["error"]


@pytest.mark.daily
def test_strangers_learn_nothing_and_disturb_nobody():
    with There() as one, There(token="cd" * 32) as stranger, There() as friend:
        assert "hangs up" in stranger.call(one)["error"]
        for noise in (b"", b"[" * 2000, b"{}\n", b'{"nonce": 1, "mac": 2}\n', b"\xff\n"):
            with socket.create_connection(("127.0.0.1", one.opened["ports"][0]), BOUND_S) as caller:
                caller.sendall(noise)
                assert friend.call(one)["bytes_per_s"] > 0


@pytest.mark.daily
def test_who_answers_without_the_token_is_not_believed():
    with There() as one, There(token="cd" * 32) as stranger:
        assert one.call(stranger)["error"]


@pytest.mark.daily
def test_whoever_repeats_what_it_hears_is_not_believed():
    """Each proof says whose it is: what a caller proved proves nothing of who only sends it back."""
    with There() as one, socket.create_server(("127.0.0.1", 0)) as mirror:
        one.process.stdin.write(
            json.dumps(
                {"do": "call", "address": "127.0.0.1", "flood": False, **one.own}
                | {"ports": [mirror.getsockname()[1]] * 2}
            )
            + "\n"
        )
        one.process.stdin.flush()
        caller, _ = mirror.accept()
        with caller:
            while said := caller.recv(512):
                caller.sendall(said)
        assert json.loads(one.process.stdout.readline())["error"] == "another program answers there"


@pytest.mark.daily
def test_a_listener_says_nothing_of_the_token_to_whom_has_not_proved_it():
    with There() as one, socket.create_connection(("127.0.0.1", one.opened["ports"][0]), BOUND_S) as stranger:
        stranger.sendall(bytes(48))
        heard = b""
        while said := stranger.recv(512):
            heard += said
        assert len(heard) == 16  # its nonce


@pytest.mark.daily
@pytest.mark.parametrize("counted", [b"nan", b"-1", b"1e300", b"fast", b"9" * 2000])
def test_a_host_that_counts_wrongly_is_an_error(counted):
    """One of the run's own, who has the token, and answers a flood with what it likes."""
    with There() as one, socket.create_server(("127.0.0.1", 0)) as door:

        def lie():
            caller, _ = door.accept()
            with caller, contextlib.suppress(ConnectionError):  # what is unsent when it has its answer is not wanted
                heard = machine_there._meet(caller, TOKEN, is_caller=False)
                for _ in range(machine_there.PINGS):
                    heard.read(1)
                    caller.sendall(b".")
                heard.read(1)
                caller.sendall(counted + b"\n")
                while caller.recv(1 << 20):
                    pass

        liar = threading.Thread(target=lie, daemon=True)
        liar.start()
        found = one.ask(do="call", address="127.0.0.1", ports=[door.getsockname()[1]] * 2, **one.own)
        liar.join(BOUND_S)
        assert found["error"] and found["bytes_per_s"] == 0
