"""A host whose key is unknown, changed or revoked gets nothing of ours until somebody has said that it is right."""

import subprocess

import pytest

from tests.lab.hosts import keygen

pytestmark = pytest.mark.nightly

ALL = "nodes: 4\nranks_per_node: 1"
LOGINS = ("Accepted ", "Postponed ", "Failed ", "authenticating user")  # what sshd says of anybody who tried


@pytest.fixture
def known(desk, hosts, tmp_path):
    """The file of known hosts of a user of this test; the lab's own stays as it is."""
    known = tmp_path / "known_hosts"
    known.write_text(hosts.known_hosts.read_text())
    config = tmp_path / "ssh_config"
    config.write_text(hosts.config.read_text().replace(str(hosts.known_hosts), str(known)))
    desk.env["LAUNCH_SSH_CONFIG"] = str(config)
    return known


def line_of(known, name):
    return next(line for line in known.read_text().splitlines(keepends=True) if line.startswith(f"{name},"))


def fingerprint(path):
    return subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True).stdout.split()[1]


def tried(hosts, index):
    """Return how many connections have tried to log in to the host."""
    text = hosts.nodes[index].log.read_text()
    return sum(text.count(word) for word in LOGINS)


def unknown(known, tmp_path, hosts):
    known.write_text(known.read_text().replace(line_of(known, "node1"), ""))


def changed(known, tmp_path, hosts):
    kind, key = keygen(tmp_path / "other").split()[:2]
    line = line_of(known, "node1")
    known.write_text(known.read_text().replace(line, f"{line.split()[0]} {kind} {key}\n"))


@pytest.mark.parametrize("how", [unknown, changed])
def test_refused_before_the_login_and_taken_once_it_is_known(desk, hosts, known, tmp_path, how):
    own = fingerprint(hosts.files / "host_key-node1.pub")
    how(known, tmp_path, hosts)
    others = desk.chain(args="steps: 3", resources=ALL)
    before = known.read_text(), tried(hosts, 1)
    said = desk.launch("submit", others, "--on", "pool", check=5).stderr
    assert own in said and "launch nodes trust node1" in said, said
    assert desk.launch("status", "--json", "--all").stdout == "[]\n"
    assert (known.read_text(), tried(hosts, 1)) == before
    table = desk.launch("hosts")
    assert "node1" in table.stdout and own in table.stderr
    assert desk.launch("hosts", "trust", "node1", check=None).returncode != 0  # nobody there to ask
    assert desk.launch("hosts", "trust", "node1", "--yes", own[:-1], check=None).returncode != 0
    assert (known.read_text(), tried(hosts, 1)) == before
    desk.launch("hosts", "trust", "node1", "--yes", own)
    status = desk.wait(desk.submit(others, "--on", "pool"))
    assert [node["host"] for node in status["nodes"]] == ["node0", "node1", "node2", "node3"]
    assert tried(hosts, 1) > before[1]  # so that what was counted is what sshd says of logins


@pytest.mark.daily
def test_a_revoked_key_cannot_be_trusted(desk, hosts, known):
    line = line_of(known, "node1")
    known.write_text(f"@revoked {line}{known.read_text()}")
    own = fingerprint(hosts.files / "host_key-node1.pub")
    before = known.read_text(), tried(hosts, 1)
    spec = desk.chain(args="steps: 3", resources=ALL)
    said = desk.launch("submit", spec, "--on", "pool", check=5).stderr
    assert "revoked" in said, said
    assert desk.launch("hosts", "trust", "node1", "--yes", own, check=None).returncode != 0
    assert (known.read_text(), tried(hosts, 1)) == before


def test_the_others_are_used_where_they_are_enough(desk, hosts, known, tmp_path):
    unknown(known, tmp_path, hosts)
    run = desk.submit(desk.job(3), "--on", "pool")
    assert [node["host"] for node in desk.wait(run)["nodes"]] == ["node0", "node2"]


@pytest.mark.daily
def test_no_agent_is_forwarded(desk, hosts, tmp_path):
    """Neither by the launcher itself nor by what it starts, where the user's configuration asks for it."""
    config = tmp_path / "ssh_config"
    config.write_text(f"ForwardAgent yes\n{hosts.config.read_text()}")
    desk.script("sees.py", "import os\nprint('agent', os.environ.get('SSH_AUTH_SOCK'), flush=True)\n")
    spec = desk.spec("name: sees\nrun: {script: sees.py, preload: []}\nresources: {nodes: 2, ranks_per_node: 1}\n")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.DEVNULL)
    try:
        env = {"LAUNCH_SSH_CONFIG": str(config), "SSH_AUTH_SOCK": str(tmp_path / "agent")}
        add = ["ssh-add", "-q", hosts.key]
        desk.until("the agent", lambda: subprocess.run(add, env={**desk.env, **env}).returncode == 0)
        run = desk.submit(spec, "--on", "pool", env=env)
        desk.wait(run)
        desk.launch("logs", run, env=env)
    finally:
        agent.kill()
        agent.wait()
    assert desk.rank_logs(run).count("agent None") == 2
