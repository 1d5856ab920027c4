"""Find the project of a spec and the code that a run of it gets: which files are frozen, and what they import."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from launcher.plan.facts import Misfit, Project
from launcher.plan.interpreter import install_command, is_program, lacking, may_import, package_of, sites_of
from launcher.run.code.imports import SureImport, sure_imports, syntax_error, third_party_imports
from launcher.run.code.listing import CodeList, list_code, list_frozen, with_files
from launcher.run.code.own_packages import Installed, installed_live, own_folders, stays_live, usable
from launcher.spec.model import JobSpec

_OURS = frozenset(("launcher", "trainer"))


@dataclass(frozen=True, slots=True)
class ProjectCode:
    """The files of a project to freeze (`listed`). `own_folders` are those from which Python imports the project's own
    packages, and `installed` are the editable installations: packages that the interpreter imports from the folder
    where they are edited, whether or not that is in the project.
    """

    listed: CodeList
    own_folders: tuple[str, ...]
    installed: tuple[Installed, ...]  # editable installations, in the project or outside


def code_of(
    root: Path, spec: JobSpec, python: str, *, frozen: bool, beside: Mapping[str, Path] = MappingProxyType({})
) -> ProjectCode:
    """Return the code of a project as the interpreter `python` imports it; raise BadInput if it is too large.

    With `frozen`, `root` is a frozen copy, of which every file is code. `beside` are files to add, by their names in
    the code.
    """
    sites = sites_of(python, os.environ)
    installed = tuple(installed_live(sites))
    folders = own_folders(root, installed, sites)
    listed = with_files(list_frozen(root) if frozen else list_code(root, spec.code, folders), beside)
    return ProjectCode(listed, usable(folders, [file.path for file in listed.files]), installed)


def live_imports(project: Project, code: ProjectCode) -> list[str]:
    """Return warnings about modules that ranks would import from the folder in which they are edited, and not from the
    frozen code.
    """
    return stays_live(project.imports, code.installed, code.own_folders, Path(project.path))


def project_of(file: Path) -> Path:
    """Return the project folder of a spec, whose code is frozen: the nearest one above with a `.git` or
    `pyproject.toml`.

    If there is none, it is the working folder if the spec is in that, else the spec's own folder.
    """
    folder, here = file.resolve().parent, Path.cwd()
    return marked_above(folder) or (here if folder.is_relative_to(here) else folder)


def marked_above(folder: Path) -> Path | None:
    """Return the nearest folder, from `folder` up, with a `.git` or `pyproject.toml`, or None if there is none."""
    folders = (folder, *folder.parents)
    return next((one for one in folders if (one / ".git").exists() or (one / "pyproject.toml").exists()), None)


def facts_of_code(spec: JobSpec, root: Path, code: CodeList, python: str, folders: Sequence[str]) -> Project:
    """Return the facts about the code that a plan needs: its files, the modules that the program imports from
    elsewhere, whether `run.module` exists, a syntax error, and the modules that the interpreter certainly lacks.

    `root` is the project, `code` its files to freeze, `python` the interpreter of the ranks, and `folders` are those
    from which the project's own packages are imported.
    """
    files = {entry.path for entry in code.files}

    @cache
    def read(path: str) -> bytes | None:
        """Return the content of a frozen file, or None if the path is not that of one."""
        return Path(code.source(path)).read_bytes() if path in files else None

    imports: set[str] = set()
    found = True
    entry = spec.run.script
    if spec.run.module is not None:
        entry = _module_file(spec.run.module, (spec.run.workdir, *folders), files)
        found = entry is not None or _may_have(spec, spec.run.module, python)
    elif entry is not None:
        entry = os.path.normpath(os.path.join(spec.run.workdir, entry))
    wrong, missing = "", tuple[Misfit, ...]()
    if entry is not None and entry in files:
        imports = third_party_imports(read, entry, folders)
        wrong = syntax_error(read(entry) or b"", entry) if _has_our_version(python) else ""
        if spec.run.setup is None and is_program(python):
            missing = _missing(spec, root, files, sure_imports(read, entry, folders), python)
    elif spec.run.module is not None:
        imports = {"*"}
    return Project(str(root), files, imports, found, tuple(folders), wrong, missing)


def _missing(
    spec: JobSpec, root: Path, files: Collection[str], imported: Sequence[SureImport], python: str
) -> tuple[Misfit, ...]:
    """Return a problem for each imported module that neither the interpreter `python` nor the project in `root` has.

    `files` are the paths of the project's frozen files, and `imported` the imports in them that surely happen.
    """
    own = {part.partition(".")[0] for path in files for part in path.split("/")} | _OURS
    tops = {one: one.module.partition(".")[0] for one in imported}
    foreign = [one for one, top in tops.items() if top not in own and not top.startswith("_")]
    absent = lacking([one.module for one in foreign], python, {**os.environ, **spec.env})
    first = {tops[one]: one for one in reversed(foreign) if one.module in absent and not _is_near(root, one, tops[one])}
    key, place = "run.script" if spec.run.module is None else "run.module", _shown(python, root)
    return tuple(
        Misfit(key, f"{one.path}:{one.line}: no module {top} in {place}", _install_command_for(top, root, python))
        for top, one in sorted(first.items(), key=lambda pair: (pair[1].path, pair[1].line))
    )


def _is_near(root: Path, one: SureImport, top: str) -> bool:
    """Return whether a module or folder `top`, the first part of the imported module's name, lies in the project's
    folder `root` or in any folder above the importing file.

    The program may add such a folder to its path, so that a module there is not reported as missing, although its file
    is not frozen.
    """
    folders = (root, *(root / one.path).parents)
    return any((folder / top).exists() or (folder / f"{top}.py").exists() for folder in folders)


def _shown(python: str, root: Path) -> str:
    """Return how a message names the interpreter `python`: its virtual environment relative to the project `root` if it
    is in the project, else its path.
    """
    home = Path(python).parent.parent
    return os.path.relpath(home, root) if home.is_relative_to(root) else python


def _install_command_for(module: str, root: Path, python: str) -> str:
    """Return the command that installs a module for the interpreter `python`, or `uv add` if the project `root` has a
    lock file of uv.
    """
    package = package_of(module)
    return f"uv add {package}" if (root / "uv.lock").exists() else install_command(package, python)


def _has_our_version(python: str) -> bool:
    """Return whether the interpreter at the path `python` has the major and minor version of this process's Python,
    such as 3.12, so that both find the same syntax errors.
    """
    ours = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return any(site.parent.name == ours for site in sites_of(python, os.environ)[:1])


def _may_have(spec: JobSpec, module: str, python: str) -> bool:
    """Return whether `python`, the ranks' interpreter, may have the module: its folders may have it, or the spec has a
    `run.setup`, which may install any.
    """
    return spec.run.setup is not None or may_import(module, python, {**os.environ, **spec.env})


def _module_file(module: str, folders: Sequence[str], files: Collection[str]) -> str | None:
    """Return the path of a module's file in the code, or None if the code does not have it.

    `folders` are those that are searched for the module, and `files` the code's files, all relative to the code.
    """
    bases = [os.path.normpath(os.path.join(folder, module.replace(".", "/"))) for folder in folders]
    return next((path for base in bases for path in (f"{base}.py", f"{base}/__main__.py") if path in files), None)
