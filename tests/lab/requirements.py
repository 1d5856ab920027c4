"""What the lab needs of this machine, and which command brings it."""

import os
import shutil
import subprocess

from tests.lab.nodes import PATH

# The program, and the Debian package that has it.
PACKAGES = {
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
LINKS = "ip link add bridge0 type bridge && ip link add cable0 type veth peer name cable1"


def what_is_missing() -> str | None:
    """None, or the reason why there can be no lab here, with what to do about it."""
    if packages := sorted(
        {package for program, package in PACKAGES.items() if shutil.which(program, path=PATH) is None}
    ):
        return f"the lab needs: apt-get install {' '.join(packages)}"
    if os.getuid():
        return "the lab needs root: sudo uv run pytest"
    spaces = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork"]
    tried = subprocess.run([*spaces, "sh", "-c", LINKS], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"the lab needs namespaces, as in a virtual machine or `docker run --privileged`: {tried.stderr.strip()}"
    return None
