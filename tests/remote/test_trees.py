"""Code on its way: byte for byte the same on the other side, whatever its names, and nothing else is ever written."""

import os
import stat

import pytest

from launcher.errors import BadInput
from launcher.remote.shipping import kept_trees as trees
from launcher.remote.shipping.tree import (
    FileEntry,
    contents,
    digest_of,
    entries,
    leads_out,
    refuse_links_out,
)
from launcher.run.code.hashes import CodeChanged
from launcher.run.code.listing import CodeFile, CodeList, list_frozen
from launcher.run.drafts import new_draft

HOSTILE = [
    b"plain.py",
    b"-rf",
    b"--checkpoint-action=exec=sh",
    b"a b",
    b"new\nline.py",
    b"tab\t.py",
    b"quote'\"`$(touch pwned);.py",
    b"back\\slash",
    b"\xff\xfe not utf-8 \xe9",
    "größe-日本語-😀".encode(),
    b"\x1b[2J\x07",
    b"...",
    b"..name",
    b"~",
    b"C:",
    b"*",
    b"deep/" * 40 + b"er",
    b"n" * 255,
    b".hidden/.file",
    b"venv/tracked.py",
    b"__pycache__/tracked.pyc",
]


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    for index, name in enumerate(HOSTILE):
        path = os.path.join(os.fsencode(root), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(bytes([index]) * (index * 37_000))
    os.chmod(os.path.join(os.fsencode(root), b"-rf"), 0o755)
    (root / "link to\nit").symlink_to("plain.py")
    (root / ".hidden" / "up").symlink_to("../plain.py")
    os.symlink(b"\xff\xfe not utf-8 \xe9", os.path.join(os.fsencode(root), b"\xfe"))
    return root


def read_of(stream):
    """Gives the bytes in pieces of all sizes, as a connection does."""
    data = b"".join(stream)
    offset = 0

    def read(most):
        nonlocal offset
        if offset == len(data):
            raise EOFError
        piece = data[offset : offset + min(most, 1 + offset % 5000)]
        offset += len(piece)
        return piece

    return read


def sent(code, projects):
    return trees.keep(projects, digest_of(code), entries(code), read_of(contents(code)))


def listing(root):
    """Return kind, executable bit and content of everything below a folder."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(root)):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                found[os.path.relpath(path, os.fsencode(root))] = ("link", os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, os.fsencode(root))] = (bool(status.st_mode & 0o100), file.read())
    return found


def test_hostile_names_and_contents_arrive_as_they_are(project, tmp_path):
    code = list_frozen(project)
    assert len(code.files) == len(HOSTILE) + 3
    tree = sent(code, tmp_path / "projects")
    assert listing(tree) == listing(project)
    assert os.listdir(tmp_path / "projects") == [tree.name], "and nothing else is left"
    assert trees.have(tmp_path / "projects", tree.name)
    assert stat.S_IMODE(tree.stat().st_mode) == 0o700


def test_the_digest_names_everything(tmp_path):
    def digest(**changes):
        root = tmp_path / f"p{len(os.listdir(tmp_path))}"
        root.mkdir()
        values = {"name": "a", "text": "x", "mode": 0o644, "link": "a", **changes}
        (root / values["name"]).write_text(values["text"])
        (root / values["name"]).chmod(values["mode"])
        (root / "l").symlink_to(values["link"])
        return digest_of(CodeList(root, list_frozen(root).files))

    assert digest() == digest()
    changed = [{"name": "b", "link": "b"}, {"text": "y"}, {"mode": 0o755}, {"link": "./a"}]
    assert len({digest(), *(digest(**change) for change in changed)}) == 5


def test_what_is_kept_no_longer_whole_is_not_had(project, tmp_path):
    projects = tmp_path / "projects"
    code = list_frozen(project)
    assert not trees.have(projects, digest_of(code))
    tree = sent(code, projects)
    for harm in (
        (tree / "plain.py").unlink,
        lambda: ((tree / "a b").chmod(0o600), (tree / "a b").write_bytes(b"x" * (tree / "a b").stat().st_size)),
        (tree / "extra").touch,
        lambda: (tree / "-rf").chmod(0o400),
    ):
        harm()
        assert not trees.have(projects, tree.name)
        assert sent(code, projects) == tree, "it is put in its place again"
        assert trees.have(projects, tree.name)
        assert listing(tree) == listing(project)
    assert os.listdir(projects) == [tree.name]


def test_a_connection_that_breaks_leaves_nothing(project, tmp_path):
    projects = tmp_path / "projects"
    code = list_frozen(project)
    whole = b"".join(contents(code))
    for share in (0, 1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(EOFError):
            trees.keep(projects, digest_of(code), entries(code), read_of([whole[:share]]))
        assert os.listdir(projects) == []


def test_a_tree_that_is_not_what_its_digest_says_is_not_kept(project, tmp_path):
    code = list_frozen(project)
    whole = bytearray(b"".join(contents(code)))
    whole[len(whole) // 2] ^= 1
    with pytest.raises(CodeChanged):
        trees.keep(tmp_path / "projects", digest_of(code), entries(code), read_of([bytes(whole)]))
    assert os.listdir(tmp_path / "projects") == []


@pytest.mark.parametrize(
    "files",
    [
        [FileEntry("/etc/passwd", 1, False)],
        [FileEntry("../out", 1, False)],
        [FileEntry("a/../../out", 1, False)],
        [FileEntry("a//b", 1, False)],
        [FileEntry("./a", 1, False)],
        [FileEntry("", 1, False)],
        [FileEntry(".", 1, False)],
        [FileEntry("..", 1, False)],
        [FileEntry("a/", 1, False)],
        [FileEntry("a\0b", 1, False)],
        [FileEntry(".git/config", 1, False)],
        [FileEntry("sub/.git/hooks/post-checkout", 1, True)],
        [FileEntry(".launch/x", 1, False)],
        [FileEntry("n" * 256, 1, False)],
        [FileEntry("n/" * 2500 + "n", 1, False)],
        [FileEntry("\u0394", 1, False)],
        [FileEntry("a", -1, False)],
        [FileEntry("a", 1, False), FileEntry("a", 1, False)],
        [FileEntry("a", 1, False), FileEntry("a/b", 1, False)],
        [FileEntry("a/b", 1, False), FileEntry("a", 0, False, "x")],
        [FileEntry("out", 0, False, "/tmp"), FileEntry("out/b", 1, False)],
        [FileEntry("in", 0, False, "sub"), FileEntry("in/b", 1, False), FileEntry("sub/a", 1, False)],
        [FileEntry("l", 0, False, "/etc")],
        [FileEntry("l", 0, False, "..")],
        [FileEntry("l", 0, False, "")],
        [FileEntry("l", 0, False, "a\0b")],
        [FileEntry("a/l", 0, False, "../../x")],
        [FileEntry("a/b/l", 0, False, "../../top"), FileEntry("a/b/m", 0, False, "l/../../..")],
    ],
)
def test_a_tree_that_leads_out_is_refused(files, tmp_path):
    before = os.listdir(tmp_path)
    with pytest.raises(BadInput):
        trees.keep(tmp_path / "projects", "0" * 64, files, read_of([b"x" * 100]))
    assert set(os.listdir(tmp_path)) - set(before) <= {"projects"}
    assert not (tmp_path / "projects").exists() or os.listdir(tmp_path / "projects") == []


@pytest.mark.parametrize("digest", ["", "..", "../../etc", "0" * 63, "G" * 64, "0" * 63 + "/", "A" * 64])
def test_a_digest_is_never_a_path(digest, tmp_path):
    for ask in (
        lambda: trees.have(tmp_path, digest),
        lambda: trees.tree(tmp_path, digest),
        lambda: trees.keep(tmp_path / "projects", digest, [], read_of([])),
    ):
        with pytest.raises(BadInput):
            ask()


@pytest.mark.parametrize(
    ("path", "link", "out"),
    [
        ("a", "b", False),
        ("a", ".", False),
        ("a", "./b/", False),
        ("a", "..", True),
        ("a/b", "..", False),
        ("a/b", "../..", True),
        ("a/b/c", "../../d", False),
        ("a", "b/..", True),
        ("a", "/a", True),
        ("a", "", True),
    ],
)
def test_where_a_link_may_lead(path, link, out):
    assert leads_out(path, link) is out


def test_a_link_to_what_is_not_sent_is_told_before_anything_is_sent(tmp_path):
    code = CodeList(tmp_path, (CodeFile("data\n", 0, False, "/datasets"), CodeFile("in", 0, False, "a")))
    with pytest.raises(BadInput) as raised:
        refuse_links_out(code)
    assert raised.value.lines[0] == r"code: 'data\n' is a link to /datasets, which is not sent"
    assert len(raised.value.lines) == 2
    assert raised.value.lines[-1].startswith("hint: code.exclude")


@pytest.mark.parametrize("change", ["longer", "shorter", "gone", "fifo", "link"])
def test_a_file_that_changes_while_it_is_sent(tmp_path, change):
    root, path = tmp_path / "project", tmp_path / "project" / "log"
    root.mkdir()
    path.write_bytes(b"x" * 1000)
    code = list_frozen(root)
    digest = digest_of(code)
    if change == "longer":
        with path.open("ab") as file:
            file.write(b"more")
        assert b"".join(contents(code)) == b"x" * 1000, "as long as it was listed; its digest tells the rest"
    else:
        path.unlink()
        if change == "shorter":
            path.write_bytes(b"x" * 999)
        elif change == "fifo":
            os.mkfifo(path)
        elif change == "link":
            path.symlink_to("/etc/passwd")
        with pytest.raises(CodeChanged):
            trees.keep(tmp_path / "projects", digest, entries(code), read_of(contents(code)))
    with pytest.raises(BadInput):
        digest_of(code)


def test_old_trees_are_taken_away_and_new_ones_are_not(tmp_path):
    now = 1_000_000.0
    for index in range(30):
        tree = tmp_path / f"{index:064x}"
        tree.mkdir()
        (tree / "file").touch(0o400)
        os.utime(tree, (now - index * 10_000, now - index * 10_000))
    (tmp_path / "notes").mkdir()
    draft = new_draft(tmp_path)
    draft.mkdir()
    os.utime(draft, (0, 0))
    trees.tidy(tmp_path, now)
    assert sorted(os.listdir(tmp_path)) == sorted([*(f"{index:064x}" for index in range(20)), "notes", draft.name])
    trees.tidy(tmp_path / "missing", now)


def test_where_links_may_lead_out_nothing_is_written_through_them(tmp_path):
    (tmp_path / "secret").mkdir()
    root = tmp_path / "project"
    root.mkdir()
    (root / "data").symlink_to(tmp_path / "secret")
    code = list_frozen(root)
    kept = trees.keep(tmp_path / "kept", digest_of(code), entries(code), lambda size: b"", links_out=True)
    assert os.readlink(kept / "data") == str(tmp_path / "secret")
    files = (FileEntry("data", 0, False, str(tmp_path / "secret")), FileEntry("data/stolen", 1, False))
    with pytest.raises(BadInput, match="inside something that is no folder"):
        trees.keep(tmp_path / "kept", "0" * 64, files, lambda size: b"x" * size, links_out=True)
    assert os.listdir(tmp_path / "secret") == []
