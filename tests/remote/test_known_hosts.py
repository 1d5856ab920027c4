"""Which keys are taken for a host's, by files that OpenSSH's own programs read and write."""

import base64
import re
import subprocess
import time
from pathlib import Path

import pytest
from doors import keygen

from launcher.errors import Refused
from launcher.remote.known_hosts import (
    ChangedKey,
    HostKey,
    RevokedKey,
    UnknownKey,
    add,
    check,
    expected_kinds,
    fingerprint,
)
from launcher.remote.target import Target

pytestmark = pytest.mark.needs("ssh-keygen")

KNOWN, UNKNOWN, CHANGED, REVOKED = None, UnknownKey, ChangedKey, RevokedKey
CASES = [
    ("", {}, UNKNOWN),
    ("gpu01 {one}", {}, KNOWN),
    ("gpu01 {one} a comment", {}, KNOWN),
    ("GPU01 {one}", {}, KNOWN),
    ("gpu02 {one}", {}, UNKNOWN),
    ("gpu01 {two}", {}, CHANGED),
    ("gpu01 {two}\ngpu01 {one}", {}, KNOWN),
    ("gpu01,10.0.0.7 {one}", {"hostname": "10.0.0.7"}, KNOWN),
    ("gpu* {one}", {}, KNOWN),
    ("gpu*,!gpu01 {one}", {}, UNKNOWN),
    ("# gpu01 {one}", {}, UNKNOWN),
    ("  gpu01\t{one}", {}, KNOWN),
    ("gpu01 ssh-ed25519 not-base64!", {}, UNKNOWN),
    ("gpu01 ssh-ed25519", {}, UNKNOWN),
    ("@revoked gpu01 {one}", {}, REVOKED),
    ("gpu01 {one}\n@revoked * {one}", {}, REVOKED),
    ("gpu01 {one}\n@revoked gpu01 {two}", {}, KNOWN),
    ("@revoked gpu02 {one}\ngpu01 {one}", {}, KNOWN),
    ("@cert-authority * {one}", {}, UNKNOWN),
    ("@cert-authority * {two}\ngpu01 {one}", {}, KNOWN),
    ("[gpu01]:2222 {one}", {"port": 2222}, KNOWN),
    ("[gpu01]:2222 {one}", {"port": 2223}, UNKNOWN),
    ("[gpu01]:2222 {one}", {}, UNKNOWN),
    ("gpu01 {one}", {"port": 2222}, KNOWN),  # as OpenSSH: known at any port
    ("gpu01 {two}", {"port": 2222}, UNKNOWN),
    ("gpu01 {one}\n[gpu01]:2222 {two}", {"port": 2222}, KNOWN),
    ("[gpu01]:2222 {two}", {"port": 2222}, CHANGED),
    ("@revoked gpu01 {one}\n[gpu01]:2222 {one}", {"port": 2222}, REVOKED),
    ("the-gpu {one}", {"known_as": "the-gpu"}, KNOWN),
    ("gpu01 {one}", {"known_as": "the-gpu"}, UNKNOWN),
    ("the-gpu {two}", {"known_as": "the-gpu", "port": 2222}, CHANGED),
]
HASHABLE = re.compile(r"[][\w,.:]+ \{")  # ssh-keygen leaves patterns and marked lines as they are


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Return two public key lines (`type base64`) without comments."""
    folder = tmp_path_factory.mktemp("keys")
    return [" ".join(keygen(folder / name).split()[:2]) for name in ("one", "two")]


def target(*files, hostname="gpu01", port=22, known_as=None):
    named = known_as or (hostname if port == 22 else f"[{hostname}]:{port}")
    return Target("gpu", hostname, port, "me", (), False, (), named, tuple(files), 10.0)


def key_of(line, name="gpu01"):
    kind, blob = line.split()
    return HostKey(name, kind, base64.b64decode(blob))


def hashed(file):
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)


@pytest.mark.parametrize(("text", "more", "expected"), CASES)
def test_what_the_file_says_holds(tmp_path, keys, text, more, expected):
    file = tmp_path / "known_hosts"
    file.write_text(text.format(one=keys[0], two=keys[1]) + "\n")
    judged(file, keys, more, expected)


@pytest.mark.parametrize(("text", "more", "expected"), [case for case in CASES if HASHABLE.match(case[0])])
def test_what_the_file_says_holds_where_names_are_hashed(tmp_path, keys, text, more, expected):
    file = tmp_path / "known_hosts"
    file.write_text(text.format(one=keys[0], two=keys[1]) + "\n")
    hashed(file)
    assert "|1|" in file.read_text()
    judged(file, keys, more, expected)


def judged(file, keys, more, expected):
    host = target(file, **more)
    outcome = None
    try:
        check(host, key_of(keys[0], host.known_as))
    except (UnknownKey, ChangedKey, RevokedKey) as error:
        outcome = error
        assert error.key.fingerprint == fingerprint(base64.b64decode(keys[0].split()[1]))
        assert error.key.fingerprint in str(error)
    assert type(outcome) is (expected or type(None))


def test_every_file_counts_and_none_has_to_exist(tmp_path, keys):
    (tmp_path / "second").write_text(f"gpu01 {keys[0]}\n")
    check(target(tmp_path / "missing", tmp_path / "second"), key_of(keys[0]))


def test_many_hosts_in_a_long_file_are_found_at_once(tmp_path, keys):
    """Each line was compared with each host: half a minute for these."""
    file = tmp_path / "known_hosts"
    file.write_text("".join(f"gpu{number} {keys[0]}\n" for number in range(4000)))
    began = time.process_time()
    assert {expected_kinds(target(file, hostname=f"gpu{number}")) for number in range(4000)} == {("ssh-ed25519",)}
    assert time.process_time() - began < 5


def test_the_words_say_what_to_do(tmp_path, keys):
    file = tmp_path / "known_hosts"
    with pytest.raises(UnknownKey) as unknown:
        check(target(file), key_of(keys[0]))
    assert "launch nodes trust gpu" in str(unknown.value)
    assert f"  gpu01 {keys[0]}" in unknown.value.lines
    file.write_text(f"\ngpu01 {keys[1]}\n")
    with pytest.raises(ChangedKey) as changed:
        check(target(file), key_of(keys[0]))
    assert f"{file}:2 expects ssh-ed25519 {fingerprint(key_of(keys[1]).blob)}" in str(changed.value)


def test_an_authority_is_said_not_to_be_asked(tmp_path, keys):
    file = tmp_path / "known_hosts"
    file.write_text(f"@cert-authority * {keys[1]}\n")
    with pytest.raises(UnknownKey, match="certificates of hosts are not supported"):
        check(target(file), key_of(keys[0]))


def test_the_known_kinds_are_asked_for(tmp_path, keys):
    file = tmp_path / "known_hosts"
    rsa = keygen(tmp_path / "rsa", "-b", "1024", kind="rsa").split()[:2]
    file.write_text(f"gpu01 {' '.join(rsa)}\n[gpu01]:9 {keys[0]}\n@revoked gpu01 {keys[1]}\n")
    assert expected_kinds(target(file)) == ("ssh-rsa",)
    assert expected_kinds(target(file, port=9)) == ("ssh-ed25519", "ssh-rsa")


def found(file, name):
    """Lines that ssh-keygen finds of a host."""
    done = subprocess.run(["ssh-keygen", "-F", name, "-f", file], capture_output=True, text=True)
    return [line for line in done.stdout.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("before", [None, "", "other ssh-ed25519 AAAA\n", "other ssh-ed25519 AAAA"])
def test_a_new_key_is_added(tmp_path, keys, before):
    file = tmp_path / "new" / "known_hosts"
    if before is not None:
        file.parent.mkdir()
        file.write_text(before)
    host = target(file, port=2222)
    assert add(host, key_of(keys[0], host.known_as)) == file
    check(host, key_of(keys[0], host.known_as))
    assert found(file, "[gpu01]:2222") == [f"[gpu01]:2222 {keys[0]}"]
    assert file.read_text() == f"{(before or '').rstrip()}\n[gpu01]:2222 {keys[0]}\n".lstrip()
    if before is None:
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    add(host, key_of(keys[0], host.known_as))
    assert len(found(file, "[gpu01]:2222")) == 1


@pytest.mark.parametrize("names", ["gpu01", "10.0.0.7,gpu01,other", "hashed"])
def test_a_changed_key_takes_the_place_of_the_old_one(tmp_path, keys, names):
    real = tmp_path / "real"
    real.write_text(f"before {keys[1]}\n{names if names != 'hashed' else 'gpu01'} {keys[1]} old\nafter {keys[1]}\n")
    if names == "hashed":
        hashed(real)
    file = tmp_path / "known_hosts"
    file.symlink_to(real)
    add(target(file), key_of(keys[0]))
    check(target(file), key_of(keys[0]))
    with pytest.raises(ChangedKey):
        check(target(file), key_of(keys[1]))
    assert file.is_symlink()
    assert len(found(real, "gpu01")) == 1
    for other in ("before", "after", *(name for name in names.split(",")[:1] if name != "gpu01" and "," in names)):
        check(target(file, known_as=other), key_of(keys[1]))
    assert not list(tmp_path.glob(".known_hosts.*"))


@pytest.mark.parametrize("where", ["pattern", "another file"])
def test_a_line_that_is_not_only_about_this_host_is_left_to_its_owner(tmp_path, keys, where):
    file, other = tmp_path / "known_hosts", tmp_path / "other"
    file.write_text(f"gpu* {keys[1]}\n" if where == "pattern" else "")
    other.write_text("" if where == "pattern" else f"gpu01 {keys[1]}\n")
    before = file.read_text()
    with pytest.raises(Refused, match=r":1 expects another key"):
        add(target(file, other), key_of(keys[0]))
    assert file.read_text() == before


@pytest.mark.parametrize("file", [Path("/etc/ssh/ssh_known_hosts"), Path("/dev/null")])
def test_a_file_of_others_is_never_written(keys, file):
    with pytest.raises(Refused, match="no file of yours"):
        add(target(file), key_of(keys[0]))
