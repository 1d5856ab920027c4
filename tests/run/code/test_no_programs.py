"""Git starts none of the programs that a repository's own configuration names."""

import os
import subprocess

import pytest

from launcher.run.code.listing import list_frozen
from launcher.run.code.names import code_names, git_names
from launcher.run.code.origin import changes_since, origin_of

# Settings that name a program, as `git help config` lists them.
SETTINGS = {
    "fsmonitor": "[core]\n fsmonitor = {evil}",
    "hooks": "[core]\n hooksPath = {hooks}",
    "filter": '[filter "any"]\n clean = {evil}\n smudge = {evil}\n required = true',
    "filter that is a process": '[filter "any"]\n process = {evil}\n required = true',
    "filter named with signs": '[filter "a=b.c"]\n clean = {evil}\n process = {evil}',
    "filter in capitals": '[FILTER "any"]\n CLEAN = {evil}',
    "filter of large files": '[filter "lfs"]\n clean = {evil} %f\n process = {evil}\n required',
    "diff": '[diff]\n external = {evil}\n[diff "any"]\n textconv = {evil}\n command = {evil}',
    "merge": '[merge "any"]\n driver = {evil} %A\n[mergetool "any"]\n cmd = {evil}\n[merge]\n tool = any',
    "credentials": "[credential]\n helper = {evil}\n[core]\n askPass = {evil}",
    "ssh": "[core]\n sshCommand = {evil}\n gitProxy = {evil}",
    "editor": "[core]\n editor = {evil}\n[sequence]\n editor = {evil}",
    "pager": "[core]\n pager = {evil}\n[pager]\n status = {evil}\n ls-files = true\n config = true",
    "signatures": "[gpg]\n program = {evil}\n[log]\n showSignature = true\n[commit]\n gpgSign = true",
    "alternates": "[core]\n alternateRefsCommand = {evil}",
    "upload": "[uploadpack]\n packObjectsHook = {evil}\n[receive]\n procReceiveRefs = refs",
    "a missing object": (
        '[extensions]\n partialClone = origin\n[remote "origin"]\n url = {elsewhere}\n promisor = true\n'
        ' uploadpack = {evil}\n[protocol "file"]\n allow = always'
    ),
    "a remote of a program": '[extensions]\n partialClone = o\n[remote "o"]\n url = ext::{evil}\n promisor = true',
    "alias": "[alias]\n status = !{evil}\n ls-files = !{evil}\n config = !{evil}\n cat-file = !{evil}",
    "submodules": '[submodule "lib"]\n update = !{evil}\n ignore = none\n[status]\n submoduleSummary = true',
    "trailers": '[trailer "any"]\n command = {evil}\n cmd = {evil}',
    "web": '[browser "any"]\n cmd = {evil}\n[help]\n browser = any',
    "maintenance": "[gc]\n auto = 1\n[maintenance]\n auto = true",
}
PLACES = ("config", "include", "include if", "worktree")


def git(folder, *words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path):
    """A repository with a commit; its files look changed, so that git has to read them through their filters."""
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q")
    for attribute in ("any", "a=b.c", "lfs"):
        (project / f"{attribute}.bin").write_text("1\n")
    (project / ".gitattributes").write_text(
        "any.bin filter=any diff=any merge=any\na=b.c.bin filter=a=b.c\nlfs.bin filter=lfs\n"
    )
    git(project, "add", "-A")
    git(project, "commit", "-qm", "all")
    for attribute in ("any", "a=b.c", "lfs"):
        (project / f"{attribute}.bin").write_text("2\n")
    os.utime(project / ".gitattributes", (0, 0))  # git then writes its index anew, which runs a hook, at any speed
    return project


def configure(project, words, place):
    evil, hooks = project.parent / "evil", project.parent / "hooks"
    hooks.mkdir()
    for program in (evil, hooks / "post-index-change", hooks / "reference-transaction", hooks / "fsmonitor-watchman"):
        program.write_text(f"#!/bin/sh\ntouch {project.parent}/canary\ncat\n")
        program.chmod(0o755)
    text = words.format(evil=evil, hooks=hooks, elsewhere=project) + "\n"
    own = project / ".git" / "config"
    if place == "config":
        own.write_text(own.read_text() + text)
        return
    other = project / ".git" / ("config.worktree" if place == "worktree" else "more")
    other.write_text(text)
    where = {
        "include": f"[include]\n path = {other}\n",
        "include if": f'[includeIf "gitdir:{project}/"]\n path = more\n',
        "worktree": "[extensions]\n worktreeConfig = true\n",
    }
    own.write_text(own.read_text() + where[place])


def ask_everything(project):
    """Call git in every way that launch does."""
    origin = origin_of(project)
    assert origin is not None
    assert git_names(project)
    changes_since(origin.commit, project, list_frozen(project), [])
    return code_names(project, lambda _: False)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("place", PLACES)
def test_no_program_of_a_repository_is_started(project, setting, place):
    configure(project, SETTINGS[setting], place)
    if setting in ("a missing object", "a remote of a program"):
        blob = subprocess.check_output(["git", "rev-parse", "HEAD:any.bin"], cwd=project, text=True).strip()
        (project / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert "any.bin" in ask_everything(project)
    assert not (project.parent / "canary").exists()


@pytest.mark.parametrize("setting", ["fsmonitor", "hooks", *(name for name in SETTINGS if name.startswith("filter"))])
@pytest.mark.parametrize("place", PLACES)
def test_git_by_itself_would_have_started_it(project, setting, place):
    """This is what the tests above rest on: these settings do run programs where they are obeyed."""
    configure(project, SETTINGS[setting], place)
    subprocess.run(["git", "status"], cwd=project, check=False, capture_output=True)
    assert (project.parent / "canary").exists()


def test_settings_that_the_user_gives_git_by_environment_are_kept(project, monkeypatch):
    configure(project, SETTINGS["filter"], "config")
    (project / "more").write_text("x\n")
    for name, value in {"COUNT": "1", "KEY_0": "core.excludesFile", "VALUE_0": str(project / "left_out")}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    (project / "left_out").write_text("left_out\nmore\n")
    assert "more" not in ask_everything(project)
    assert not (project.parent / "canary").exists()
