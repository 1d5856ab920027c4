"""What can go wrong, as a user sees it.

TrainerError
├── BadSettings        settings that cannot work, or do not fit each other
├── Fenced             a newer start of this run writes the checkpoints now; this one must not (exit code 22)
├── CheckpointDamaged  bytes on disk that are not what was written
│   └── CheckpointPartial  some of its files are on other disks
├── NotFinite          loss or gradients were infinite or NaN in too many steps in a row
└── SaveFailed         saves failed so often in a row that going on would be pointless
"""

EXIT_FENCED = 22
EXIT_RESUME_ME = 75  # EX_TEMPFAIL: stopped on request with everything saved; start me again


class TrainerError(Exception):
    """Ends the training with a message for the user."""


class BadSettings(TrainerError):
    """Settings that cannot work."""


class CheckpointDamaged(TrainerError):
    """A checkpoint, or a part of one, is not what was written."""


class CheckpointPartial(CheckpointDamaged):
    """Of a checkpoint on disks apart not all is here; what is here is sound."""


class NotFinite(TrainerError):
    """Step after step has to be left out: nothing is learned any more."""


class SaveFailed(TrainerError):
    """Nothing can be saved any more."""


class Fenced(SystemExit):
    """A newer start of this run exists. Ends the process quietly: it is not an error of the training."""

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_FENCED)
        self.message = message

    def __str__(self) -> str:
        return self.message
