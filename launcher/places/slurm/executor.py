"""Adapt submitit's executor for Slurm, which writes the batch script and builds sbatch's command line, to the
launcher's job.

Nothing of submitit runs in the job: no pickle of a function, no signal handler, no state that it keeps.
"""

from collections.abc import Mapping
from pathlib import Path

from submitit import SlurmExecutor

from launcher.errors import LaunchError, NotStarted
from launcher.places.batch.answers import read_submitted
from launcher.places.slurm.queries.refusals import refusal
from launcher.places.slurm.reach import ask


class SbatchExecutor(SlurmExecutor):
    """A submitter of one job: `options` are sbatch's long options, and `command` is the only command that the job
    runs.
    """

    def __init__(self, options: Mapping[str, str | bool] | None = None, command: str = "") -> None:
        super().__init__(folder="/")
        self._command = command
        if options:
            self.update_parameters(
                job_name=str(options["job-name"]),
                time=None,
                wckey=None,
                stderr_to_stdout=True,
                use_srun=False,
                additional_parameters={name: value for name, value in options.items() if name != "job-name"},
            )

    @property
    def _submitit_command_str(self) -> str:
        """Return the command that the script runs."""
        return self._command

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        """Return the sbatch command for the script in the file `submission_file_path`."""
        return ["sbatch", "--parsable", str(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> str:
        """Return the job's id from `string`, sbatch's output; raise LaunchError if it has none."""
        text = string if isinstance(string, str) else string.decode(errors="replace")
        job = read_submitted(text)
        if job is None:
            raise LaunchError(f"sbatch --parsable: expected the number of a job, got {text.strip()[:200]!r}")
        return job

    def text(self) -> str:
        """Return the whole script as it is passed to sbatch."""
        return str(self._make_submission_file_text(self._submitit_command_str, ""))

    def hand_over(self, script: Path, environ: Mapping[str, str], lock: int, *, limit_s: float) -> str:
        """Submit a script that is on disk, with the variables `environ`, and return the job's id. Raise NotStarted if
        Slurm refuses it, LaunchError if sbatch prints no id, and Unreachable after `limit_s`; submitit itself would
        wait for ever.

        The sbatch process inherits `lock`, a descriptor, so that the lock is held while it lives.
        """
        argv = self._make_submission_command(script)
        answer = ask(argv, limit_s=limit_s, environ=environ, pass_fds=[lock])
        if answer.code != 0:
            why, *more = refusal(answer.err)
            raise NotStarted(f"Slurm refuses the job: {why}", *more)
        return self._get_job_id_from_submission_command(answer.out)
