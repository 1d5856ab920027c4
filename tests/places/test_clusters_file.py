"""The clusters file: what it may say, what is said of one that is wrong, and what holds of its defaults."""

import os
import stat
from pathlib import Path

import pytest

from launcher.errors import BadInput
from launcher.places.clusters_file import (
    ClusterEntry,
    clusters_file,
    entry,
    login_of,
    named_clusters,
    pool_of,
    with_defaults,
)
from launcher.spec.model import Login
from launcher.spec.read import read_spec

RECORDED = Path(__file__).parents[1] / "recorded"
GOOD = """
hpc:
  kind: slurm
  login: me@login.example.org
  launch: ~/venv/bin/launch
  folder: /scratch/me/launch
  cluster: gpu-cluster
  defaults:
    partition: gpu
    account: my_project
    signal_before: 5m
    exclude: [gpu07, "gpu08"]
    extra: {exclusive: true, comment: "yes: it is # text", licenses: 'true'}
here: {kind: slurm}
"""
SPEC = "name: job\nrun: {script: train.py}\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write the user's clusters file; no sbatch is on PATH."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("LAUNCH_CLUSTERS", raising=False)
    own = tmp_path / "config" / "launch" / "clusters.yaml"
    own.parent.mkdir(parents=True)

    def write(text, path=own):
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


def refused_lines(file=None):
    """Return the lines of the error with which the clusters file is refused."""
    with pytest.raises(BadInput) as raised:
        named_clusters(file)
    return list(raised.value.lines)


def test_a_cluster_with_everything(write):
    write(GOOD)
    found = named_clusters()
    assert list(found) == ["local", "hpc", "here"]
    hpc = found["hpc"]
    assert (hpc.kind, hpc.name) == ("login", "hpc")
    assert login_of(hpc) == Login("me@login.example.org", "~/venv/bin/launch", "/scratch/me/launch", "gpu-cluster")
    assert login_of(found["here"]).node is None
    assert found["here"] == ClusterEntry("slurm", "here")
    assert entry("hpc") == hpc


@pytest.mark.parametrize("file", sorted(RECORDED.glob("clusters-*.yaml")), ids=lambda file: file.stem)
def test_a_file_with_every_option_of_an_older_version(write, tmp_path, file):
    write(file.read_text())
    found = named_clusters()
    assert {name: one.kind for name, one in found.items()} == {
        "local": "local", "hpc": "login", "batch": "gridengine", "lab": "ssh",
    }  # fmt: skip
    assert len(pool_of(found["lab"]).hosts) == 2
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC)
    for name, section in (("hpc", "slurm"), ("batch", "gridengine"), ("lab", "ssh")):
        overrides = with_defaults(found[name].defaults, spec, ())
        assert getattr(read_spec(spec, overrides), section) != getattr(read_spec(spec), section)


def test_what_exists_without_a_file(write, tmp_path):
    assert named_clusters() == {"local": ClusterEntry("local", "local")}
    with pytest.raises(BadInput, match="no `sbatch` on PATH"):
        entry("slurm")
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.touch(0o755)
    assert named_clusters()["slurm"] == ClusterEntry("slurm", "slurm")
    write("slurm: {kind: slurm, login: hpc}\n")
    assert login_of(entry("slurm")) == Login("hpc", cluster="slurm"), (
        "a user may say where the cluster is that is called slurm"
    )


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_names_nothing(write, text):
    write(text)
    assert list(named_clusters()) == ["local"]


def test_which_file_is_read(write, tmp_path, monkeypatch):
    own = write("own: {kind: slurm}\n")
    assert clusters_file() == own
    by_variable = write("by-variable: {kind: slurm}\n", tmp_path / "b.yaml")
    monkeypatch.setenv("LAUNCH_CLUSTERS", str(by_variable))
    assert list(named_clusters()) == ["local", "by-variable"]
    by_option = write("by-option: {kind: slurm}\n", tmp_path / "c.yaml")
    assert list(named_clusters(by_option)) == ["local", "by-option"]
    assert refused_lines(tmp_path / "missing.yaml") == [f"{tmp_path}/missing.yaml: no such file or directory"]
    monkeypatch.setenv("LAUNCH_CLUSTERS", str(tmp_path / "gone.yaml"))
    assert "gone.yaml: no such file" in refused_lines()[0]


def test_all_problems_at_once(write):
    path = write(
        "hpc:\n  kind: slurm\n  logn: me@host\n  launch: -x\n"
        "local: {kind: slurm}\n"
        "Big: {kind: slurm}\n"
        "a: {kind: slrum}\n"
        "b: {login: host}\n"
        "c: text\n"
        "d: {kind: slurm, login: -oProxyCommand=evil}\n"
        "e: {kind: slurm, defaults: {partitoin: gpu, signal_before: soon}}\n"
        "e: {kind: slurm}\n"
        "f: &anchor {kind: slurm}\n"
    )
    lines = refused_lines()
    duration = "a duration such as 90s, 10m, 2h, 1d12h or 02:00:00"
    assert [line for line in lines if not line.startswith("hint")] == [
        f"{path}:3:3: hpc.logn: unknown option",
        f"{path}:4:11: hpc.launch: expected the path of the launch program there, got '-x'",
        f"{path}:5:1: local: local is always this machine",
        f"{path}:6:1: Big: expected a name of a-z, 0-9, _ and -, at most 63 long, got 'Big'",
        f"{path}:7:11: a.kind: expected one of slurm, gridengine, pbs, lsf, k8s, ssh, got 'slrum'",
        f"{path}:8:4: b.kind: missing",
        f"{path}:9:4: c: expected a mapping with kind, got 'text'",
        f"{path}:10:25: d.login: expected user@host or an alias of the SSH configuration, got '-oProxyCommand=evil'",
        f"{path}:11:29: e.defaults.partitoin: unknown option",
        f"{path}:11:60: e.defaults.signal_before: expected {duration}, got 'soon'",
        f"{path}:12:1: e: duplicate key, first at line 11",
        f"{path}:13:4: f: an anchor, which a spec cannot have",
    ]
    assert "hint: did you mean login?" in lines
    assert "hint: did you mean partition?" in lines
    assert BadInput.exit_code == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("- hpc\n", "1:1: clusters: expected a mapping from"),
        ("hpc\n", "1:1: clusters: expected a mapping from"),
        ("hpc: {kind: slurm, login: me@a b}\n", "1:27: hpc.login: expected user@host"),
        ("hpc: {kind: slurm, login: '@host'}\n", "hpc.login: expected user@host"),
        ("hpc: {kind: slurm, folder: '~other/x'}\n", "hpc.folder: expected the path of a folder there"),
        ('hpc: {kind: slurm, launch: "a\\tb"}\n', "hpc.launch:"),
        ("hpc: {kind: slurm\n", "yaml:"),
        ("a: {kind: slurm}\n---\nb: {kind: slurm}\n", "a second document begins here"),
        ("\x01", "control character"),
        ("[" * 100, "nested more than"),
    ],
)
def test_what_is_no_clusters_file(write, text, reason):
    path = write(text)
    lines = refused_lines()
    assert lines[0].startswith(f"{path}:")
    assert reason in lines[0]


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(write, mode):
    path = write(GOOD)
    path.chmod(mode)
    assert refused_lines() == [
        f"{path}: others can write it, and it names programs that would run as you",
        f"hint: chmod go-w {path}",
    ]
    path.chmod(0o644)
    assert "hpc" in named_clusters()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_a_file_of_another_user_is_refused(write):
    path = write(GOOD)
    os.chown(path, 12345, -1)
    assert refused_lines()[0] == f"{path}: is another user's, and names programs that would run as you"


def test_a_name_that_is_none(write):
    write(GOOD)
    with pytest.raises(BadInput) as raised:
        entry("hcp")
    assert raised.value.lines == ("hcp: no such cluster", "hint: did you mean hpc?")
    with pytest.raises(BadInput) as raised:
        entry("\x1b[2J" * 100)
    assert "\x1b" not in str(raised.value)
    assert "hint: there is local, hpc, here" in str(raised.value)


def test_local_needs_no_file(write):
    write("broken: [")
    assert entry("local") == ClusterEntry("local", "local")
    with pytest.raises(BadInput, match=r"clusters\.yaml"):
        entry("hpc")


def test_defaults_hold_unless_something_else_is_said(write, tmp_path):
    write(GOOD)
    spec = tmp_path / "job.yaml"

    def slurm(text, *overrides):
        spec.write_text(SPEC + text)
        return read_spec(spec, with_defaults(entry("hpc").defaults, spec, overrides)).slurm

    plain = slurm("")
    assert (plain.partition, plain.account, plain.signal_before_s) == ("gpu", "my_project", 300)
    assert plain.exclude == ("gpu07", "gpu08")
    assert plain.extra == {"exclusive": "", "comment": "yes: it is # text", "licenses": "true"}
    said = slurm("slurm: {partition: cpu, extra: {comment: mine}}\n", "slurm.account=other", "slurm.exclude=[]")
    assert (said.partition, said.account, said.exclude) == ("cpu", "other", ())
    assert said.extra == {"exclusive": "", "comment": "mine", "licenses": "true"}
    assert slurm("", "slurm={partition: cpu}").partition == "cpu"
    assert slurm("", "slurm={partition: cpu}").account == "my_project"


def test_defaults_leave_a_broken_spec_to_its_reader(write, tmp_path):
    write(GOOD)
    for text in ("", "- list\n", "name: [\n", "\xff"):
        spec = tmp_path / "job.yaml"
        spec.write_bytes(text.encode("latin-1"))
        assert with_defaults(entry("hpc").defaults, spec, ("a=b",)) == ("a=b",)
    spec.write_text(SPEC)
    assert with_defaults(entry("hpc").defaults, spec, ("nonsense",)) == ("nonsense",)
    assert with_defaults(entry("here").defaults, spec, ("a=b",)) == ("a=b",)


def test_a_pool_becomes_overrides_of_the_spec(write, tmp_path):
    write("pool:\n  kind: ssh\n  hosts: [a, {name: b, port: 22, gpus: 2}]\n  key: ~/x y\n  shared: true\n")
    spec = tmp_path / "job.yaml"
    spec.write_text("name: j\nrun: {script: train.py}\nssh: {shared: false}\n")
    overrides = with_defaults(entry("pool").defaults, spec, [])
    read = read_spec(spec, overrides)
    assert [(host.name, host.port, host.gpus) for host in read.ssh.hosts] == [("a", None, None), ("b", 22, 2)]
    assert (read.ssh.key, read.ssh.shared) == ("~/x y", False)
    assert pool_of(entry("pool")).hosts == read.ssh.hosts


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pool: {kind: ssh}\n", "pool.hosts: missing"),
        ("pool: {kind: ssh, hosts: []}\n", "pool.hosts"),
        ("pool: {kind: ssh, hosts: [a], hsts: 1}\n", "did you mean hosts?"),
        ("pool: {kind: ssh, hosts: [-oProxyCommand=x]}\n", "a host name"),
        ("pool: {kind: ssh, hosts: [a], shared: yes}\n", "write true"),
    ],
)
def test_a_pool_that_is_none(write, text, problem):
    write(text)
    with pytest.raises(BadInput) as refused:
        entry("pool")
    assert problem in str(refused.value)
