"""slurmdbd and a MariaDB of its own, which listens on a socket in the lab's folder and nowhere else."""

import socket
import subprocess
from pathlib import Path

from tests.lab.nodes import LabError, Namespace, Program, until

SMALL = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M", "--skip-name-resolve")


def configure(folder: Path, *, address: str, port: int, munge: Path) -> dict[str, str]:
    """Write slurmdbd.conf; the lines that slurm.conf needs for it."""
    lines = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={munge}",
        "DbdHost": "control",
        "DbdAddr": address,
        "DbdPort": str(port),
        "SlurmUser": "root",
        "PidFile": f"{folder}/slurmdbd.pid",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageUser": "root",
        "StorageLoc": "slurm_acct_db",
    }
    conf = folder / "slurmdbd.conf"
    conf.touch(mode=0o600)
    conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": address,
        "AccountingStoragePort": str(port),
        "AccountingStoragePass": str(munge),
        "AccountingStoreFlags": "job_comment",
    }


def start(folder: Path, control: Namespace, *, address: str, port: int, logs: Path) -> None:
    """Come back once slurmdbd listens."""
    data, mariadb = folder / "mariadb", folder / "mariadb.sock"
    made = subprocess.run(
        [
            *("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}", *SMALL),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise LabError(f"mariadb-install-db: {made.stdout}{made.stderr}")
    server = ["mariadbd", "--no-defaults", "--user=root", f"--datadir={data}", f"--socket={mariadb}"]
    server += ["--skip-networking", f"--pid-file={folder}/mariadb.pid", *SMALL]
    control.start(Program("mariadbd", server, logs / "mariadbd.log"))
    until("MariaDB's socket", mariadb.exists)
    env = {"SLURM_CONF": str(folder / "slurm.conf"), "MYSQL_UNIX_PORT": str(mariadb)}
    control.start(Program("slurmdbd", ["slurmdbd", "-D"], logs / "slurmdbd.log", env))
    until("slurmdbd", lambda: listens(address, port))


def listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0
