"""Test that an SSH configuration is read as OpenSSH's own client reads it."""

import os
import subprocess
from pathlib import Path

import pytest

from launcher.errors import BadInput
from launcher.remote.connect import connect
from launcher.remote.target import target_of
from launcher.spec.model import SshHost

needs_ssh = pytest.mark.needs("ssh")

CONFIGURATIONS = {
    "nothing": ("", "gpu01"),
    "the first value wins": ("Host gpu01\n Port 1\nHost *\n Port 2\n User late\n", "gpu01"),
    "before any Host": ("Port 7\nHost *\n Port 2\n", "gpu01"),
    "patterns": ("Host gpu? node*\n User a\nHost gpu*\n User b\n Port 3\n", "gpu01"),
    "one letter is one letter": ("Host gpu?\n Port 3\n", "gpu01"),
    "no other magic in patterns": ("Host gpu[0-9]1 gpu.1\n Port 3\n", "gpu01"),
    "a negation beats what fits": ("Host gpu* !gpu01\n Port 3\nHost * !gpu02\n User b\n", "gpu01"),
    "a negation alone fits nothing": ("Host !gpu02\n Port 3\n", "gpu01"),
    "equals signs and quotes": ('HOST="gpu01"\nPort = 22\nUser="some one"\nhostName  = "10.0.0.7"\n', "gpu01"),
    "comments": ("# Port 1\nHost gpu01 # gpu02\n  # User x\n  Port 9 # not 10\n", "gpu01"),
    "tabs, case, blanks": ("\tHOST\tgpu01\n\n\t pOrT\t8  \n", "gpu01"),
    "host name from the name": ("Host gpu*\n HostName %h.cluster.example%%1\n", "gpu01"),
    "capital letters": ("Host GPU01\n HostName GPU01.Example.ORG\n Port 3\n", "GPU01"),
    "every key file counts": (
        "IdentityFile ~/a\nIdentityFile {keys}/%r-%h-%p-%u-%n\nIdentityFile {keys}/b\nIdentityFile ~/a\nUser me\n",
        "gpu01",
    ),
    "the variable of the environment": ("IdentityFile ${{KEYS}}/b\nUserKnownHostsFile ${{KEYS}}/k\n", "gpu01"),
    "known hosts": ("UserKnownHostsFile {keys}/one {keys}/two\nGlobalKnownHostsFile {keys}/all\n", "gpu01"),
    "another name among known hosts": ("Host gpu01\n HostKeyAlias the-gpu\n Port 4\n", "gpu01"),
    "times": ("ConnectTimeout 1m30s\n", "gpu01"),
    "Match all": ("Match all\n Port 5\n", "gpu01"),
    "Match host sees HostName": ("HostName ten\nMatch host ten\n Port 5\nMatch host gpu01\n User no\n", "gpu01"),
    "Match originalhost": ("Host gpu01\n HostName ten\nMatch originalhost gpu*,!gpu02\n Port 5\n", "gpu01"),
    "Match user": ("Host gpu01\n User me\nMatch user me\n Port 5\nMatch user you\n HostName no\n", "gpu01"),
    "Match several": ("Match host gpu01 user nobody\n Port 5\nMatch host gpu01 !user nobody\n Port 6\n", "gpu01"),
    "Match localuser": ("Match localuser {me}\n Port 5\n", "gpu01"),
    "Match exec that fails": ("Match exec false\n Port 5\n", "gpu01"),
    "Match canonical": ("Match canonical all\n Port 5\nMatch !canonical host nothing\n Port 6\n", "gpu01"),
    "Include": ("Include {keys}/part*.conf\nPort 99\n", "gpu01"),
    "Include of nothing": ("Include {keys}/nowhere/*.conf\nPort 99\n", "gpu01"),
    "Include in a block that fits": ("Host gpu01\n Include {keys}/part1.conf\n User after\n", "gpu01"),
    "Include in a block that does not": ("Host gpu02\n Include {keys}/part1.conf\n\nHost *\n User after\n", "gpu01"),
    "Include relative to ~/.ssh": ("Include launch-test-no-such-file\nPort 98\n", "gpu01"),
    "the block goes on after an Include": ("Host gpu02\n Include {keys}/part2.conf\n Port 97\n", "gpu01"),
    "ProxyJump": ("Host gpu01\n ProxyJump me@bastion:2200\n", "gpu01"),
    "ProxyJump over two": ("Host gpu01\n ProxyJump me@bastion:2200,[fe80::1]:23\n", "gpu01"),
    "ProxyJump none comes first": ("Host gpu01\n ProxyJump none\nHost *\n ProxyJump bastion\n", "gpu01"),
    "ProxyCommand none": ("Host gpu01\n ProxyCommand none\nHost *\n Port 4\n", "gpu01"),
    "unknown words of a newer ssh": ("IgnoreUnknown Future*\nFutureThing yes\nPort 4\n", "gpu01"),
}  # fmt: skip


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Write the configuration that both read."""
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "part1.conf").write_text("Host gpu01\n Port 31\nHost gpu02\n User no\n")
    (keys / "part2.conf").write_text("Port 32\nUser second\n")
    config = tmp_path / "config"

    def write(text):
        config.write_text(text.format(keys=keys, me=os.environ.get("USER") or "root"))
        config.chmod(0o600)
        monkeypatch.setenv("LAUNCH_SSH_CONFIG", str(config))
        monkeypatch.setenv("KEYS", str(keys))
        return config

    return write


@needs_ssh
@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_openssh_agrees(configured, monkeypatch, case):
    text, name = CONFIGURATIONS[case]
    monkeypatch.setattr(Path, "is_file", lambda path: True)  # ssh -G names keys that do not exist as well
    monkeypatch.setenv("HOME", os.path.expanduser(f"~{os.environ.get('USER') or 'root'}"))  # ssh looks in passwd
    theirs = ssh_settings(configured(text), name)
    ours = target_of(SshHost(name))
    assert ours.hostname == theirs["hostname"][0]
    assert ours.port == int(theirs["port"][0])
    assert ours.user == theirs["user"][0]
    tokens = {"%r": ours.user, "%h": ours.hostname, "%p": str(ours.port), "%u": "root", "%n": name}
    keys = [filled(word, tokens) for word in theirs["identityfile"]]
    readable = [key for key in keys if not key.endswith(("_sk", "id_xmss", "id_dsa"))]
    assert [str(key) for key in ours.keys] == readable
    files = theirs["userknownhostsfile"][0].split() + theirs["globalknownhostsfile"][0].split()
    assert [str(path) for path in ours.known_hosts] == [filled(word, {}) for word in files]
    plain = ours.hostname if ours.port == 22 else f"[{ours.hostname}]:{ours.port}"
    assert ours.known_as == theirs.get("hostkeyalias", [plain])[0]
    assert ours.connect_timeout_s == (int(theirs["connecttimeout"][0].replace("none", "0")) or 10)
    jumps = [one for one in theirs.get("proxyjump", ["none"])[0].split(",") if one != "none"]
    assert [said(jump) for jump in ours.jumps] == [split(jump) for jump in jumps]


def ssh_settings(config, name):
    """Return what `ssh -G NAME` prints with this configuration, by keyword."""
    done = subprocess.run(["ssh", "-F", config, "-G", name], capture_output=True, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword, []).append(value)
    return found


def filled(word, tokens):
    for token, value in tokens.items():
        word = word.replace(token, value)
    return os.path.expanduser(os.path.expandvars(word))


def said(jump):
    return jump.user, jump.hostname, jump.port


def split(text):
    """Return the parts of `user@host:port`, as ssh prints it."""
    user, _, place = text.rpartition("@")
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    host = host if colon and port.isdigit() else place
    return user or "root", host.strip("[]"), int(port) if port.isdigit() else 22


def test_what_the_entry_says_comes_first(configured, tmp_path):
    configured("Host gpu01\n HostName h\n Port 9\n User no\nMatch host h user me\n HostKeyAlias seen\n")
    key = tmp_path / "own"
    key.touch()
    target = target_of(SshHost("gpu01", address="10.0.0.7", user="me", port=2222, key=str(key)))
    assert (target.name, target.hostname, target.port, target.user) == ("gpu01", "h", 2222, "me")
    assert target.known_as == "seen"
    assert target.keys == (key,)


def test_the_entrys_key_comes_before_those_of_the_configuration(configured, tmp_path):
    (tmp_path / "own").touch()
    (tmp_path / "other").touch()
    configured(f"IdentityFile {tmp_path}/other\nIdentityFile {tmp_path}/missing\nIdentityFile {tmp_path}/own\n")
    target = target_of(SshHost("gpu01", key=str(tmp_path / "own")))
    assert target.keys == (tmp_path / "own", tmp_path / "other")


def test_keys_that_do_not_exist_are_left_out(configured, tmp_path):
    configured(f"IdentityFile {tmp_path}/missing\n")
    assert target_of(SshHost("gpu01")).keys == ()


@pytest.mark.parametrize(
    ("text", "agent", "asked_for", "path"),
    [
        ("", False, False, ""),
        ("", True, True, ""),
        ("IdentityAgent none\n", False, False, ""),
        ("IdentityAgent SSH_AUTH_SOCK\n", False, True, ""),
        ("IdentityAgent $KEYS\n", False, True, "{keys}"),
        ("IdentityAgent ${{KEYS}}/agent-%r\nUser me\n", False, True, "{keys}/agent-me"),
    ],
)
def test_the_agent_is_asked_where_that_was_asked_for(configured, tmp_path, text, agent, asked_for, path):
    configured(text)
    target = target_of(SshHost("gpu01"), agent=agent)
    assert (target.agent, target.agent_socket) == (asked_for, path.format(keys=tmp_path / "keys"))


def test_a_jump_is_a_host_of_the_configuration_too(configured):
    configured(
        "Host gpu*\n ProxyJump inner\nHost inner\n HostName 10.0.0.1\n User relay\n ProxyJump outer:2200\n"
        "Host outer\n HostKeyAlias the-outer\n"
    )
    target = target_of(SshHost("gpu01"))
    assert [(jump.name, jump.hostname, jump.port) for jump in target.jumps] == [
        ("outer", "outer", 2200),
        ("inner", "10.0.0.1", 22),
    ]
    assert [jump.known_as for jump in target.jumps] == ["the-outer", "10.0.0.1"]
    assert target.jumps[1].user == "relay"
    assert all(jump.jumps == () for jump in target.jumps)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Host gpu01\n ProxyJump one\nHost one\n ProxyJump two\nHost two\n ProxyJump one\n",
            "ProxyJump leads in a circle: gpu01 -> one -> two -> one",
        ),
        ("ProxyJump -oProxyCommand=x\n", "ProxyJump: expected user@host:port"),
        ("Port 99999\n", "config line 1: Bad port '99999'"),
        ("Port ²\n", "config line 1: Bad port"),
        ("ConnectTimeout soon\n", "config line 1: invalid time value"),
        ("IdentityFile ~/%C\n", "%C is not supported here"),
        ("IdentityFile ${{NOWHERE_SET}}\n", "uses ${NOWHERE_SET}, which is not set"),
        ('Port "22\n', "config line 1: "),
        ("Port\n", "config line 1: "),
        ("Host gpu01\n !!\n", "config line 2: "),
        ("Match\n", "config line 1: "),
        ("Match host\n", "Missing Match criteria for host"),
        ("Include {keys}/../config\n", "Too many recursive configuration includes"),
    ],
)
def test_what_cannot_be_followed_is_said(configured, text, words):
    configured(text)
    with pytest.raises(BadInput) as caught:
        target_of(SshHost("gpu01"))
    assert words in str(caught.value)


def test_a_key_of_the_entry_that_does_not_exist_is_said(configured, tmp_path):
    configured("")
    with pytest.raises(BadInput, match="there is no key"):
        target_of(SshHost("gpu01", key=str(tmp_path / "missing")))


def test_a_proxy_command_is_left_to_ssh(configured):
    configured("ProxyCommand nc %h %p\n")
    with pytest.raises(BadInput, match=r"gpu01: ProxyCommand .* is for ssh alone") as told:
        connect(target_of(SshHost("gpu01")))
    assert "transport: openssh" in told.value.lines[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Host gpu01\n HostName h\n Port 2200\n User me\n", ("h", 2200, "me")),
        ("Host gpu*\n HostName %h.x\nHost *\n User late\n Port 5\n", ("gpu01.x", 5, "late")),
        ("Host gpu02\n Include {keys}/part1.conf\n", ("gpu01", 22, "root")),
    ],
)
def test_where_there_is_no_ssh_paramiko_reads_it(configured, monkeypatch, text, expected):
    configured(text)
    monkeypatch.setenv("PATH", "/nowhere")
    target = target_of(SshHost("gpu01"))
    assert (target.hostname, target.port, target.user) == expected
    assert target_of(SshHost("gpu01", user="you", port=7)).port == 7


def test_an_include_needs_ssh(configured, monkeypatch):
    configured("Include {keys}/part1.conf\n")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BadInput, match="Include of the SSH configuration needs ssh"):
        target_of(SshHost("gpu01"))


def test_a_file_that_is_named_and_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("LAUNCH_SSH_CONFIG", str(tmp_path / "missing"))
    with pytest.raises(BadInput, match="cannot be read"):
        target_of(SshHost("gpu01"))


def test_no_configuration_at_all_can_be_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("LAUNCH_SSH_CONFIG", "none")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Port 5\n")
    assert target_of(SshHost("gpu01")).port == 22
    monkeypatch.delenv("LAUNCH_SSH_CONFIG")
    assert target_of(SshHost("gpu01")).port == 5
