"""The project's own packages: from which of its folders Python imports them, and which it would import from a folder
outside the frozen code. Found by looking at files; nothing is imported.

    pyproject.toml, src/, .pth files, finders of editable installs ─► folders in code/ that go onto PYTHONPATH
                                                                └──► words about what stays live
"""

import ast
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.plan.interpreter import path_lines

_OURS = Path(__file__).parents[3]
_MAPPING = re.compile(r"^MAPPING\b[^=]*= (\{.*\})$", re.MULTILINE)
_NAME = re.compile(r"""^name\s*=\s*["']?([\w.-]+)""", re.MULTILINE)
_BUILT = re.compile(r"^\[build-system\]|^\[tool\.poetry\]", re.MULTILINE)
_BY_CODE = re.compile(r"_+(?:editable_+(?:impl_)?)?(\w+?)(?:_editable(?:_loader)?)?\.py")
_HIDES_NOTHING = frozenset(("test", "this", "antigravity"))  # modules of the standard library that no program imports


@dataclass(frozen=True, slots=True)
class Installed:
    """A package, or a folder of packages, that is installed as editable: an interpreter imports it from the folder in
    which it is edited.

    `path` is the folder on sys.path or, with `name`, that of the one package; `by_code` means that an import hook finds
    it, whatever is on PYTHONPATH.
    """

    path: Path  # the folder on sys.path, or with `name` the package's own folder
    name: str | None = None  # a single package
    by_code: bool = False  # an import hook finds it, whatever is on PYTHONPATH

    @property
    def folder(self) -> Path | None:
        """Return the folder that has to be on sys.path to import this package, or None if only an import hook can find
        it.
        """
        if self.name is None:
            return self.path
        parts = self.name.split(".")
        if self.by_code or list(self.path.parts[-len(parts) :]) != parts:
            return None
        return self.path.parents[len(parts) - 1]

    def has(self, module: str) -> Path | None:
        """Return the path from which the top-level module `module` would be imported: a file or a package's folder.
        Return None if this installation does not provide it.
        """
        if self.name is not None:
            return self.path if self.name.partition(".")[0] == module else None
        file = self.path / f"{module}.py"
        return file if file.is_file() else dict(self.packages()).get(module)

    def packages(self) -> list[tuple[str, Path]]:
        """Return (name, path) of the package or, for a folder, of each package in it that has an `__init__.py`."""
        if self.name is not None:
            return [(self.name, self.path)]
        return [(init.parent.name, init.parent) for init in self.path.glob("*/__init__.py")]


def installed_live(sites: Collection[Path]) -> list[Installed]:
    """Return all packages except the launcher that are installed as editable in these site-packages folders."""
    found = [one for site in sites for one in _of_site(site)]
    return [one for one in found if _real(one.path) != _real(_OURS)]


def _of_site(site: Path) -> Iterator[Installed]:
    """Yield the editable installations, each a folder of packages or one package, of one site-packages folder."""
    for file in sorted(site.glob("*.pth")):
        yield from (Installed(_real(folder)) for folder in path_lines(file) if "-packages" not in str(folder))
    for finder in sorted(site.glob("__editable___*_finder.py")):
        mapping = _MAPPING.search(_text(finder))
        names = ast.literal_eval(mapping[1]) if mapping is not None else {}
        yield from (Installed(_real(Path(path)), name) for name, path in names.items())
    for loader in sorted({*site.glob("_*_editable.py"), *site.glob("_*_editable_loader.py")}):
        paths = re.findall(r"""["'](/[^"'\n]+)["']""", _text(loader))
        named = _BY_CODE.fullmatch(loader.name)
        yield from (Installed(_real(Path(path)), named[1], by_code=True) for path in paths[:1] if named is not None)


def own_folders(project: Path, installed: Sequence[Installed], sites: Collection[Path]) -> tuple[str, ...]:
    """Return the folders of the project, relative to it, from which its packages are imported: those that are installed
    as editable (`installed`), and those that its pyproject.toml or setup files only declare. A declared one is left out
    if a package in it is installed with compiled modules in `sites`, the interpreter's site-packages folders.
    """
    home = _real(project)
    paths = (one.folder for one in installed if one.folder is not None)
    live = [folder for path in paths for folder in sorted(_behind_links(path))]
    found = [*live, *(folder for folder in _declared(home) if not _is_compiled(folder, sites))]
    inside = (os.path.relpath(folder, home) for folder in found if folder.is_relative_to(home))
    return tuple(dict.fromkeys(inside))


def _behind_links(folder: Path) -> set[Path]:
    """Return the folders from which the packages in `folder` are really imported: an editable installation may have
    made a package of links to its files, and then they are where the links to `__init__.py` lead.

    Return `folder` itself if there are no such links.
    """
    linked = {_real(init).parents[1] for init in folder.glob("*/__init__.py") if init.is_symlink()}
    return linked or {folder}


def _declared(home: Path) -> Iterator[Path]:
    """Yield the folders from which the packages of the project in `home` would be imported, were they installed: `src`
    if it has packages, and `home` itself if it has the package that pyproject.toml names.

    Yield none for a project that cannot be installed: one without setup.py, setup.cfg and a build in pyproject.toml.
    """
    text = _text(home / "pyproject.toml")
    if not (_BUILT.search(text) or (home / "setup.py").is_file() or (home / "setup.cfg").is_file()):
        return
    if any((home / "src").glob("*/__init__.py")):
        yield home / "src"
    named = _NAME.search(text)
    if named is not None and (home / re.sub(r"[-.]+", "_", named[1]).lower() / "__init__.py").is_file():
        yield home


def _is_compiled(folder: Path, sites: Collection[Path]) -> bool:
    """Return whether a package of the same name as one in the folder is installed, with compiled modules (*.so), in one
    of `sites`, the site-packages folders. The project's files lack these, so they cannot replace it.
    """
    names = {init.parent.name for init in folder.glob("*/__init__.py")}
    return any(any((site / name).rglob("*.so")) for site in sites for name in names)


def usable(folders: Sequence[str], files: Collection[str]) -> tuple[str, ...]:
    """Return those of `folders` from which some of the frozen `files` can be imported, without any that hides a module
    of the standard library.
    """
    return tuple(folder for folder in folders if (names := _modules_in(folder, files)) and not _hidden(names))


def _hidden(names: set[str]) -> set[str]:
    """Return the names among `names` that would hide modules of the standard library."""
    return names & sys.stdlib_module_names - _HIDES_NOTHING


def _modules_in(folder: str, files: Collection[str]) -> set[str]:
    """Return the top-level names that can be imported from the folder, given all frozen `files`. In the project's root
    only a package with an __init__.py counts.
    """
    start = "" if folder == "." else f"{folder}/"
    below = (file.removeprefix(start).split("/") for file in files if file.startswith(start) and file.endswith(".py"))
    return {parts[0].removesuffix(".py") for parts in below if start or len(parts) == 1 or parts[1:] == ["__init__.py"]}


def stays_live(
    modules: Collection[str], installed: Sequence[Installed], folders: Sequence[str], project: Path
) -> list[str]:
    """Return a warning for each package that ranks would import from the folder in which it is edited, so that edits
    reach the run: the project's own packages, and others among the `modules` that its code imports.

    `installed` are the packages installed as editable. `folders`, relative to `project`, are frozen and on PYTHONPATH,
    so that ranks import from the frozen copy what is installed from them.
    """
    home = _real(project)
    frozen = {_real(home / folder) for folder in folders}
    live = [one for one in installed if not frozen & (_behind_links(one.folder) if one.folder is not None else set())]
    mine = [one for one in live if one.path.is_relative_to(home)]
    found = {name: path for one in mine for name, path in one.packages()}
    tops = {module.partition(".")[0] for module in modules}
    found.update({top: path for one in live for top in tops if (path := one.has(top)) is not None})
    return [_warning_about(name, path, home) for name, path in sorted(found.items())]


def _warning_about(name: str, path: Path, home: Path) -> str:
    """Return the warning that the package `name` at `path` is not frozen, with a hint how to freeze it; `home` is the
    project's folder.
    """
    way_out = "install it without -e (editable) into the environment of the ranks"
    if path.is_relative_to(home):
        way_out += f", or have its files frozen: code.include: [{os.path.relpath(path, home)}]"
    return f"{name} would be imported from {path}, which is not frozen: edits reach the run\nhint: {way_out}"


def packages_in(project: Path, folders: Sequence[str], names: Collection[str]) -> list[str]:
    """Return the folders of the packages that Python can import if `folders` are on its path, without modules that are
    single files. All folders are relative to the project; `names` are the relative paths of its frozen files.
    """
    found = (os.path.normpath(f"{folder}/{name}") for folder in folders for name in sorted(_modules_in(folder, names)))
    return [folder for folder in found if (project / folder).is_dir()]


def _real(path: Path) -> Path:
    """Return the path with all links resolved."""
    return Path(os.path.realpath(path))


def _text(path: Path) -> str:
    """Return the text of a file, or "" if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
