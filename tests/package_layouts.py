"""Projects as the tools of Python's packages lay them out and install them: the files that they write, made here."""

import os
import sys
from pathlib import Path

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
FINDER = """
from __future__ import annotations
import sys
from importlib.machinery import PathFinder
from importlib.util import spec_from_file_location

MAPPING: dict[str, str] = {mapping!r}
NAMESPACES: dict[str, list[str]] = {{}}

class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in MAPPING:
            return spec_from_file_location(fullname, MAPPING[fullname] + "/__init__.py")
        return None

def install():
    sys.meta_path.append(_EditableFinder)
"""
STATED = '[project]\nname = "imgproj"\nversion = "0.1"\n'
BUILT = STATED + '[build-system]\nrequires = []\nbuild-backend = "x"\n'


class Layout:
    """A project with a package `imgproj`, and an environment of its own in .venv."""

    def __init__(self, project: Path, folder: str, stated: str = BUILT):
        self.project, self.folder = project, folder
        self.package = project / folder / "imgproj"
        self.package.mkdir(parents=True)
        (self.package / "__init__.py").write_text("from imgproj.words import WORD\n")
        (self.package / "words.py").write_text("WORD = 'as submitted'\n")
        (project / "pyproject.toml").write_text(stated)
        (project / ".gitignore").write_text(".venv/\nbuild/\n.launch/\n_version.py\n*.so\n")
        (project / "scripts").mkdir(exist_ok=True)
        (project / "scripts" / "train.py").write_text("import imgproj\nprint('from', imgproj.__file__, imgproj.WORD)\n")
        self.site = project / ".venv" / "lib" / f"python{VERSION}" / "site-packages"
        self.site.mkdir(parents=True)
        (project / ".venv" / "bin").mkdir()
        self.python = project / ".venv" / "bin" / "python"
        self.python.symlink_to(os.path.realpath(sys.executable))
        home = os.path.dirname(os.path.realpath(sys.executable))
        (project / ".venv" / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")

    def edit(self):
        (self.package / "words.py").write_text("WORD = 'edited since'\n")

    def path_file(self, name, folder):
        (self.site / name).write_text(f"{folder}\n")

    def finder(self, mapping):
        (self.site / "__editable___imgproj_0_1_finder.py").write_text(FINDER.format(mapping=mapping))
        module = "__editable___imgproj_0_1_finder"
        self.path_file("__editable__.imgproj-0.1.pth", f"import {module}; {module}.install()")

    def strict(self):
        """A folder of links, as setuptools makes it for `editable_mode=strict`."""
        links = self.project / "build" / "__editable__.imgproj-0.1-py3-none-any"
        (links / "imgproj").mkdir(parents=True)
        for file in self.package.iterdir():
            (links / "imgproj" / file.name).symlink_to(file)
        self.path_file("__editable__.imgproj-0.1.pth", links)


def uv_app(project):
    """`uv init --bare`: nothing is installed; what lies beside the script is what it imports."""
    return Layout(project, "scripts", STATED)


def uv_package(project):
    made = Layout(project, "src")
    made.path_file("imgproj.pth", made.project / "src")
    return made


def hatch_src(project):
    made = Layout(project, "src")
    made.path_file("_editable_impl_imgproj.pth", made.project / "src")
    return made


def hatch_flat(project):
    made = Layout(project, ".")
    made.path_file("_editable_impl_imgproj.pth", made.project)
    return made


def setuptools_flat(project):
    made = Layout(project, ".")
    made.finder({"imgproj": str(made.package)})
    return made


def setuptools_flat_strict(project):
    made = Layout(project, ".")
    made.strict()
    return made


def setuptools_src(project):
    made = Layout(project, "src")
    made.path_file("__editable__.imgproj-0.1.pth", made.project / "src")
    return made


def setuptools_src_strict(project):
    made = Layout(project, "src")
    made.strict()
    return made


def poetry_src(project):
    made = Layout(project, "src", '[tool.poetry]\nname = "imgproj"\n')
    made.path_file("imgproj.pth", made.project / "src")
    return made


def poetry_flat(project):
    made = Layout(project, ".", '[tool.poetry]\nname = "imgproj"\n')
    made.path_file("imgproj.pth", made.project)
    return made


def of_a_workspace(project):
    made = Layout(project, "libs/imgproj/src", STATED)
    made.path_file("_imgproj.pth", made.project / "libs" / "imgproj" / "src")
    return made


def copied(project):
    """`uv sync --no-editable`: what is installed is a copy of some day."""
    made = Layout(project, "src")
    (made.site / "imgproj").mkdir()
    (made.site / "imgproj" / "__init__.py").write_text("WORD = 'installed once'\n")
    return made


def not_installed(project):
    return Layout(project, "src")


ALL = (
    uv_app, uv_package, hatch_src, hatch_flat, setuptools_flat, setuptools_flat_strict, setuptools_src,
    setuptools_src_strict, poetry_src, poetry_flat, of_a_workspace, copied, not_installed,
)  # fmt: skip
