"""Findings of `launch doctor` (each about one checked thing: ok, a warning or a problem) about one machine, its
folders, and folders that a cluster's nodes must see.
"""

import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from launcher.health.doctor_request import DoctorRequest
from launcher.health.findings import Finding, ahead, all_of, ok, problem, warning
from launcher.health.machine_there import MEMORY, FolderFacts, Torch
from launcher.run.file_systems import FileSystem, Reach, file_system_of
from launcher.spec.amounts import size

_SCARCE_BYTES, _NO_BYTES = 5_000_000_000, 100_000_000
_SCARCE_FILES = 10_000
_SMALL_MEMORY_BYTES = 512_000_000  # containers are given 64 MB
_FEW_FILES = 1024
CLOCK_S = 5.0  # the difference of two machines' clocks from which times in logs confuse
_SYSTEM = Path("/usr")  # every machine has its own


def gpus_finding(gpus: tuple[str, ...]) -> Finding:
    """Return the finding that lists the machine's GPUs, whose names are `gpus`; it is no problem if there are none."""
    return ok("GPUs", f"{len(gpus)} ({', '.join(gpus)})" if gpus else "none: ranks compute on the cores")


def torch_finding(torch: Torch, where: str, gpus: int, *, of_the_job: bool = False) -> Finding:
    """Return the finding on torch: a warning if it is missing, does not work, or sees fewer than `gpus` GPUs.

    `where` names the interpreter; `gpus` is how many there are in the machine, or with `of_the_job` in the job.
    """
    if torch.error == "not installed":
        hint = "a job that trains needs it: pip install torch there, or run.python names another interpreter"
        return warning("torch", f"not installed in {where}", hint)
    if torch.error:
        return warning("torch", f"does not work in {where}: {torch.error}", "importing it there shows all of it")
    if gpus > torch.gpus:
        why = "`nvidia-smi` there shows whether the driver works" if torch.built_for else "its build is for CPUs alone"
        has = f"the job has {gpus}" if of_the_job else f"{gpus} there"
        return warning("torch", f"{torch.words}, but {has}; in {where}", why)
    return ok("torch", f"{torch.words} in {where}")


def memory_finding(memory: tuple[int, int] | None) -> Finding:
    """Return the finding on shared memory (/dev/shm): a warning if it has less than 512 MB in all, or does not exist.

    `memory` is its (free, total) bytes, or None if it does not exist.
    """
    if memory is None:
        return warning(MEMORY, "not there", "DataLoader workers need it; mount a tmpfs there")
    free, total = memory
    text = f"{size(total)}, {size(free)} of it free"
    if total < _SMALL_MEMORY_BYTES:
        hint = "DataLoader workers and checkpoint.memory_every need more; a container gets it by --shm-size"
        return warning(MEMORY, text, hint)
    return ok(MEMORY, text)


def files_finding(soft: int, hard: int) -> Finding:
    """Return the finding on how many files a process may open: the `soft` limit, and the `hard` one to which it can be
    raised. It is a warning if the soft limit is below 1024, too few for DataLoader workers.
    """
    if soft == resource.RLIM_INFINITY or soft > _FEW_FILES:
        return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} a process")
    most = "" if hard == soft else f": ulimit -n {'unlimited' if hard == resource.RLIM_INFINITY else hard}"
    if soft == _FEW_FILES:
        return ok("open files", f"at most {soft} a process; DataLoader workers may need more{most}")
    return warning("open files", f"at most {soft} a process: too few for DataLoader workers", f"raise it{most}")


def clock_finding(now: float, *, is_synchronised: bool) -> Finding:
    """Return the finding on the machine's clock, which is always ok: its text has the time `now` that the clock shows,
    in seconds since 1970, and whether a time service is known to keep the clock (`is_synchronised`).
    """
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    return ok("clock", f"{when}, {'kept by a time service' if is_synchronised else 'not known to be kept by any'}")


def folder_findings(about: str, folder: FolderFacts, variable: str) -> Iterable[Finding]:
    """Yield a problem if the folder cannot be written or lacks a file operation that the launcher uses. Else yield a
    finding on its free space, and a warning if its file system's clock differs from this machine's.

    `about` names the folder in findings; `variable` is the environment variable that moves it elsewhere.
    """
    elsewhere = f"set {variable} to a folder on another file system"
    where = (
        f"{folder.path}{'' if folder.at == folder.path else ' (not there yet)'}, {file_system_of(Path(folder.at)).kind}"
    )
    if folder.error:
        text = f"{folder.path}: {folder.who} cannot write there: {folder.error}"
        yield problem(about, text, f"change that, or {elsewhere}")
    elif folder.refusals:
        yield problem(about, f"{where}: does not offer {', '.join(folder.refusals)}", elsewhere)
    else:
        yield space_finding(about, where, folder.free, folder.free_files, elsewhere)
        if abs(folder.off_s) > CLOCK_S:
            text = f"the clock of its file system is {ahead(folder.off_s)} this machine's"
            yield warning(about, text, "the times of files and those in logs will differ by so much")


def space_finding(about: str, where: str, free: int, free_files: int | None, elsewhere: str) -> Finding:
    """Return the finding on the disk space of the folder `where`, named `about`: a problem below 100 MB free or without
    room for another file, a warning below 5 GB or room for 10,000 more files, else ok.

    `free` is in bytes, and `free_files` is None if the file system sets no limit on files. `elsewhere` ends the hint,
    after "or": how to use another folder.
    """
    left = f"{size(free)} free"
    if free_files is not None and free_files < _SCARCE_FILES:
        left += f", room for {free_files} more files"
    hint = f"delete what is not needed, or {elsewhere}"
    if free < _NO_BYTES or free_files == 0:
        return problem(about, f"{where}: {left}", hint)
    if free < _SCARCE_BYTES or (free_files is not None and free_files < _SCARCE_FILES):
        return warning(about, f"{where}: {left}", hint)
    return ok(about, f"{where}: {left}")


def shared_findings(request: DoctorRequest, seen_on: Sequence[str] | None) -> Iterable[Finding]:
    """Yield findings on whether a cluster's nodes see the folders of runs and programs.

    `seen_on` are the nodes on which a trial job found all of them, or None if no trial was made.
    """
    for about, paths in (("runs root", [request.runs_root]), ("programs", _programs(Path(request.python)))):
        places = {str(path): file_system_of(path) for path in paths}
        yield place_finding(
            about, places, f"launch doctor {request.cluster} --try", seen_on or (), tried=seen_on is not None
        )


def _programs(rank_python: Path) -> list[Path]:
    """Return the folders of the launcher, of the Python that runs it, and of the ranks' Python, each without those
    inside another and without /usr, of which every machine has its own.
    """
    apart: list[Path] = []
    code = Path(__file__).resolve().parents[2]
    for path in (code, Path(sys.prefix), Path(sys.base_prefix), rank_python.parent.parent):
        if path != _SYSTEM and not any(path.is_relative_to(other) for other in apart):
            apart.append(path)
    return apart


def place_finding(
    about: str, places: Mapping[str, FileSystem], trial: str, seen_on: Sequence[str] = (), *, tried: bool = False
) -> Finding:
    """Return the finding, named `about`, on whether nodes can see the paths in `places`, each with its file system.

    It is ok if a trial job found them on the nodes `seen_on`, or if all are on network file systems; else it is a
    warning. Its hint is to run the command `trial`, which starts a trial job, or to see the result if one was run
    (`tried`).
    """
    text = all_of([f"{path} ({there.kind})" for path, there in places.items()])
    if seen_on:
        return ok(about, f"{text}: seen on {all_of(seen_on)}")
    reaches = {there.reach for there in places.values()}
    if reaches == {Reach.NETWORK}:
        return ok(about, text)
    doubtful = [f"{path} ({there.kind})" for path, there in places.items() if there.reach is not Reach.NETWORK]
    them = "it" if len(doubtful) == 1 else "them"
    why = f"this machine's own, nodes may not see {them}" if Reach.THIS_MACHINE in reaches else f"may nodes see {them}?"
    hint = "see the trial's result" if tried else f"`{trial}` has a node look"
    return warning(about, f"{all_of(doubtful)}: {why}", hint)
