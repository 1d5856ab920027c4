"""A site of a batch system whose programs are on PATH and carry jobs out on this machine: see scripts/batch_site.py."""

import json
import os
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "scripts" / "batch_site.py"
LSF = ("bsub", "bjobs", "bhist", "bkill", "bresume", "bhosts", "lsid", "bparams", "blaunch")
PBS = ("qsub", "qselect", "qstat", "qdel", "qrls", "qrerun", "pbsnodes", "pbs_tmrsh")


class BatchSite:
    """A simulated site, with the actions of its user, its administrator and its scheduler."""

    def __init__(self, lab, folder, programs):
        self.lab, self.folder = lab, folder / "site"
        programs_folder = folder / "programs"
        self.folder.mkdir()
        programs_folder.mkdir()
        for name in programs:
            program = programs_folder / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {SCRIPT} {name} "$@"\n')
            program.chmod(0o755)
        lab.env |= {"BATCH_SITE": str(self.folder), "PATH": f"{programs_folder}:{os.environ['PATH']}"}

    def fill(self):
        """Fill the cluster, so that no job starts from now on."""
        (self.folder / "full").touch()

    def free(self):
        (self.folder / "full").unlink()

    def preempt(self, job):
        """Have a job leave its hosts and wait again."""
        (self.folder / f"{job}.requeue").touch()

    def delete_by_hand(self, job):
        (self.folder / f"{job}.deleted").touch()

    def jobs(self):
        found = (json.loads(file.read_text()) for file in self.folder.glob("*.json"))
        return {job["id"]: job for job in found}

    def runs(self, job):
        """Return how often this job has started."""
        return self.jobs()[job]["runs"]

    def job_of(self, run):
        """The job of the newest attempt that has one."""
        handles = sorted((self.lab.run_dir(run) / "attempts").glob("*/handle.json"))
        return json.loads(handles[-1].read_text())["job_id"]

    def tidy(self):
        for job in self.jobs().values():
            (self.folder / f"{job['id']}.deleted").touch()
        self.lab.until("the end of every job", lambda: all(one["state"] == "ended" for one in self.jobs().values()))
