"""List what tests need of this machine beside Python packages, and install it: `python -m tests.lab install`."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lab.nodes import PATH

# The program, and the Debian package that has it.
LAB = {
    "/usr/lib/gridengine/sge_execd": "gridengine-exec",
    "/usr/lib/gridengine/sge_qmaster": "gridengine-master",
    "ip": "iproute2",
    "mariadbd": "mariadb-server",
    "munged": "munge",
    "nft": "nftables",
    "nsenter": "util-linux",
    "qconf": "gridengine-client",
    "sbatch": "slurm-wlm",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "sshd": "openssh-server",
}
PROGRAMS = {
    **LAB,
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "fish": "fish",
    "git": "git",
    "losetup": "mount",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "prometheus": "prometheus",
    "setpriv": "util-linux",
    "ss": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "strace": "strace",
    "zsh": "zsh",
}
INSTALL = "uv run python -m tests.lab install"
LINKS = "ip link add bridge0 type bridge && ip link add cable0 type veth peer name cable1"
SERVICES_POLICY = Path("/usr/sbin/policy-rc.d")  # what Debian's packages ask before they start a service
_DOWNLOAD_S = 600.0  # at most, for all packages
# A mirror that does not answer, or another program that installs, is waited for that long and no longer.
_PATIENT = ("-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30", "-o", "DPkg::Lock::Timeout=300")


def missing(*programs: str, path: str = PATH) -> str | None:
    """Return which of `programs` are not installed and the command that installs them, or None if all are."""
    absent = sorted({PROGRAMS[program] for program in programs if shutil.which(program, path=path) is None})
    return f"{', '.join(absent)} not installed: {INSTALL}" if absent else None


def no_lab() -> str | None:
    """Return why no lab can be started on this machine and what to do about it, or None if one can."""
    if reason := missing(*LAB):
        return f"the lab needs {reason}"
    if os.getuid():
        return "the lab needs root: sudo uv run pytest"
    spaces = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork"]
    tried = subprocess.run([*spaces, "sh", "-c", LINKS], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"the lab needs namespaces, as in a virtual machine or `docker run --privileged`: {tried.stderr.strip()}"
    return None


def need(*programs: str) -> None:
    """Skip the test, or fail it where CI is set, unless all `programs` are installed."""
    if (reason := missing(*programs)) is not None:
        skip_or_fail(reason)


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test that calls this, or fail it where CI is set: there everything is to be tested."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def install() -> str | None:
    """Install what is missing, as root on Debian or Ubuntu. Return what the user has to do where that is impossible."""
    if missing(*PROGRAMS) is None:
        return None
    packages = sorted({package for program, package in PROGRAMS.items() if missing(program) is not None})
    if shutil.which("apt-get") is None:
        return f"apt-get is not here: install these packages of Debian by other means: {' '.join(packages)}"
    if os.getuid():
        return f"installing packages needs root: sudo apt-get install {' '.join(packages)}"
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_services():
        for words in (["update", "-qq"], ["install", "-qq", "-y", *packages]):
            done = subprocess.run(
                ["apt-get", *_PATIENT, *words], stdout=subprocess.DEVNULL, env=env, timeout=_DOWNLOAD_S, check=False
            )
            if done.returncode:
                return f"apt-get {words[0]} failed with exit code {done.returncode}"
    return missing(*PROGRAMS)


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep the services of packages from starting while they are installed: tests start their own."""
    if SERVICES_POLICY.exists():
        yield  # this machine has its own policy
        return
    SERVICES_POLICY.write_text("#!/bin/sh\nexit 101\n")
    SERVICES_POLICY.chmod(0o755)
    try:
        yield
    finally:
        SERVICES_POLICY.unlink()
