"""The commands: the module of each and one line of help; and other words for them."""

COMMANDS = {
    "submit": ("launcher.cli.starting.submit", "start a run; prints its id"),
    "run": ("launcher.cli.starting.run", "run a script without a spec, in the words of torchrun; shows its log"),
    "sweep": (
        "launcher.cli.starting.sweep",
        "many runs of a spec that differ in some options, chosen by Optuna; status, best, stop, resume, add, extend",
    ),
    "prove": (
        "launcher.cli.starting.prove",
        "kill a training again and again, and see whether it ends as it does undisturbed",
    ),
    "scale": (
        "launcher.cli.starting.scale",
        "run a training on one rank and on many; how much faster it is, and where the rest of the time goes",
    ),
    "predict": (
        "launcher.cli.using.predict",
        "have a run's model answer for each sample of a data set, as a run of its own",
    ),
    "serve": ("launcher.cli.using.serve", "answer requests over HTTP with the model that a run has trained"),
    "status": ("launcher.cli.looking.status", "all runs as a table, or everything about one"),
    "checkpoints": ("launcher.cli.looking.checkpoints", "what a run has saved, and whether it is whole"),
    "metrics": ("launcher.cli.looking.metrics", "what runs have measured, step by step: a table, CSV, JSON or curves"),
    "compare": (
        "launcher.cli.looking.compare",
        "what is other between runs: arguments, spec, environment, code, results",
    ),
    "logs": ("launcher.cli.looking.logs", "the merged log of all ranks of a run"),
    "top": ("launcher.cli.looking.top", "what a run uses now: CPU, memory, GPUs, disk and network, by node and rank"),
    "board": ("launcher.cli.looking.board", "a page of all runs in the browser: live curves, logs, what each one does"),
    "exec": ("launcher.cli.inside.exec", "run a command beside a rank: on its node, in its environment and folder"),
    "shell": ("launcher.cli.inside.shell", "open a shell beside a rank"),
    "stacks": ("launcher.cli.inside.stacks", "have the ranks write their Python stacks now, and show them"),
    "debug": ("launcher.cli.inside.debug", "attach pdb to a rank that waits in a breakpoint()"),
    "wait": ("launcher.cli.keeping.wait", "wait until runs have ended; ends with their exit code"),
    "cancel": (
        "launcher.cli.keeping.cancel",
        "end runs: the ranks are asked first, then no process is left; files stay",
    ),
    "release": ("launcher.cli.keeping.release", "let runs go that wait because they were submitted with --hold"),
    "drain": (
        "launcher.cli.places.drain",
        "have the ranks of a node moved to others before it goes",
    ),
    "move": ("launcher.cli.places.move", "have the ranks of a node moved to a spare; the node is a spare then"),
    "resume": ("launcher.cli.starting.resume", "continue an ended or lost run from its newest checkpoint"),
    "tag": ("launcher.cli.keeping.tag", "give runs tags, or take some away, to find them by"),
    "note": ("launcher.cli.keeping.note", "write down what there is to say of a run"),
    "rename": ("launcher.cli.keeping.rename", "call a run something; its id stays"),
    "notify": ("launcher.cli.keeping.notify", "who heard of a run and who hears of runs; `--test` sends a message now"),
    "rm": ("launcher.cli.keeping.rm", "take ended runs away, with all their files"),
    "prune": (
        "launcher.cli.keeping.prune",
        "take away many that are over, or checkpoints of theirs; shows first what would go",
    ),
    "du": ("launcher.cli.keeping.du", "what runs take of the disk"),
    "fetch": ("launcher.cli.keeping.fetch", "bring home logs, metrics and checkpoints that are on other machines"),
    "export": (
        "launcher.cli.keeping.export",
        "the weights of a checkpoint as safetensors, for torch.load or for Hugging Face",
    ),
    "pardon": ("launcher.cli.keeping.pardon", "let a run use nodes again that it lost"),
    "hosts": ("launcher.cli.places.hosts", "the SSH hosts of a pool: free, taken and by which run; `trust` a new one"),
    "doctor": ("launcher.cli.places.doctor", "what a cluster is like, and what is in the way of runs there"),
    "validate": ("launcher.cli.starting.validate", "check spec files; shows all problems at once"),
    "schema": ("launcher.cli.starting.schema", "print the JSON Schema of the spec, for editors"),
    "init": ("launcher.cli.starting.init", "write a commented spec to start from"),
    "completion": ("launcher.cli.completion", "print a script by which a shell completes `launch`"),
}

# Words that fingers know from elsewhere: these do the same,
ALSO = {"ls": "status", "ps": "status", "stop": "cancel"}
# and of these the hint names ours.
THEIRS = {
    "delete": "rm", "diff": "compare", "down": "cancel", "inspect": "status", "jobs": "status",
    "kill": "cancel", "list": "status", "queue": "status", "remove": "rm", "restart": "resume", "sbatch": "submit",
    "scancel": "cancel", "search": "sweep", "show": "status", "squeue": "status", "start": "submit", "tail": "logs",
    "torchrun": "run", "tune": "sweep", "up": "submit", "watch": "status",
}  # fmt: skip
