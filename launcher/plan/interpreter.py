"""Find the Python that runs ranks, and whether it has a module, by looking at files; it is never run. Below, `python`
is the path of an interpreter, and `environ` the environment variables with which it will run.
"""

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from launcher.spec.model import JobSpec

# What brings modules of another name; the package of the module's own name may be a stranger's.
_PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dotenv": "python-dotenv",
    "launcher": "launch-anywhere", "lightning_fabric": "lightning", "skimage": "scikit-image",
    "sklearn": "scikit-learn", "trainer": "launch-anywhere", "yaml": "pyyaml",
}  # fmt: skip

OLDEST = "3.9"  # that the zygote runs in
_MOST_BYTES = 1 << 16  # of a file that says where modules are
_CODE = ("import ", "import\t")  # at the start of a line of a .pth file
_HARMLESS = ("_distutils_hack", "_virtualenv", "__editable___")  # such code that brings nothing, or what _brings knows
_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(3[0-9.]*[0-9])", re.MULTILINE)
_INSTALLED = re.compile(r"(.+?)-([0-9][^-]*)(?:-py3[^-]*)?\.(?:dist|egg)-info")
_OF_A_TOOL = ("uv-receipt.toml", "pipx_metadata.json")  # in an environment that is launch's alone
_DEBIANS = "apport_python_hook"  # its sitecustomize reports crashes


def interpreter(spec: JobSpec, project: Path, environ: Mapping[str, str]) -> str:
    """Return the path of the Python that runs ranks: the spec's, whether it exists or not; else the first that exists
    of the active virtual or Conda environment's, the one in the `.venv` of the folder `project`, and this process's
    own.
    """
    named = spec.run.python
    if named is not None:
        on_path = shutil.which(named) if "/" not in named else None
        return os.path.abspath(on_path or project / os.path.expanduser(named))
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX")
    for home in (active, project / ".venv"):
        if home and is_program(candidate := os.path.abspath(os.path.join(home, "bin", "python"))):
            return candidate
    return sys.executable


def install_command(package: str, python: str) -> str:
    """Return the shell command that installs a package for `python`; if `python` runs only `launch` itself, one that
    installs it into a new `.venv`.
    """
    from trainer.extras import command_for  # late: after a failure alone

    prefix = Path(python).parent.parent
    if any((prefix / name).is_file() for name in _OF_A_TOOL):
        return f"python3 -m venv .venv && .venv/bin/python -m pip install {package}"
    with_pip = any((site / "pip").is_dir() for site in sites_of(python, os.environ))
    return command_for("", packages=[package], source=None, prefix=prefix, python=python, with_pip=with_pip)


def is_too_old(version: str) -> bool:
    """Return whether this Python version is below the oldest that can run ranks; False for "", an unknown version."""
    told = [int(part) for part in version.split(".")[:2] if part]
    return len(told) == 2 and told < [int(part) for part in OLDEST.split(".")]


def is_program(path: str) -> bool:
    """Return whether the path is an executable file."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def may_import(module: str, python: str, environ: Mapping[str, str]) -> bool:
    """Return False if this interpreter certainly cannot import the module, and True if it can or might."""
    return not lacking([module], python, environ)


def lacking(modules: Iterable[str], python: str, environ: Mapping[str, str]) -> set[str]:
    """Return the modules among `modules` that this interpreter certainly cannot import; leave out any that it might."""
    prefix = Path(os.path.realpath(python)).parent.parent
    told = [Path(part) for part in environ.get("PYTHONHOME", "").split(os.pathsep) if part]
    standard = [one for home in (*told, prefix) for one in home.glob("lib*/python3*") if (one / "os.py").is_file()]
    if not standard:
        return set()  # a wrapper of its own kind
    named = [Path(part) for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if not all(part.is_absolute() for part in named):
        return set()  # from where ranks are
    sites = sites_of(python, environ)
    files = [file for site in sites for file in site.glob("*.pth")]
    folders = [*named, *standard, *sites, *(folder for file in files for folder in path_lines(file))]
    tops = {module: module.partition(".")[0] for module in modules}
    absent = {name for name in set(tops.values()) - sys.stdlib_module_names if not _is_in(folders, sites, name)}
    if not absent or any(map(_adds_by_code, files)) or any(map(_may_hold_more, folders)):
        return set()
    return {module for module, name in tops.items() if name in absent}


def _is_in(folders: Iterable[Path], sites: Iterable[Path], name: str) -> bool:
    """Return whether a module called `name` is in one of the folders, or installed in one of the `sites`."""
    return any(_has(folder, name) for folder in folders) or any(_brings(site, name) for site in sites)


def sites_of(python: str, environ: Mapping[str, str]) -> list[Path]:
    """Return the folders in which this interpreter's packages are installed."""
    prefix = Path(os.path.realpath(python)).parent.parent
    told = [Path(part) for part in environ.get("PYTHONHOME", "").split(os.pathsep) if part]
    homes = [*told, *_homes(python, prefix, environ)]
    return [folder for home in homes for folder in home.glob("lib*/python3*/*-packages")]


def version_of(python: str) -> str:
    """Return the interpreter's version from its virtual environment or its library folder, such as `3.12.4` or `3.12`,
    or "" if unknown.
    """
    noted = _VERSION.search(_text(Path(python).parent.parent / "pyvenv.cfg"))
    prefix = Path(os.path.realpath(python)).parent.parent
    folders = [one.parent.name.removeprefix("python") for one in prefix.glob("lib*/python3*/os.py")]
    return noted[1] if noted is not None else folders[0] if len(folders) == 1 else ""


def packages_of(python: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return {package: version} of all that is installed for the interpreter; of two copies the imported one counts."""
    found: dict[str, str] = {}
    sites = sites_of(python, environ)
    named = [folder for site in sites for file in sorted(site.glob("*.pth")) for folder in path_lines(file)]
    for site in [*sites, *named]:
        with contextlib.suppress(OSError):
            for match in filter(None, map(_INSTALLED.fullmatch, os.listdir(site))):
                found.setdefault(re.sub(r"[-_.]+", "-", match[1]).lower(), match[2])
    return dict(sorted(found.items()))


def _homes(python: str, prefix: Path, environ: Mapping[str, str]) -> list[Path]:
    """Return the prefixes, folders with a `lib`, below which the interpreter's packages may be installed: its virtual
    environment, and unless that excludes system packages, the system's `prefix` and the user's.
    """
    own = Path(python).parent.parent
    if "include-system-site-packages = false" in _text(own / "pyvenv.cfg").lower():
        return [own]
    users = environ.get("PYTHONUSERBASE") or "~/.local"
    return [own, prefix, Path(f"{prefix}/local"), Path(os.path.expanduser(users))]


def path_lines(file: Path) -> Iterator[Path]:
    """Yield the folders that a .pth file adds to Python's search path, existing or not. Its lines of code, which Python
    would run, are skipped.
    """
    lines = _text(file).splitlines()
    yield from (file.parent / line.rstrip() for line in lines if line.strip() and not line.startswith(("#", *_CODE)))


def _adds_by_code(file: Path) -> bool:
    """Return whether a .pth file may add modules that `path_lines` does not show.

    It may if one of its lines is code (`import ...`), other than that of setuptools and virtualenv, which adds none or
    is read by `_brings`; or if the file has more than 64 KiB, so that it is not read whole.
    """
    code = [line for line in _text(file).splitlines() if line.startswith(_CODE)]
    unknown = [line for line in code if not any(known in line for known in _HARMLESS)]
    return bool(unknown) or (file.is_file() and file.stat().st_size > _MOST_BYTES)


def _may_hold_more(folder: Path) -> bool:
    """Return whether importing may find more under this path than its files show: it is an archive, or a folder with a
    sitecustomize or usercustomize module.
    """
    return folder.is_file() or any(
        _has(folder, name) and _DEBIANS not in _text(folder / f"{name}.py")
        for name in ("sitecustomize", "usercustomize")
    )


def _has(folder: Path, name: str) -> bool:
    """Return whether the folder has a package of this name, or a module, compiled or not."""
    return (folder / name).is_dir() or any(folder.glob(f"{name}.*"))


def _brings(site: Path, name: str) -> bool:
    """Return whether an editable installation in `site`, a site-packages folder, maps the module `name` to another
    folder.
    """
    return any(f"'{name}'" in _text(finder) for finder in site.glob("__editable___*_finder.py"))


def _text(path: Path) -> str:
    """Return the first 64 KiB of a file as text, or "" if it is no file or cannot be read."""
    try:
        with open(path if path.is_file() else os.devnull, "rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def package_of(module: str) -> str:
    """Return the name of the PyPI package that has this top-level module, or the module's own name if none is known."""
    return _PACKAGES.get(module, module)
