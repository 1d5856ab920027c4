"""Find the git commit of a project, and how its files, or the frozen code of a run, differ from that commit."""

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import BadInput
from launcher.run.code.diffing import MOST_BYTES, FileChange, changes
from launcher.run.code.globs import Glob
from launcher.run.code.listing import CodeFile, CodeList, list_frozen
from launcher.run.code.names import NEVER, SUBMODULE, git_output
from launcher.run.records import Origin

_COMMIT = re.compile(rb"# branch\.oid ([0-9a-f]{40}|[0-9a-f]{64})")
_NAME = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_ENOUGH_S = 2.0
_EXECUTABLE, _LINK = "100755", "120000"  # the modes that git gives them
_LFS = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n(?:.*\n)*?oid sha256:([0-9a-f]{64})\n")


def origin_of(project: Path) -> Origin | None:
    """Return the project's commit (HEAD) and whether tracked files differ from it, or None if git is missing, finds no
    commit, or takes longer than two seconds.
    """
    words = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty")
    try:
        said = git_output(project, words, timeout_s=_ENOUGH_S)
    except subprocess.TimeoutExpired:
        return None
    lines = (said or b"").splitlines()
    found = next((match for line in lines if (match := _COMMIT.fullmatch(line))), None)
    if found is None:
        return None
    return Origin(found[1].decode(), any(not line.startswith(b"#") for line in lines))


# -- what was not committed


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file as a commit has it: git's mode, the id of its content (blob), and its size."""

    mode: str  # such as 100644
    blob: str  # git's id of its content
    size: int


def changes_since(commit: str, project: Path, code: CodeList, excluded: Sequence[str]) -> list[FileChange]:
    """Return how frozen code differs from a commit of the project's repository, apart from submodules and files that
    the spec leaves out (`excluded`); raise BadInput if git cannot read the commit.
    """
    committed = _committed(commit, project)
    modules = tuple(f"{path}/" for path, file in committed.items() if file.mode == SUBMODULE)
    left_out = [Glob(pattern) for pattern in excluded]
    there = {path: file for path, file in committed.items() if file.mode != SUBMODULE and _is_code(path, left_out)}
    files = {file.path: file for file in code.files if not modules or not f"{file.path}/".startswith(modules)}
    other = {path for path in there.keys() | files.keys() if not _is_equal(code.root, files.get(path), there.get(path))}
    wanted = {path: file for path, file in there.items() if path in other}
    texts = _texts(project, {file.blob for file in wanted.values() if file.size <= MOST_BYTES})
    other -= {path for path in wanted.keys() & files.keys() if _in_lfs(code.root / path, texts.get(wanted[path].blob))}
    kept = CodeList(code.root, tuple(file for path, file in files.items() if path in other), code.looks)
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(wanted.keys() & other, key=lambda path: wanted[path].mode == _LINK):  # nothing behind a link
            _write(Path(folder, path), wanted[path], texts.get(wanted[path].blob))
        return changes(list_frozen(Path(folder)), kept)


def _committed(commit: str, project: Path) -> dict[str, CommittedFile]:
    """Return the files that the commit has in the project's folder, by their paths relative to it. The folder need not
    be the repository's root. Raise BadInput if git does not know the commit.
    """
    words = ("ls-tree", "-r", "-z", "-l", commit)
    output = git_output(project, words) if _NAME.fullmatch(commit) else None
    if output is None:
        raise BadInput(f"git knows nothing of the commit {commit[:12]} in {project}")
    found = {}
    for line in filter(None, os.fsdecode(output).split("\0")):
        about, _, path = line.partition("\t")
        mode, _, blob, size = about.split()
        found[path] = CommittedFile(mode, blob, int(size) if size.isdecimal() else 0)
    return found


def _is_code(path: str, excluded: Sequence[Glob]) -> bool:
    """Return whether freezing would include a file with this path, which the spec's patterns may exclude."""
    return not any(glob.matches(path) for glob in excluded) and not (NEVER | {".."}) & set(path.split("/"))


def _is_equal(root: Path, file: CodeFile | None, committed: CommittedFile | None) -> bool:
    """Return whether the file in the code, whose folder is `root`, and the committed file are equal in content, type
    and executable bit; None stands for no file.
    """
    if file is None or committed is None or (file.link is not None) != (committed.mode == _LINK):
        return False
    if file.link is None and file.executable != (committed.mode == _EXECUTABLE):
        return False
    content = os.fsencode(file.link) if file.link is not None else (root / file.path).read_bytes()
    ends = (b"\r\n", b"\n")  # git may be configured to check out other line ends than it stores
    return committed.blob in (_blob(content, committed.blob), _blob(content.replace(*ends), committed.blob))


def _blob(content: bytes, such: str) -> str:
    """Return the id that git would give this content. `such` is the id of another object of the repository, whose
    length shows whether ids are SHA-1 or SHA-256.
    """
    kind = "sha1" if len(such) == 40 else "sha256"
    return hashlib.new(kind, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _in_lfs(path: Path, committed: bytes | None) -> bool:
    """Return whether `committed` is a Git LFS pointer to exactly the content of the file at `path`."""
    named = _LFS.match(committed or b"")
    return named is not None and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == named[1].decode()


def _texts(project: Path, blobs: Collection[str]) -> Mapping[str, bytes]:
    """Return the contents of the blobs by their ids, from the repository of `project`; those that git does not find are
    left out.
    """
    wanted = sorted(blobs)
    output = git_output(project, ("cat-file", "--batch"), stdin="".join(f"{blob}\n" for blob in wanted).encode()) or b""
    return dict(_answers(wanted, output))


def _answers(wanted: Iterable[str], output: bytes) -> "Iterable[tuple[str, bytes]]":
    """Yield the id and content of each blob that git found, from the output `output` of `git cat-file --batch` for the
    ids in `wanted`.
    """
    at = 0
    for blob in wanted:
        end = output.find(b"\n", at)
        size, at = output[at:end].rpartition(b" ")[2], end + 1
        if size.isdigit():  # else it is missing
            yield blob, output[at : at + int(size)]
            at += int(size) + 1


def _write(path: Path, file: CommittedFile, text: bytes | None) -> None:
    """Write a committed file as `git checkout` would; if `text` is None because it is too long to compare, write a
    sparse file of its size.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if file.mode == _LINK:
        path.symlink_to(os.fsdecode(text or b""))
        return
    path.write_bytes(text or b"")
    if text is None:
        os.truncate(path, file.size)
    path.chmod(0o755 if file.mode == _EXECUTABLE else 0o644)
