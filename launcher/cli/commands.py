"""The table of commands: the module and help line of each, their groups in `launch --help`, older names, and names that
users of other tools may try.
"""

COMMANDS = {
    "run": ("launcher.cli.starting.run", "run a script without a spec, in the words of torchrun; shows its log"),
    "submit": ("launcher.cli.starting.submit", "start a run of a spec; prints its id"),
    "status": ("launcher.cli.looking.status", "list runs, or show everything about one"),
    "logs": ("launcher.cli.looking.logs", "show the merged log of all ranks of a run"),
    "metrics": (
        "launcher.cli.looking.metrics",
        "show what runs have measured, step by step: as a table, CSV, JSON or curves",
    ),
    "checkpoints": ("launcher.cli.looking.checkpoints", "list the checkpoints of a run, and verify them"),
    "wait": ("launcher.cli.keeping.wait", "wait until runs have ended; ends with their exit code"),
    "cancel": ("launcher.cli.keeping.cancel", "stop runs; their files stay"),
    "resume": ("launcher.cli.starting.resume", "continue an ended or lost run from its newest checkpoint"),
    "doctor": ("launcher.cli.places.doctor", "show what a cluster is like, and what is in the way of runs there"),
    "sweep": (
        "launcher.cli.starting.sweep",
        "search options with many runs, chosen by Optuna; status, best, stop, resume, add, extend, plot",
    ),
    "predict": ("launcher.cli.using.predict", "apply a run's model to each sample of a data set, as a run of its own"),
    "serve": ("launcher.cli.using.serve", "answer requests over HTTP with the model that a run has trained"),
    "release": ("launcher.cli.keeping.release", "start runs that wait because they were submitted with --hold"),
    "compare": (
        "launcher.cli.looking.compare",
        "show differences between runs: arguments, spec, environment, code, results",
    ),
    "top": ("launcher.cli.looking.top", "show what a run uses now: CPU, memory, GPUs, disk and network, by rank"),
    "board": ("launcher.cli.looking.board", "show all runs in the browser: live curves, logs, what each one does"),
    "exec": ("launcher.cli.inside.exec", "run a command beside a rank: on its node, in its environment and folder"),
    "shell": ("launcher.cli.inside.shell", "open a shell beside a rank"),
    "stacks": ("launcher.cli.inside.stacks", "show the Python stacks of the ranks"),
    "debug": ("launcher.cli.inside.debug", "attach pdb to a rank that waits in a breakpoint()"),
    "edit": ("launcher.cli.keeping.edit", "change tags, note or name of a run"),
    "notify": ("launcher.cli.keeping.notify", "show who is notified of runs; `--test` sends a message now"),
    "rm": ("launcher.cli.keeping.rm", "delete ended runs, with all their files"),
    "prune": ("launcher.cli.keeping.prune", "delete old runs, or their older checkpoints; shows first what would go"),
    "du": ("launcher.cli.keeping.du", "show the disk usage of runs"),
    "nodes list": ("launcher.cli.places.hosts", "list the SSH hosts of a pool: free, taken and by which run"),
    "nodes trust": ("launcher.cli.places.trust_host", "add the key of an SSH host to the known ones"),
    "nodes drain": ("launcher.cli.places.drain", "move the ranks off a node before it goes"),
    "nodes move": ("launcher.cli.places.move", "move the ranks of a node to a spare; the node is a spare then"),
    "nodes include": ("launcher.cli.keeping.include", "include nodes again that a run excludes because it lost them"),
    "report": (
        "launcher.cli.looking.report",
        "write runs as one page to send: curves, differences, environment, notes",
    ),
    "debug-archive": (
        "launcher.cli.looking.debug_archive",
        "write what a bug report needs of a run, without secrets and hosts; shows first what it holds",
    ),
    "fetch": ("launcher.cli.keeping.fetch", "copy logs, metrics and checkpoints here from other machines"),
    "export": (
        "launcher.cli.keeping.export",
        "write the weights of a checkpoint as safetensors, for torch.load or for Hugging Face",
    ),
    "prove": (
        "launcher.cli.starting.prove",
        "kill a training again and again, and check that it ends with the same weights",
    ),
    "scale": (
        "launcher.cli.starting.scale",
        "measure how much faster more ranks are, and where the rest of the time goes",
    ),
    "spec init": ("launcher.cli.starting.init", "write a commented spec to start from"),
    "spec validate": ("launcher.cli.starting.validate", "check spec files; shows all problems at once"),
    "spec schema": ("launcher.cli.starting.schema", "print the JSON Schema of the spec, for editors"),
    "completion": ("launcher.cli.completion", "print a script by which a shell completes `launch`"),
    # Older names with arguments of their own, which `launch --help` does not list.
    "tag": ("launcher.cli.keeping.tag", "change the tags of a run"),
    "note": ("launcher.cli.keeping.note", "change the note of a run"),
    "rename": ("launcher.cli.keeping.rename", "give a run a name beside its id"),
}

# Commands of two words, by their first one.
GROUPS = {
    "nodes": "exclude or include nodes of runs; hosts of pools",
    "spec": "write, check and describe spec files",
}

# Commands without --json, and why.
WITHOUT_JSON = {
    "board": "serves pages until it is stopped",
    "serve": "answers requests, in JSON, until it is stopped",
    "exec": "prints what the command that it runs prints",
    "shell": "is for a person at a terminal",
    "debug": "is for a person at a terminal",
    "nodes trust": "is for a person, who says that a key is right",
    "spec init": "writes files, and prints their names",
    "spec schema": "prints a JSON Schema",
    "completion": "prints a script",
    **dict.fromkeys(("tag", "note", "rename"), "is an older name of `launch edit`"),
}  # fmt: skip

# As `launch --help` shows them.
HEADINGS = {
    "most used": (
        "run", "submit", "status", "logs", "metrics", "checkpoints", "wait", "cancel", "resume", "doctor",
    ),
    "run": ("sweep", "predict", "serve", "release"),
    "look": ("compare", "top", "board", "exec", "shell", "stacks", "debug"),
    "manage": ("edit", "rm", "prune", "du", "nodes", "notify"),
    "share": ("report", "fetch", "export", "debug-archive"),
    "check": ("spec", "prove", "scale", "completion"),
}  # fmt: skip

# Older names: these do the same,
RENAMED = {
    "hosts": "nodes list", "drain": "nodes drain", "move": "nodes move", "pardon": "nodes include",
    "init": "spec init", "validate": "spec validate", "schema": "spec schema",
}  # fmt: skip
# and these are what one option of another command does.
INSTEAD = {
    "tag": "launch edit RUN --tag TAG", "note": "launch edit RUN --note TEXT", "rename": "launch edit RUN --name NAME",
}  # fmt: skip

# Words that fingers know from elsewhere: these do the same,
ALSO = {"ls": "status", "ps": "status", "stop": "cancel", **RENAMED}
# and of these the hint names ours.
THEIRS = {
    "delete": "rm", "diff": "compare", "down": "cancel", "inspect": "status", "jobs": "status",
    "kill": "cancel", "list": "status", "queue": "status", "remove": "rm", "restart": "resume", "sbatch": "submit",
    "scancel": "cancel", "search": "sweep", "show": "status", "squeue": "status", "start": "submit", "tail": "logs",
    "torchrun": "run", "tune": "sweep", "up": "submit", "watch": "status", "exclude": "nodes drain",
    "include": "nodes include", "cordon": "nodes drain", "uncordon": "nodes include",
}  # fmt: skip


def shown(name: str) -> tuple[str, str]:
    """Return (the module of the command, its help line). `name` must be a command or an older name of one, whose help
    line says what it is called now.
    """
    module, text = COMMANDS[ALSO.get(name, name)]
    newer = f"`launch {RENAMED[name]}`" if name in RENAMED else f"`{INSTEAD[name]}`" if name in INSTEAD else ""
    return module, f"{text} (older name; now {newer})" if newer else text


def shown_in_help(name: str) -> bool:
    """Return whether help shows this name; older names of a command are left out."""
    return name not in RENAMED and name not in INSTEAD


def verbs_of(group: str) -> dict[str, str]:
    """Return {second word: help line} of the commands that begin with the word `group`."""
    named = (name.partition(" ") for name in COMMANDS)
    return {verb: COMMANDS[f"{group} {verb}"][1] for first, _, verb in named if first == group}
