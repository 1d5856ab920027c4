"""Write the hint of an error about a missing package: the command that installs it in the current environment."""

import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "launch-anywhere"
_PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def install_hint(extra: str) -> str:
    """Return the line `hint: COMMAND` for an error about a missing package of `extra` in this interpreter.

    The command adds the packages of the extra; if launch has to be installed again for that, as a uv tool, it is taken
    from where the present copy came from. If the packages are not known, the line names the extra and `launch help
    install` instead.
    """
    prefix = Path(sys.prefix)
    with_pip = importlib.util.find_spec("pip") is not None
    try:
        installed = distribution(DISTRIBUTION)
        packages, source = _packages_of(installed, extra), _source_of(installed)
    except PackageNotFoundError:
        packages, source = _packages_of_project(extra), None
    if not packages:
        return f"hint: {sys.executable} needs the extra {extra!r} of {DISTRIBUTION}: `launch help install`"
    command = command_for(
        extra, packages=packages, source=source, prefix=prefix, python=sys.executable, with_pip=with_pip
    )
    return f"hint: {command}"


def command_for(
    extra: str,
    *,
    packages: Sequence[str],
    source: dict[str, Any] | None,
    prefix: Path,
    python: str,
    with_pip: bool = True,
) -> str:
    """Return the command that adds the extra, such as `serve`, to the environment at `prefix`.

    `packages` are those that the extra needs, `source` is where the environment's copy of launch came from (PEP 610,
    None: the package index), and `python` its interpreter. Without `with_pip` the environment has no pip, and uv is
    used.
    """
    if (receipt := prefix / "uv-receipt.toml").is_file():
        return _of_uv_tool(extra, source, receipt)
    if (prefix / "pipx_metadata.json").is_file():
        return shlex.join(["pipx", "inject", DISTRIBUTION, *packages])
    project = prefix.parent
    if _is_editable(source, project):
        return shlex.join(
            ["uv", "sync", "--project", str(project), "--inexact", "--no-default-groups", "--extra", extra]
        )
    if (project / "uv.lock").is_file():
        return shlex.join(["uv", "add", "--project", str(project), *packages])
    if with_pip:
        return shlex.join([python, "-m", "pip", "install", *packages])
    return shlex.join(["uv", "pip", "install", "--python", python, *packages])


def _of_uv_tool(extra: str, source: dict[str, Any] | None, receipt: Path) -> str:
    """Return the command that installs launch as a uv tool again with one more extra; uv cannot add a single package.

    `source` is where launch came from (None: the package index), `receipt` uv's file about the installed tool.
    """
    import tomllib  # late: ranks import this module, and only a failure reads a file

    requirements = tomllib.loads(receipt.read_text(encoding="utf-8")).get("tool", {}).get("requirements", [])
    named = [one for one in requirements if isinstance(one, dict)]
    ours = next((one for one in named if one.get("name") == DISTRIBUTION), {})
    extras = ",".join(dict.fromkeys([*ours.get("extras", []), extra]))
    address = _address(source)
    others = [f"{one['name']}{one.get('specifier', '')}" for one in named if one.get("name") != DISTRIBUTION]
    words = [word for other in others for word in ("--with", other)]
    return shlex.join(["uv", "tool", "install", *words, f"{DISTRIBUTION}[{extras}]{address and f' @ {address}'}"])


def _address(source: dict[str, Any] | None) -> str:
    """Return where launch was installed from as a requirement has it behind `@`, such as `git+https://...@main`.

    `source` is its direct_url.json (PEP 610). Returns "" for the package index, for which `source` is None.
    """
    if source is None:
        return ""
    vcs = source.get("vcs_info")
    if vcs is None:
        return str(source["url"])
    revision = vcs.get("requested_revision")
    return f"{vcs['vcs']}+{source['url']}{f'@{revision}' if revision else ''}"


def _is_editable(source: dict[str, Any] | None, project: Path) -> bool:
    """Return whether launch is an editable installation from `project`, the folder of this environment's project.

    `source` is where launch was installed from (PEP 610, None: the package index).
    """
    if source is None or not source.get("dir_info", {}).get("editable"):
        return False
    return os.path.realpath(unquote(urlsplit(str(source["url"])).path)) == os.path.realpath(project)


def _source_of(installed: Distribution) -> dict[str, Any] | None:
    """Return the package's direct_url.json, which says where it was installed from (PEP 610).

    Returns None for a package from the package index, which has no such file.
    """
    text = installed.read_text("direct_url.json")
    source = json.loads(text) if text else None
    return source if isinstance(source, dict) else None


def _packages_of(installed: Distribution, extra: str) -> list[str]:
    """Return the packages that an extra of the package `installed` requires, according to its metadata."""
    split = [one.partition(";") for one in installed.requires or []]
    return [
        name.strip() for name, _, marker in split if re.search(rf"extra\s*==\s*['\"]{re.escape(extra)}['\"]", marker)
    ]


def _packages_of_project(extra: str) -> list[str]:
    """Return the packages that an extra of launch requires, by the pyproject.toml of launch's own source tree.

    Returns an empty list if launch does not run from its source tree.
    """
    if not _PROJECT.is_file():
        return []
    import tomllib  # late: as a receipt is read

    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    return [str(package) for package in project.get("optional-dependencies", {}).get(extra, [])]
