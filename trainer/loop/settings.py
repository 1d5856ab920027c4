"""The settings of a training, as a dataclass and as options of a command line."""

import argparse
import dataclasses
import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from trainer.errors import BadSettings
from trainer.strategies import KEPT, NAMES, PRECISIONS, Choice
from trainer.strategies.mesh import is_mesh, mesh_of, ranks_per_replica
from trainer.strategies.pipeline_schedule import SCHEDULES
from trainer.wire import Every

_STEPS = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a setting.

    `expected` names it in messages, `parse` makes a value of text or raises ValueError, `holds` says whether a value is
    allowed, and `choices` are all allowed values if they are few.
    """

    expected: str
    parse: Callable[[str], Any]  # ValueError where the text is none
    holds: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


def _whole(least: int) -> Kind:
    """Describe (as a Kind) a setting that is a whole number of at least `least`."""
    return Kind(f"a whole number of at least {least}", int, lambda value: type(value) is int and value >= least)


def _real(*, above: float = -math.inf, least: float = -math.inf, below: float = math.inf) -> Kind:
    """Describe (as a Kind) a setting that is a finite number above `above`, at least `least` and below `below`."""
    bound = f"of at least {least:g}" if least > -math.inf else f"above {above:g}"
    bound += f" and below {below:g}" if below < math.inf else ""
    return Kind(
        f"a number {bound}",
        float,
        lambda value: type(value) in (int, float) and math.isfinite(value) and above < value < below and value >= least,
    )


def _one_of(*choices: str) -> Kind:
    """Describe (as a Kind) a setting that is one of these words."""
    return Kind(f"one of {', '.join(choices)}", str, lambda value: value in choices, choices)


def _some_of(*words: str) -> Kind:
    """Describe (as a Kind) a setting that is a tuple of some of these words; as text, they are separated by commas."""
    return Kind(
        f"some of {', '.join(words)}",
        _words,
        lambda value: isinstance(value, tuple) and all(word in words for word in value),
    )


def _words(text: str) -> tuple[str, ...]:
    """Return the words in `text`, which are separated by commas."""
    return tuple(word.strip() for word in text.split(","))


def _yes_or_no() -> Kind:
    """Describe (as a Kind) a setting that is a bool."""
    return Kind("true or false", _flag, lambda value: type(value) is bool)


def _flag(text: str) -> bool:
    """Return True for `true` and False for `false`. Raises ValueError for other text."""
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _is_path(value: Any) -> bool:
    """Return whether the value is a path (a string or an os.PathLike) that is not empty; it need not exist."""
    return isinstance(value, (str, os.PathLike)) and bool(os.fspath(value))


def _is_word(value: Any) -> bool:
    """Return whether the value is a string that is not blank."""
    return type(value) is str and value.strip() != ""


def _is_interval(value: Any) -> bool:
    """Return whether the value is an interval such as `500 steps` or `90 s`."""
    try:
        return isinstance(value, str) and Every.parse(value) != Every()
    except BadSettings:
        return False


def _validation_interval(text: str) -> int | str:
    """Return `epoch`, `never` or the number of steps in the text. Raises ValueError for other text."""
    return text if text in ("epoch", "never") else int(text.removesuffix(" steps"))


def first_and_last(profile: str) -> tuple[int, int]:
    """Return the first and last step of `10..12`. Raises ValueError if it is no such range."""
    found = _STEPS.fullmatch(profile)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= first <= last:
        raise ValueError(profile)
    return first, last


def _is_range(value: Any) -> bool:
    """Return whether the value is text that names a range of steps, such as `10..12`."""
    try:
        return isinstance(value, str) and bool(first_and_last(value))
    except ValueError:
        return False


_PATH = Kind("a folder", Path, _is_path)
_VALIDATION = Kind(
    "'epoch', 'never' or a number of steps",
    _validation_interval,
    lambda value: value in ("epoch", "never") or (type(value) is int and value >= 1),
)


_MESH = Kind("a mesh of ranks, as tp=2 or pp=2,dp=2", str, is_mesh)
_PARTS = Kind(
    "classes or names of parts of the model, with commas between them",
    _words,
    lambda value: (
        callable(value) or (isinstance(value, (tuple, list)) and all(type(name) is str and name for name in value))
    ),
)


def _setting(default: Any, kind: Kind, help_text: str) -> Any:
    """Return the dataclass field of a setting, with its default, type and help text."""
    return dataclasses.field(default=default, metadata={"kind": kind, "help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a training. Raises BadSettings that lists every value that cannot work."""

    max_epochs: int | None = _setting(None, _whole(1), "end after so many passes over the data")
    max_steps: int | None = _setting(None, _whole(1), "end after so many optimizer steps")
    max_time_s: float | None = _setting(
        None, _real(above=0), "end after so many seconds of training, all starts counted"
    )

    batch_size: int = _setting(32, _whole(1), "samples of one optimizer step, over all ranks and micro-batches")
    accumulate: int = _setting(1, _whole(1), "micro-batches of one optimizer step")
    shuffle: bool = _setting(True, _yes_or_no(), "draw a new order for each epoch")
    drop_last: bool = _setting(False, _yes_or_no(), "leave out an epoch's last, smaller batch")
    workers: int = _setting(0, _whole(0), "processes of each rank that prepare data")

    strategy: str = _setting("ddp", _one_of(*NAMES), "how the ranks share the work")
    precision: str = _setting("fp32", _one_of(*PRECISIONS), "the number format of calculations")
    shard_size: int | None = _setting(None, _whole(1), "hsdp: ranks that share one copy; left out: those of a node")
    mesh: str | Mapping[str, int] | None = _setting(
        None,
        _MESH,
        "ranks that work on the same samples together: tp=2 (sharded strategies), each on its part of every layer; "
        "pp=2 (ddp), each on some of the layers, with or without tp",
    )
    pp_schedule: str = _setting(
        "1f1b", _one_of(*SCHEDULES), "mesh with pp: in which order a stage works on micro-batches"
    )
    pp_cut: str = _setting(
        "layers",
        Kind("layers, time, or parts of the model, with commas between them", str, _is_word),
        "mesh with pp: where stages begin: as many layers each, by `time` as measured before the first step, or with "
        "these parts, as blocks.3,blocks.5",
    )
    pp_microbatches: int | None = _setting(
        None, _whole(1), "mesh with pp: into how many parts a rank's samples are divided; left out: 4 times the stages"
    )
    unused_parameters: bool = _setting(
        False, _yes_or_no(), "ddp, zero1: some parameters may not be used in a step's loss"
    )
    blocks: Choice = _setting(  # noqa: RUF009 - it makes a field
        (), _PARTS, "modules to shard, recompute and compile separately; left out: found"
    )
    units: Choice = _setting(  # noqa: RUF009 - the same
        (), _PARTS, "more modules to shard separately, without recomputing: an embedding, a head"
    )
    sync_each: bool = _setting(
        False, _yes_or_no(), "fsdp, hsdp: reduce-scatter gradients after every micro-batch: less memory, more to send"
    )
    by_parts: bool = _setting(
        False, _yes_or_no(), "sharded strategies: make the model part by part, so that no rank ever holds all of it"
    )
    reshard: bool = _setting(
        True, _yes_or_no(), "fsdp, hsdp: free a block's gathered parameters after its forward pass"
    )
    prefetch: int | None = _setting(
        None, _whole(1), "sharded strategies: gather so many blocks ahead; left out: as torch does"
    )
    offload: bool = _setting(
        False, _yes_or_no(), "sharded strategies: keep parameters and optimizer in the host's memory, not a GPU's"
    )
    bucket_mb: float | None = _setting(
        None, _real(above=0), "ddp, zero1: megabytes of gradients to send at once; left out: 25"
    )
    clip_norm: float | None = _setting(None, _real(above=0), "clip gradients to this total norm")
    clip_value: float | None = _setting(
        None, _real(above=0), "clip each number of the gradients to this size, before clip_norm"
    )
    ema: float | None = _setting(
        None,
        _real(above=0, below=1),
        "keep an exponential average of the weights with this decay, as 0.999; it is what is validated and exported",
    )
    skip_limit: int = _setting(
        5, _whole(1), "end after so many steps in a row that were left out: their loss or gradients were not finite"
    )
    spike_factor: float | None = _setting(
        None, _real(above=1), "leave out a step whose loss is over so many times its running median"
    )
    spike_action: str = _setting(
        "skip", _one_of("skip", "rewind"), "leave it out, or go back to the last checkpoint and past these samples"
    )
    activation_checkpointing: bool = _setting(False, _yes_or_no(), "recompute activations instead of keeping them")
    recompute_every: int = _setting(1, _whole(1), "activation checkpointing: recompute one of so many blocks")
    recompute_keeps: tuple[str, ...] = _setting(
        (), _some_of(*KEPT), "activation checkpointing: what to keep of recomputed blocks, as matmul,attention"
    )
    sync_batchnorm: bool = _setting(False, _yes_or_no(), "BatchNorm over the samples of all ranks")
    cudnn_benchmark: bool = _setting(False, _yes_or_no(), "GPUs: time cuDNN's algorithms for each new shape")
    gc_every: int | None = _setting(
        None,
        _whole(1),
        "collect Python's garbage after so many steps, on all ranks at once; left out: whenever Python does",
    )
    compile: bool = _setting(False, _yes_or_no(), "compile the model (torch.compile)")
    seed: int = _setting(0, _whole(0), "decides every random choice")
    deterministic: bool = _setting(False, _yes_or_no(), "refuse operations that differ from run to run")
    device: str | None = _setting(None, _one_of("cpu", "cuda"), "left out: a GPU for each rank where there are any")
    timeout_s: float | None = _setting(None, _real(above=0), "how long ranks wait for each other")

    validate_every: int | str = _setting(
        "epoch", _VALIDATION, "validate after each `epoch`, after so many steps, or `never`"
    )
    validation_batch_size: int | None = _setting(
        None, _whole(1), "samples of one validation batch of one rank; left out: as many as it trains on at once"
    )
    monitor: str = _setting(
        "val_loss",
        Kind("a name", str, _is_word),
        "the validation value for early stopping and the best model",
    )
    mode: str = _setting("min", _one_of("min", "max"), "whether the smaller or the larger value is better")
    patience: int | None = _setting(None, _whole(1), "end after so many validations without a better value")
    min_delta: float = _setting(0.0, _real(least=0), "by how much a value has to be better to count")
    keep_best: bool = _setting(False, _yes_or_no(), "keep the checkpoint with the best value apart")

    checkpoint_dir: Path | None = _setting(  # noqa: RUF009 - it makes a field
        None, _PATH, "left out: LAUNCH_CHECKPOINT_DIR, else checkpoints"
    )
    checkpoint_every: str | None = _setting(
        None, Kind("something like '500 steps' or '90 s'", str, _is_interval), "left out: LAUNCH_CHECKPOINT_EVERY"
    )
    checkpoint_keep: int | None = _setting(None, _whole(1), "left out: LAUNCH_CHECKPOINT_KEEP, else 3")

    resume: str = _setting(
        "auto",
        _one_of("auto", "never", "must"),
        "resume from the newest checkpoint: if there is one, never, or fail without one",
    )
    hyperparameters: str = _setting(
        "saved",
        _one_of("saved", "given"),
        "after a resume, use the options of optimizer and schedule from the checkpoint (saved) or the script (given)",
    )

    straggler_factor: float = _setting(
        1.5, _real(above=1), "report a rank whose own work takes so many times as long as the median rank's"
    )
    count_flops: bool = _setting(
        False,
        _yes_or_no(),
        "count the operations of a sample once, before the first step; lines have flops_per_s and mfu",
    )
    peak_tflops: float | None = _setting(
        None, _real(above=0), "10**12 operations a second of one device; left out: what is known of the GPU by its name"
    )
    log_every: int = _setting(10, _whole(1), "steps between two lines of metrics")
    out: Path | None = _setting(  # noqa: RUF009 - the same
        None, _PATH, "where metrics go; left out: metrics in the run directory, else here"
    )
    tensorboard: bool = _setting(False, _yes_or_no(), "write metrics for TensorBoard too")
    profile: str | None = _setting(None, Kind("steps like 10..12", str, _is_range), "steps to trace with the profiler")
    overfit_batches: int | None = _setting(
        None, _whole(1), "train on the first so many batches again and again, and validate on them"
    )
    fast_dev_run: int | None = _setting(
        None, _whole(1), "only try: so many batches of each kind; neither checkpoints nor metrics are kept"
    )
    lr_find: bool = _setting(False, _yes_or_no(), "look for a good learning rate first, and use it")

    def __post_init__(self) -> None:
        found = _problems({name: getattr(self, name) for name in _FIELDS})
        if found:
            raise BadSettings("\n".join(f"{name}: {problem}" for name, problem in found))

    def validation_samples(self, world_size: int) -> int:
        """Return the size of one rank's validation batch, by default that of its training micro-batches.

        `world_size` is the number of ranks that get different samples.
        """
        return self.validation_batch_size or math.ceil(self.batch_size / (self.accumulate * world_size))


_FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def near_miss(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint with the known name that is most like this one, or "" if none is.

    `cutoff` is the least likeness, from 0 to 1, as for difflib.
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"\nhint: did you mean {near[0]}?" if near else ""


def _refuse_unknown(values: Iterable[str]) -> None:
    """Raise BadSettings for names that are no settings."""
    if strange := sorted(set(values) - set(_FIELDS)):
        raise BadSettings("\n".join(f"no such setting: {name}{near_miss(name, _FIELDS)}" for name in strange))


def _named_only(make: Callable[..., None]) -> Callable[..., None]:
    """Wrap the `__init__` of Settings so that unknown or positional arguments raise BadSettings with a hint."""

    @wraps(make)
    def made(self: Settings, *args: Any, **values: Any) -> None:
        """Make the settings from values by name."""
        if args:
            raise BadSettings(f"settings: expected values by name, got {args[0]!r}\nhint: Settings(max_epochs=3)")
        _refuse_unknown(values)
        make(self, **values)

    return made


Settings.__init__ = _named_only(Settings.__init__)  # type: ignore[method-assign]


def add_options(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Add one option per setting, such as `--batch-size`; `defaults` replace those of Settings.

    Raises BadSettings for defaults of unknown settings.
    """
    _refuse_unknown(defaults)
    group = parser.add_argument_group("training")
    for name, field in _FIELDS.items():
        default = defaults.get(name, field.default)
        shown = "" if default is None or default is False or default == () else f" (default: {default})"
        flag = {"action": argparse.BooleanOptionalAction} if isinstance(field.default, bool) else {"metavar": "X"}
        group.add_argument(
            _option(name), default=default, help=(field.metadata["help"] + shown).replace("%", "%%"), **flag
        )


def from_options(namespace: argparse.Namespace) -> Settings:
    """Return the settings of a parsed command line. Raises BadSettings with all its problems."""
    values: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    for name, field in _FIELDS.items():
        value = getattr(namespace, name, field.default)
        try:
            values[name] = _read(value, field)
        except ValueError:
            values[name], unreadable[name] = field.default, _unfit(value, field.metadata["kind"])
    problems = dict(_problems(values)) | unreadable
    if problems:
        ordered = sorted(problems.items(), key=lambda problem: list(_FIELDS).index(problem[0]))
        raise BadSettings("\n".join(f"{_option(name)}: {problem}" for name, problem in ordered))
    return Settings(**values)


def _option(name: str) -> str:
    """Return the option of a setting: `batch_size` is `--batch-size`."""
    return "--" + name.replace("_", "-")


def _read(value: Any, field: "dataclasses.Field[Any]") -> Any:
    """Return the value of the setting `field` that an option's text stands for, parsed as its kind says.

    The text `none` is None if that is the default. A value that is no text is the default, and returned as it is.
    Raises ValueError for a text that the kind cannot parse.
    """
    if not isinstance(value, str):
        return value
    if value == "none" and field.default is None:
        return None
    return field.metadata["kind"].parse(value)


def _unfit(value: Any, kind: Kind) -> str:
    """Return the message about a value that does not fit its setting."""
    return f"expected {kind.expected}, got {value!r}{near_miss(str(value), kind.choices)}"


def _problems(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the name and the problem of each setting that cannot work, by itself or with the others."""
    found = []
    for name, field in _FIELDS.items():
        value, kind = values[name], field.metadata["kind"]
        if not kind.holds(value) and not (value is None and field.default is None):
            found.append((name, _unfit(value, kind)))
    wrong = {name for name, _ in found}
    if all(values[name] is None for name in ("max_epochs", "max_steps", "max_time_s", "fast_dev_run")):
        found.append(("max_steps", "expected an end: max_epochs, max_steps or max_time_s"))
    if values["count_flops"] is True and values["strategy"] == "dp":
        found.append(("count_flops", "does not go with strategy dp, whose threads are not counted\nhint: use ddp"))
    if values["count_flops"] is True and "mesh" not in wrong and ranks_per_replica(mesh_of(values["mesh"])) > 1:
        found.append(("count_flops", "does not go with a mesh that has pp or tp, whose ranks each do a part"))
    if values["peak_tflops"] is not None and values["count_flops"] is False:
        found.append(("peak_tflops", "expected with count_flops only, got it without"))
    if not wrong & {"accumulate", "batch_size"} and values["accumulate"] > values["batch_size"]:
        found.append(
            ("accumulate", f"expected at most the batch size, {values['batch_size']}, got {values['accumulate']}")
        )
    return found
