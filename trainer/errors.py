"""Errors that end a training, as a user sees them.

TrainerError
├── BadSettings        settings that cannot work, or do not fit each other
├── Fenced             newer processes of this run write the checkpoints now; these must not (exit code 22)
├── CheckpointDamaged  bytes on disk that are not what was written
│   └── CheckpointPartial  some of its files are on other disks
├── NotFinite          loss or gradients were infinite or NaN in too many steps in a row
└── SaveFailed         saves failed so often in a row that going on would be pointless
"""

EXIT_FENCED = 22
EXIT_RESUME_ME = 75  # EX_TEMPFAIL: stopped on request with everything saved; start me again


class TrainerError(Exception):
    """Base class of the errors that end a training with a message for the user."""


class BadSettings(TrainerError):
    """Raised for settings that cannot work or contradict each other."""


class CheckpointDamaged(TrainerError):
    """Raised if the bytes of a checkpoint, or of a part of one, are not what was written."""


class CheckpointPartial(CheckpointDamaged):
    """Raised if some files of a checkpoint are on other nodes' disks; those on this disk are undamaged."""


class NotFinite(TrainerError):
    """Raised if a loss or gradient is not finite, or the loss is a spike, in too many steps in a row.

    The training's setting `skip_limit` says how many are too many.
    """


class SaveFailed(TrainerError):
    """Raised after three failed saves in a row, or if the checkpoint folder has become unusable.

    `failed_rank` is the rank whose disk failed, or None if that is not known; `launch` then avoids that rank's node.
    """

    def __init__(self, message: str, failed_rank: int | None = None) -> None:
        super().__init__(message)
        self.failed_rank = failed_rank


class Fenced(SystemExit):
    """Raised to end the process without a traceback, because newer processes of this run write the checkpoints now.

    Newer are those of a later attempt or generation. The exit code is EXIT_FENCED; `message` says what has taken over.
    """

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_FENCED)
        self.message = message

    def __str__(self) -> str:
        return self.message
