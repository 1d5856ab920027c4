"""The command lines of scontrol about the site (version, configuration, partitions), and the parsing of their
output.
"""

import re

import msgspec

from launcher.places.batch.answers import read_settings
from launcher.places.slurm.queries.values import read_fields, read_number


class Config(msgspec.Struct, frozen=True):
    """The controller's settings that the launcher uses, from `scontrol show config`; None for one that is not shown.

    `expedites` is True if jobs may ask for the expedited requeue, `grows` if nodes are powered up on demand, so that
    sinfo may not show all.
    """

    version: str | None
    cluster: str | None
    requeue: bool | None  # jobs are requeued unless they refuse it
    max_array_size: int | None
    slurmd_timeout_s: float | None
    kill_wait_s: float | None
    min_job_age_s: float | None
    preempt_mode: str | None
    accounting: bool | None  # records of jobs are kept
    preempt_type: str | None  # the plug-in that decides, such as preempt/partition_prio
    expedites: bool = False  # jobs may ask for the expedited requeue: at once and first, after the loss of a node
    grows: bool = True  # nodes are powered up on demand, so that sinfo may not show all


class PartitionRules(msgspec.Struct, frozen=True):
    """Settings of a partition that `scontrol show partition` shows and sinfo does not: how its jobs are preempted, and
    after which time.
    """

    preempt_mode: str  # such as REQUEUE or CANCEL
    grace_s: float  # GraceTime, which a preempted job gets before it is ended


def show_partitions() -> list[str]:
    """Return the command that shows all partitions."""
    return ["scontrol", "--oneliner", "show", "partition"]


def read_rules(text: str) -> dict[str, PartitionRules]:
    """Return how jobs of each partition are preempted, by the partition's name, from the output of `show_partitions`. A
    partition without a GraceTime gets 0 seconds.
    """
    found = {}
    for line in text.splitlines():
        fields = read_fields(line)
        if name := fields.get("PartitionName"):
            grace_s = _seconds(fields.get("GraceTime", ""))
            found[name] = PartitionRules(fields.get("PreemptMode", ""), grace_s or 0.0)
    return found


def read_ping(text: str) -> dict[str, bool]:
    """Return {host: whether its controller is up} from the output of `scontrol ping`: `Slurmctld(primary) at control is
    UP`.
    """
    found = re.findall(r"^Slurmctld\(\w+\) at (\S+) is (UP|DOWN)", text, re.MULTILINE)
    return {host: state == "UP" for host, state in found}


def show_config() -> list[str]:
    """Return the command for the running controller's configuration."""
    return ["scontrol", "show", "config"]


def read_config(text: str) -> Config:
    """Return the settings of Slurm that the launcher uses, such as its version and whether jobs are requeued, from the
    output of `show_config`.
    """
    fields = read_settings(text, "=")
    storage = fields.get("AccountingStorageType")
    return Config(
        version=fields.get("SLURM_VERSION"),
        cluster=fields.get("ClusterName"),
        requeue={"1": True, "0": False}.get(fields.get("JobRequeue", "")),
        max_array_size=read_number(fields.get("MaxArraySize", "")),
        slurmd_timeout_s=_seconds(fields.get("SlurmdTimeout", "")),
        kill_wait_s=_seconds(fields.get("KillWait", "")),
        min_job_age_s=_seconds(fields.get("MinJobAge", "")),
        preempt_mode=fields.get("PreemptMode"),
        # Newer ones have no plugin where older ones have one that keeps nothing.
        accounting=None if storage is None else storage not in ("", "(null)", "accounting_storage/none"),
        preempt_type=fields.get("PreemptType"),
        expedites="enable_expedited_requeue" in fields.get("SlurmctldParameters", "").split(","),
        grows=fields.get("ResumeProgram") != "(null)",
    )


def read_version(text: str) -> str | None:
    """Return the version in the output of `sbatch --version`, such as `slurm-wlm 22.05.8`, or None if it has none."""
    found = re.search(r"^slurm\S*[ \t]+([0-9]+\.[0-9]+\S*)", text, re.MULTILINE)
    return found[1] if found else None


def read_release(version: str | None) -> tuple[int, int] | None:
    """Return (year, month) of a version's release, such as (25, 11) of `25.11.2`, or None if the version is unknown."""
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return (int(found[1]), int(found[2])) if found else None


def _seconds(text: str) -> float | None:
    """Return the seconds in a text such as `30 sec`, or None if the text is no duration."""
    found = re.fullmatch(r"([0-9]{1,9})(?: sec)?", text)
    return float(found[1]) if found else None
