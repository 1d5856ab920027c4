"""The table of every option of a spec: its key, the kind of its value, and its meaning. The reader, the JSON Schema and
the reference page are made from it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from launcher.spec import checks
from launcher.spec.cluster_fields import NOTICE, OF_KINDS
from launcher.spec.kinds.groups import WORD, ArgsTable, ByShape, ListOf, TableOf
from launcher.spec.kinds.leaf import WordOr
from launcher.spec.kinds.names import SecretSource, VariableName, job_name
from launcher.spec.kinds.numbers import Boolean, Integer, Nodes, Number, Size
from launcher.spec.kinds.queueing import PredecessorName, Priority, WrittenMoment
from launcher.spec.kinds.roles import PORT_NAME, ROLE_NAME, PortToTry, RolesTable
from launcher.spec.kinds.sections import Field, Section, Shorthand
from launcher.spec.kinds.steps import NEEDS, NEEDS_KEY, ON, ON_KEY, StepsTable
from launcher.spec.kinds.targets import NotifyRecipient
from launcher.spec.kinds.text import RUN_DIR_NAMES, Choice, InnerPath, StoreAddress, Text, any_path
from launcher.spec.kinds.times import Duration, DurationRange, Every, HangAfter
from launcher.spec.model import (
    Budget,
    CheckpointOptions,
    Code,
    JobSpec,
    NotifyOptions,
    QueueOptions,
    Readiness,
    Recovery,
    Resources,
    Role,
    RunOptions,
)
from launcher.spec.sweep_fields import SWEEP

# A name that ends in .py is a file, whatever else it could be.
_MODULE = r"(?!.*\.py$)[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_NONE = ("no", "none", "never", "false", "disabled")
_NEVER = (*_NONE, "unlimited")


def _instead_of_a_script(text: str) -> str:
    """Return a hint to use run.script if `text`, the value of `run.module`, looks like the path of a file, else ""."""
    return "a file is named by run.script" if "/" in text or text.endswith(".py") else ""


def _auto(minimum: int) -> WordOr:
    """Return the kind of value that is `auto` or an integer of at least `minimum`."""
    return WordOr("auto", Integer(minimum, 4096), ("all", "any", "default"))


RUN = Section(
    RunOptions,
    (
        Field("script", InnerPath("the path of a script", "the project"),
              "Python script that every rank runs, as under `python script.py`; relative to workdir",
              example="train.py"),
        Field("module", Text("a module name such as my_package.train", _MODULE, cure=_instead_of_a_script),
              "Python module that every rank runs, as under `python -m`", example="my_package.train"),
        Field("command", ByShape(Text("a command", lines=True), ListOf(WORD, minimum=1)),
              "Command that every rank runs: text for /bin/sh, or a list of words that is run without a shell",
              example="./train --fast"),
        Field("args", ByShape(sequence=ListOf(WORD), mapping=ArgsTable(), blank=()),
              "Arguments of the program: a list of words, or a mapping. `key: value` becomes `--key value`, true "
              "becomes `--key`, a list `--key a b c`; false leaves the option out. A quoted 'false' becomes `--key "
              "false`. `mesh: {pp: 2, dp: 2}` becomes `--mesh pp=2,dp=2`", example="{epochs: 10, amp: true}"),
        Field("workdir", InnerPath("the path of a folder", "the project"),
              "Folder of the project in which ranks start", example="src"),
        Field("setup", Text("shell commands", lines=True),
              "Shell commands that each node runs once before its ranks", example="pip install -r requirements.txt"),
        Field("python", any_path("the path of a Python interpreter"),
              "Interpreter of the ranks; by default that of the active environment, else of the project's .venv, else "
              "of launch; on SSH hosts the pool's `python`, unless this is an absolute path",
              example=".venv/bin/python"),
        Field("preload", ListOf(Text("a module name", _MODULE)),
              "Modules that are imported once per node before ranks are forked; by default torch, if the code imports "
              "it or a package that needs it", example="[torch, torchvision]"),
        Field("outputs", ListOf(InnerPath("a pattern of paths", "the project"), may_be_blank=True),
              "Patterns of files that ranks write to relative paths, for `launch fetch --outputs`; by default all",
              example="[results/]"),
    ),
    checks=(checks.one_entry, checks.preload_needs_python),
    required=True,
)  # fmt: skip

RESOURCES = Section(
    Resources,
    (
        Field("nodes", Nodes(), "Number of nodes, or a range of numbers that the run may use",
              example="2..4"),
        Field("ranks_per_node", _auto(1), "Training processes on each node; auto: one per GPU, or "
              "`ranks_without_gpus`", example="4"),
        Field("ranks_without_gpus", Integer(1, 4096), "Value of `ranks_per_node: auto` on nodes without GPUs",
              example="2"),
        Field("gpus_per_node", _auto(0), "GPUs on each node; auto: all, on SSH hosts the smallest number among hosts "
              "with GPUs; on Slurm none, if `ranks_per_node` is set and the script imports nothing that uses a GPU",
              example="8"),
        Field("cpus_per_rank", _auto(1), "Cores for each rank; auto: on this machine its part of all cores; on Slurm "
              "and SSH hosts the same part of the cores as of the GPUs, or 1 without GPUs", example="8"),
        Field("memory_gb", Number(1_000_000), "Memory of each node in GB", example="64"),
        Field("time", Duration(zero=False), "Time limit of the run; on Slurm the limit of each job, and the run "
              "continues in the next job", ("time_s",), "2h"),
    ),
)  # fmt: skip

CODE = Section(
    Code,
    (
        Field("include", ListOf(InnerPath("a pattern of paths", "the project"), may_be_blank=True),
              "Patterns of files that are copied besides the default, all files that git does not ignore",
              example="[data/vocab.txt]"),
        Field("exclude", ListOf(InnerPath("a pattern of paths", "the project"), may_be_blank=True),
              "Patterns of files that are not copied", example="[notebooks/**]"),
        Field("max_size", Size(), "Largest size of the copied code; more is an error", ("max_bytes",), "500MB"),
    ),
)  # fmt: skip

CHECKPOINT = Section(
    CheckpointOptions,
    (
        Field("every", Every(), "How often the trainer saves, in steps or time",
              ("every_steps", "every_s"), "500 steps"),
        Field("keep", Integer(1, 100_000), "How many of the newest checkpoints are kept", example="5"),
        Field("dir", InnerPath("a folder in the run directory", "the run directory", RUN_DIR_NAMES),
              "Folder for checkpoints in the run directory", example="checkpoints"),
        Field("memory_every", Every(), "How often a snapshot of the state is kept in the nodes' memory, in steps or "
              "time; if the run restarts by itself on the same nodes, ranks load the newest snapshot, unless a "
              "checkpoint is newer; `launch resume` loads a checkpoint",
              ("memory_every_steps", "memory_every_s"), "20 steps"),
        Field("memory_limit", Size(), "The most memory of a node that snapshots take", ("memory_limit_bytes",), "32GB"),
        Field("buddy", Boolean(), "Snapshots in a node's memory are copied to the memory of the next node: with a "
              "spare, a lost node costs only the steps since the newest snapshot", example="true"),
        Field("copy_limit", Size(), "The most that copies to other hosts take of a host's network, per second: copies "
              "of `buddy`, and second copies of checkpoints if hosts share no disk", ("copy_limit_bytes",), "200MB"),
        Field("copy_lag", Every(), "How far second copies of checkpoints may be behind, in steps or time, if hosts "
              "share no disk; a save waits until they are nearer", ("copy_lag_steps", "copy_lag_s"), "500 steps"),
        Field("copy_to", StoreAddress(), "Address of fsspec to which checkpoints are copied, into a folder with the "
              "run's id; training does not wait for copies, the run's end does", example="s3://bucket/prefix"),
        Field("copy_to_every", Every(), "How often a checkpoint is copied there, in steps or time; by default each "
              "one, as fast as the network allows", ("copy_to_every_steps", "copy_to_every_s"),
              "1h"),
        Field("copy_to_keep", Integer(1, 100_000), "How many of the newest copies are kept there; by default as many "
              "as `keep`",
              example="5"),
        Field("copy_to_limit", Size(), "The most that these copies take of a host's network, per second",
              ("copy_to_limit_bytes",), "100MB"),
    ),
    checks=(checks.buddy_needs_snapshots, checks.copies_need_an_address),
)  # fmt: skip

_BUDGET_DOC = "Restarts after {}: a number, unlimited, or {{restarts, backoff, refill}}"


class _BudgetSection(Section, frozen=True, dict=True):
    """The section of a restart budget. It sets `explicit` in the Budget if the user has written a number of restarts:
    then a failure that recurs at the same place does not end the run before these are used.
    """

    def made(self, values: dict[str, Any]) -> Any:
        """Return the Budget made of `values`, by attribute, with `explicit` set if they have a number of restarts."""
        return super().made({**values, "explicit": values.get("restarts") is not None})


def _budget(cause: str, after: str) -> Field:
    """Return the option of the budget for restarts after `cause`; `after` names that failure in its help text."""
    options = (
        Field("restarts", WordOr("unlimited", Integer(0, 1_000_000), ("infinite", "inf", "-1"), (*_NONE, "off")),
              "How often the run is restarted for this cause", example="20"),
        Field("backoff", DurationRange(), "How long it waits before it restarts: from the second failure in a row, "
              "doubled up to the end of the range", ("backoff_s", "backoff_max_s"), "1s..60s"),
        Field("refill", WordOr("off", Duration(zero=False), _NEVER), "After how much training with newer checkpoints a "
              "restart is forgotten, so that budgets are of the last hours and not of a month", ("refill_s",), "1h"),
    )  # fmt: skip
    section = _BudgetSection(Budget, options, base=getattr(Recovery(), cause) or Budget(0))
    return Field(cause, Shorthand(section, "restarts"), _BUDGET_DOC.format(after), example="20")


RECOVERY = Section(
    Recovery,
    (
        _budget("user_error", "an exception in the user's code"),
        _budget("out_of_memory", "running out of memory"),
        _budget("killed", "a rank was killed by a signal"),
        _budget("hang", "a hang"),
        _budget("communication", "ranks lost each other"),
        _budget("node_lost", "a node was lost"),
        _budget("preempted", "a preemption"),
        _budget("time_limit", "the time limit was reached; by default unlimited on Slurm, else 0"),
        _budget("launcher_fault", "a fault of the launcher itself"),
        _budget("disk", "a disk was full or failed"),
        Field("hang_after", HangAfter(), "A rank that neither reports progress nor prints for this time counts as "
              "hung; auto: 15m, or at once if an examination shows that ranks wait in vain",
              ("hang_after_s", "hang_auto"), "15m"),
        Field("hang_at_start", Duration(zero=False), "The same time for a rank that has not reported anything yet, "
              "because imports and the first compilation are silent; at least hang_after",
              ("hang_at_start_s",), "30m"),
        Field("no_progress", WordOr("off", Integer(1, 1_000_000), _NEVER),
              "Number of restarts in a row without a newer checkpoint that ends the run; for a script that reports "
              "nothing, restarts after less than ten minutes", example="5"),
        Field("spares", Integer(0, 4096), "Extra nodes that wait to replace a lost one", example="1"),
        Field("wait", Duration(), "How long to wait for all nodes before the run continues with fewer",
              ("wait_s",), "5m"),
        Field("lease", Duration(zero=False),
              "A node that sends no heartbeat for this time is lost; it ends its own ranks one second earlier",
              ("lease_s",), "30s"),
        Field("gone_after", Duration(), "Without a shared disk: how long a run waits for a lost node without which no "
              "checkpoint is complete; then it ends as no_checkpoint",
              ("gone_after_s",), "1h"),
        Field("avoid", Duration(), "How long a lost node is not used again, if the cluster has other nodes",
              ("avoid_s",), "1h"),
        Field("grace", Duration(), "Time between asking ranks to stop and killing them", ("grace_s",), "1m"),
        Field("group_timeout", WordOr("auto", Duration(zero=False), ("default",)), "Time limit of one operation "
              "between ranks of the trainer; auto: 5m more than hang_after and hang_at_start, at least 10m",
              ("group_timeout_s",), "30m"),
        Field("mode", Choice(("auto", "warm", "hot")), "What happens after a rank was killed or a node lost. warm: all "
              "ranks restart from the newest snapshot or checkpoint. hot: the other ranks of the trainer keep their "
              "processes; with ddp and hsdp they send their state to the new ranks, so that no step is lost; with "
              "zero1, zero2 and fsdp all ranks go back to the newest snapshot or checkpoint. If this cannot be exact, "
              "or the nodes share no disk, it is warm. auto: hot if it loses no step and costs less than 1 % of a step "
              "(ddp and hsdp on CPUs, with a fixed number of nodes without spares), else warm",
              example="hot"),
        Field("replace_stragglers", Boolean(), "If the trainer finds a rank slow, the ranks of its node move to a "
              "ready spare, as by `launch nodes move`; once for each node",
              example="true"),
        Field("reserve", Integer(0, 1024), "Processes on each node that have imported the program, loaded data and "
              "made the model, and wait to replace a rank; for trainings by Trainer",
              example="1"),
        Field("health", Boolean(), "Nodes are checked before they have ranks, and after a rank has failed: cores, "
              "memory and GPUs by calculations with known results, links by measuring them. A node with a wrong "
              "result, or that is slow with all others, gets no ranks; a node whose kernel reports an uncorrected "
              "error is drained", example="true"),
        Field("link_floor", WordOr("auto", Size(), ("default",)), "With `health`: the slowest speed of a usable link "
              "between nodes, per second; auto: a tenth of the usual speed", ("link_floor_bytes",), "50MB"),
    ),
    checks=(checks.link_floor_needs_health,),
)  # fmt: skip

OCCASIONS = ("started", "restarted", "stalled", "ended")


def notify_fields(*, spelled_out: bool) -> tuple[Field, ...]:
    """Return the options of `notify`.

    With `spelled_out`, secret addresses may be written as they are, as in the user's own settings; otherwise only the
    variable or file that holds one may.
    """
    return (
        Field("to", ListOf(NotifyRecipient(spelled_out), single=True, may_be_blank=True), "Receivers of messages about "
              "the run: slack, discord, teams or json with the variable that has the webhook's address, or {file: "
              "PATH}; apprise with the variable that has a URL of apprise; email; or a command that gets the message "
              "as JSON on stdin. []: no receiver",
              example="[{slack: SLACK_WEBHOOK}, {email: me@example.org}]"),
        Field("on", ListOf(Choice(OCCASIONS), single=True), "Occasions of messages; by default all of started, "
              "restarted, stalled and ended", example="[stalled, ended]"),
        Field("restarts", Integer(0, 1_000_000), "Number of restarts after which a message is sent; by default 3",
              example="3"),
        Field("stalled_after", Duration(zero=False), "Time without a reported step, metric or checkpoint, or of "
              "waiting, after which a message is sent; by default 10m", ("stalled_after_s",), "30m"),
    )  # fmt: skip


NOTIFY = Section(NotifyOptions, notify_fields(spelled_out=False))

QUEUE = Section(
    QueueOptions,
    (
        Field("priority", Priority(), "Of your own waiting runs, the one with the higher number starts first; on "
              "Slurm, Grid Engine and PBS only below 0, behind the jobs of all users; not on LSF and Kubernetes",
              example="10"),
        Field("after", ListOf(PredecessorName(), single=True, may_be_blank=True), "Runs that must have succeeded "
              "before; RUN:ended for any end, RUN:step N for step N. If this cannot happen any more, the run ends as "
              "cancelled", example="[prep-7k3f, vit-9x2d:step 1000]"),
        Field("hold", Boolean(), "Wait until `launch release RUN`", example="true"),
        Field("at", WrittenMoment(), "Wait until this time of day, or this date", example="22:00"),
        Field("now", Boolean(), "On this machine: do not wait for GPUs and cores, and share those of other runs",
              example="true"),
        Field("slots", Integer(0, 4096), "On this machine: number of cores that the run waits for and has for itself; "
              "with 0, runs without GPUs share all cores", example="4"),
        Field("max_parallel", Integer(1, 100_000), "How many of the runs that are submitted together may run at the "
              "same time",
              example="2"),
    ),
)  # fmt: skip


READY = Section(
    Readiness,
    (
        Field("port", PortToTry(), "The port of each rank of the role, LAUNCH_PORT or the port of this name, accepts "
              "connections",
              example="true"),
        Field("path", Text("a path that begins with /", r"/[!-~]{0,1023}"), "An HTTP request for this path to the "
              "role's port is answered with 200", example="/health"),
        Field("log", Text(), "The log of each rank of the role has this text", example="listening"),
        Field("file", any_path("the path of a file"), "This file exists; relative to workdir", example="ready"),
    ),
    checks=(checks.one_way_to_be_ready,),
    required=True,
)  # fmt: skip

ROLE = Section(
    Role,
    (
        Field("main", Boolean(), "The run ends when this role ends, and has this role's records, metrics and "
              "checkpoints; without a main role, the run ends with the last role", example="true"),
        Field("after", ListOf(ROLE_NAME, single=True, may_be_blank=True), "Roles that must be ready before this role "
              "starts",
              example="reward"),
        Field("follows", ListOf(ROLE_NAME, single=True, may_be_blank=True), "When ranks of one of these roles have "
              "restarted, the ranks of this role restart too", example="learner"),
        Field("ports", ListOf(PORT_NAME, single=True, may_be_blank=True, name_of=str), "Names of further ports that "
              "are reserved for each rank of the role, as LAUNCH_PORT_HTTP", example="http"),
        Field("ready", READY, "When the role counts as ready", example="{port: true}"),
        Field("colocate", ROLE_NAME, "The role on whose nodes it is, where it shall have none of its own; of "
              "no meaning on this machine, which plays all nodes", example="learner"),
        Field("restart", Choice(("role", "alone", "all")), "What is started again when one of its ranks fails: all "
              "its ranks; that one alone, and each rank then is a group of its own, of one; or all roles of the run",
              example="alone"),
    ),
)  # fmt: skip

_OF_A_ROLE = ("description", "run", "resources", "env", "checkpoint", "recovery")
_OF_ALL_STEPS = ("name", "code", "sweep", "steps", "roles")  # what no step says for itself
_ENTRY = {"oneOf": [{"required": ["script"]}, {"required": ["module"]}, {"required": ["command"]}]}


def _with_steps(options: tuple[Field, ...]) -> tuple[Field, ...]:
    """Return the options with `roles` and `steps` added; a role or a step may set most of these options for itself."""
    keys = tuple(field.key for field in options if field.key not in _OF_ALL_STEPS)
    kept = tuple(field for field in options if field.key not in ("steps", "roles"))
    doc = (
        "Several jobs that follow each other: the name of each, `needs`, and the options that differ from those beside "
        "`steps`"
    )
    example = "{train: {run: {script: train.py}}, test: {needs: train, run: {script: test.py}}}"
    of_roles = "Several programs of one run: the name of each, with the options that differ from those beside `roles`"
    several = "{learner: {main: true, run: {script: learner.py}}, actors: {run: {script: actor.py}}}"
    return (
        *kept,
        Field("roles", RolesTable(ROLE, _OF_A_ROLE), of_roles, example=several),
        Field("steps", StepsTable(keys), doc, example=example),
    )


class _Job(Section, frozen=True, dict=True):
    """The table of all options of a spec, read as a JobSpec. Its field `plugins` gets the sections for the kinds of
    clusters that plug-ins add, by the kind's name.
    """

    def made(self, values: dict[str, Any]) -> JobSpec:
        """Return the JobSpec made of `values`, by key of the spec. Those that are no field of it are sections of
        plug-ins, and go into its `plugins`.
        """
        plugins = {key: value for key, value in values.items() if key not in JobSpec.__struct_fields__}
        own = {key: value for key, value in values.items() if key not in plugins}
        return JobSpec(**own, plugins=plugins)


JOB = _Job(
    JobSpec,
    _with_steps((
        Field("name", job_name(), "Name of the job; run ids begin with it", example="my-job"),
        Field("description", Text(lines=True, empty=True), "What the job is for", example="baseline, 90 epochs"),
        Field("run", RUN, "What is run: exactly one of script, module and command", example="{script: train.py}"),
        Field("resources", RESOURCES, "What it runs on"),
        Field("env", TableOf(VariableName(), Text(lines=True, empty=True)), "Environment variables of every rank; "
              "values are text", example="{NCCL_DEBUG: WARN}"),
        Field("secrets", ListOf(SecretSource(), may_be_blank=True, name_of=lambda item: item.name),
              "Variables whose values are read at submit, from the environment or from a file",
              example="[HF_TOKEN, {WANDB_API_KEY: ~/.wandb_key}]"),
        Field("code", CODE, "What of the project is frozen at submit"),
        Field("checkpoint", CHECKPOINT, "When and where the trainer saves"),
        Field("recovery", RECOVERY, "What follows a failure"),
        Field("notify", NOTIFY, "Who hears of it; what it does not say is as in ~/.config/launch/notify.yaml"),
        Field("notice", NOTICE, "What tells that a host is about to go: its ranks move to a spare, else all save"),
        Field("queue", QUEUE, "What it waits for before it starts, and which of your runs goes first"),
        *OF_KINDS,
        Field("sweep", SWEEP, "Many runs that differ in some options; `launch sweep` starts them"),
    )),
    checks=(checks.env_or_secret, checks.spares_need_nodes, checks.reserve_needs_python, checks.signal_before_time,
            checks.lead_covers_grace),
    required=True,
    schema_extra=(
        ("required", ["name"]),
        (
            "anyOf",
            [{"required": ["steps"]}, {"required": ["roles"]}, {"required": ["run"], "properties": {"run": _ENTRY}}],
        ),
    ),
)  # fmt: skip


def schema(plugins: Mapping[str, Section]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a spec. `plugins` has the section of each kind of cluster that a
    plug-in adds, by the name of the kind.

    Editors read YAML 1.2 values, so the schema is a little wider than the reader, never narrower.
    """
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A training job for launch"}
    return {**head, **with_plugins(plugins).schema()}


def option_keys(section: Section = JOB, prefix: str = "") -> Iterator[str]:
    """Yield every key that `--set` takes in the section, such as resources.nodes, each with `prefix` before it.

    Keys below a name that the user chooses, as in env, are left out.
    """
    for field in section.options:
        inner = field.kind.section if isinstance(field.kind, Shorthand) else field.kind
        if isinstance(inner, Section):
            yield from option_keys(inner, f"{prefix}{field.key}.")
        if not isinstance(field.kind, Section):
            yield f"{prefix}{field.key}"


def with_plugins(sections: Mapping[str, Section]) -> Section:
    """Return the table of a spec's options with `sections` added: for each kind of cluster that comes from a plug-in,
    by the kind's name, the options of its own section of a spec.
    """
    more = (Field(kind, section, f"Options on {kind} clusters") for kind, section in sections.items())
    return replace(JOB, options=_with_steps((*JOB.options, *more)))


def step_section(job: Section) -> Section:
    """Return the options of a step: `needs`, `on`, and those of a job (`job`) that a step may set."""
    needs = Field(NEEDS_KEY, NEEDS, "Steps that must have succeeded before")
    on = Field(ON_KEY, ON, "The cluster of this step; without it that of `--on`")
    return replace(job, options=(needs, on, *(field for field in job.options if field.key not in _OF_ALL_STEPS)))


def role_section(job: Section) -> Section:
    """Return the options of a role: how it relates to other roles, and those of a job (`job`) that a role may set."""
    return replace(job, options=(*ROLE.options, *(field for field in job.options if field.key in _OF_A_ROLE)))
