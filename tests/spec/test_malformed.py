"""Specs that are wrong, by hand: each gives its one problem, at its place, with its reason, and quickly."""

import re
import time

import pytest

from launcher.errors import BadInput
from launcher.spec.read import parse_spec

LINE = re.compile(r"job\.yaml:(?P<line>\d+):(?P<column>\d+): (?P<key>[^:]+): (?P<reason>.+)")

# Of the processor, generously: a machine where much else runs takes its time for that too.
BOUND_S = 10.0

# (option, what is written for it, a part of the reason or the hint)
VALUES = [
    ("name", "My-Job", "for example my-job"),
    ("name", "my job", "for example my-job"),
    ("name", "-job", "expected a name"),
    ("name", "_job", "expected a name"),
    ("name", "job.1", "for example job-1"),
    ("name", "jöb", "expected a name"),
    ("name", "a" * 64, "at most 63"),
    ("name", "''", "got empty text"),
    ("name", "", "got nothing"),
    ("name", "~", "got nothing"),
    ("name", "../x", "expected a name"),
    ("name", "a/b", "expected a name"),
    ("name", "[a]", "got a list"),
    ("name", "{a: b}", "got a mapping"),
    ("name", '"a\\nb"', "line break"),
    ("name", '"a\\0"', "\\x00 in a value"),
    ("name", '"a; rm -rf /"', "for example a-rm-rf"),
    ("name", "$(x)", "expected a name"),
    ("name", "٣", "expected a name"),
    ("run.args", "--lr 0.1 --amp", "write [--lr, 0.1, --amp]"),
    ("resources", "2", "write nodes: 2 below it"),
    ("description", "[a]", "got a list"),
    ("description", "null", "quote it"),
    ("description", '"\\e[31m"', "control character \\x1b"),
    ("description", '"a\\u202eb"', "control character"),
    ("description", '"\\u2028"', "control character"),
    ("resources.nodes", "two", "expected an integer or a range like 2..4, got 'two'"),
    ("resources.nodes", "0", "range like"),
    ("resources.nodes", "-1", "range like"),
    ("resources.nodes", "02", "write 2"),
    ("resources.nodes", "2.0", "range like"),
    ("resources.nodes", "1e3", "range like"),
    ("resources.nodes", "4..2", "write 2..4"),
    ("resources.nodes", "0..2", "range like"),
    ("resources.nodes", "2-4", "write 2..4"),
    ("resources.nodes", "2:4", "write 2..4"),
    ("resources.nodes", "2...4", "write 2..4"),
    ("resources.nodes", "2 .. 4", "write 2..4"),
    ("resources.nodes", "2 to 4", "write 2..4"),
    ("resources.nodes", "2..", "range like"),
    ("resources.nodes", "..4", "range like"),
    ("resources.nodes", "[2, 4]", "got a list"),
    ("resources.nodes", "{min: 2}", "got a mapping"),
    ("resources.nodes", "'2'", "take the quotes away"),
    ("resources.nodes", "200000", "at most 100000"),
    ("resources.nodes", "9" * 5000, "range like"),
    ("resources.nodes", "", "got nothing"),
    ("resources.nodes", "auto", "range like"),
    ("resources.nodes", "²", "range like"),
    ("resources.ranks_per_node", "all", "write auto"),
    ("resources.ranks_per_node", "AUTO", "write auto"),
    ("resources.ranks_per_node", "0", "at least 1"),
    ("resources.ranks_per_node", "010", "write 10: a leading zero"),
    ("resources.ranks_per_node", "1_000", "write 1000"),
    ("resources.ranks_per_node", "0x10", "plain digits"),
    ("resources.ranks_per_node", "1e3", "plain digits"),
    ("resources.ranks_per_node", "4.0", "write 4"),
    ("resources.ranks_per_node", "+4", "write 4"),
    ("resources.ranks_per_node", "'4'", "take the quotes away"),
    ("resources.ranks_per_node", "5000", "at most 4096"),
    ("resources.ranks_per_node", "true", "expected auto or an integer"),
    ("resources.ranks_per_node", "12:30:45", "expected auto or an integer"),
    ("resources.gpus_per_node", "-1", "expected auto or an integer"),
    ("resources.gpus_per_node", "a100:4", "expected auto or an integer"),
    ("resources.gpus_per_node", "[0, 1]", "got a list"),
    ("resources.cpus_per_rank", "half", "expected auto or an integer"),
    ("resources.memory_gb", "64GB", "expected a number above 0"),
    ("resources.memory_gb", "0", "above 0"),
    ("resources.memory_gb", "-5", "above 0"),
    ("resources.memory_gb", ".inf", "above 0"),
    ("resources.memory_gb", ".nan", "above 0"),
    ("resources.memory_gb", "1e3", "plain digits"),
    ("resources.memory_gb", "'64'", "take the quotes away"),
    ("resources.memory_gb", "99999999", "at most 1e+06"),
    ("resources.memory_gb", "064", "write 64"),
    ("resources.time", "90", "write the unit: 90s, 90m or 90h"),
    ("resources.time", "'90'", "write the unit"),
    ("resources.time", "1:30", "write 1m30s or 1h30m"),
    ("resources.time", "2 h", "write 2h"),
    ("resources.time", "10 min", "write 10m"),
    ("resources.time", "10mins", "write 10m"),
    ("resources.time", "2 hours", "write 2h"),
    ("resources.time", "2H", "write 2h"),
    ("resources.time", "3 days", "write 3d"),
    ("resources.time", "3w", "the units are"),
    ("resources.time", "0s", "more than no time"),
    ("resources.time", "00:00:00", "more than no time"),
    ("resources.time", "-2h", "a duration such as"),
    ("resources.time", "2h30", "a duration such as"),
    ("resources.time", "30m2h", "a duration such as"),
    ("resources.time", "99:99:99", "a duration such as"),
    ("resources.time", "1-00:00:00", "a duration such as"),
    ("resources.time", "99999d", "at most 3650d"),
    ("resources.time", "unlimited", "a duration such as"),
    ("resources.time", "[2h]", "got a list"),
    ("resources.time", "2024-01-01", "a duration such as"),
    ("resources.time", "٣h", "a duration such as"),
    ("run", "", "got nothing"),
    ("run", "train.py", "expected a mapping of options, got 'train.py'"),
    ("run", "[train.py]", "got a list"),
    ("run", "{}", "exactly one of script, module and command"),
    ("run", "{args: [a]}", "exactly one of script, module and command"),
    ("run.script", "/etc/passwd", "relative to the project"),
    ("run.script", "~/train.py", "relative to the project"),
    ("run.script", "../train.py", "lead out of the project"),
    ("run.script", "a/../../train.py", "lead out of the project"),
    ("run.script", "-c", "the path of a script"),
    ("run.script", "''", "the path of a script"),
    ("run.script", "", "got nothing"),
    ("run.script", '"a\\nb.py"', "line break"),
    ("run.script", '"a\\0.py"', "\\x00"),
    ("run.script", "x" * 300, "longer than a file system takes"),
    ("run.script", "x/" * 600 + "y", "longer than a file system takes"),
    ("run.script", "[a.py]", "got a list"),
    ("run.module", "train.py", "run.script"),
    ("run.module", "a/b", "run.script"),
    ("run.module", "a..b", "a module name"),
    ("run.module", "1a", "a module name"),
    ("run.module", "-m x", "a module name"),
    ("run.module", "a b", "a module name"),
    ("run.command", "[]", "got an empty list"),
    ("run.command", "''", "got empty text"),
    ("run.command", "{a: b}", "got a mapping"),
    ("run.command", "", "got nothing"),
    ("run.command", '"a\\0b"', "control character"),
    ("run.args", "--lr 1", "expected a list"),
    ("run.args", "true", "expected a list"),
    ("run.workdir", "/tmp", "relative to the project"),
    ("run.workdir", "..", "lead out of"),
    ("run.setup", "[a]", "got a list"),
    ("run.setup", "''", "got empty text"),
    ("run.setup", '"\\a"', "control character"),
    ("run.python", "-x", "the path of a Python interpreter"),
    ("run.python", "''", "empty text"),
    ("run.preload", "torch", "write [torch]"),
    ("run.preload", "", "got nothing"),
    ("run.preload", "{torch: 1}", "got a mapping"),
    ("env", "[A=1]", "`NAME: value`"),
    ("env", "A=1", "`NAME: value`"),
    ("secrets", "HF_TOKEN", "write [HF_TOKEN]"),
    ("secrets", "{A: b}", "expected a list"),
    ("code", "true", "expected a mapping with include, exclude, max_size"),
    ("code.include", "data", "write [data]"),
    ("code.exclude", "true", "expected a list"),
    ("code.max_size", "100", "write the unit: 100MB"),
    ("code.max_size", "100M", "write 100MB"),
    ("code.max_size", "100mb", "write 100MB"),
    ("code.max_size", "100 MB", "write 100MB"),
    ("code.max_size", "1 gib", "write 1GiB"),
    ("code.max_size", "100 bits", "the units are"),
    ("code.max_size", "-1MB", "a size such as"),
    ("code.max_size", "0MB", "more than nothing"),
    ("code.max_size", "0.1B", "more than nothing"),
    ("code.max_size", "unlimited", "a size such as"),
    ("checkpoint.every", "500", "write 500 steps or 500s"),
    ("checkpoint.every", "500steps", "write 500 steps"),
    ("checkpoint.every", "500_steps", "write 500 steps"),
    ("checkpoint.every", "0 steps", "steps or a duration"),
    ("checkpoint.every", "0s", "more than no time"),
    ("checkpoint.every", "5 epochs", "the units are"),
    ("checkpoint.every", "never", "steps or a duration"),
    ("checkpoint.every", "-5 steps", "steps or a duration"),
    ("checkpoint.memory_every", "20", "write 20 steps or 20s"),
    ("checkpoint.memory_every", "never", "steps or a duration"),
    ("checkpoint.buddy", "true", "nothing in memory to copy without memory_every"),
    ("checkpoint.copy_to", "/data/copies", "write file:///folder for a folder"),
    ("checkpoint.copy_to", "bucket/prefix", "expected an address such as s3://bucket/prefix"),
    ("checkpoint.copy_to", "s3://me:hunter2@host/bucket", "credentials come from the environment, or from `secrets:`"),
    ("checkpoint.copy_to", "s3://bucket?token=hunter2", "expected an address without user, password or options"),
    ("checkpoint.copy_to_keep", "5", "write copy_to: s3://bucket/prefix"),
    ("checkpoint.copy_to_every", "1h", "has no use without copy_to"),
    ("recovery.link_floor", "50MB", "no link is measured without health"),
    ("checkpoint.buddy", "2", "true or false"),
    ("checkpoint.memory_limit", "8", "write the unit: 8MB or 8GB"),
    ("checkpoint.memory_limit", "0GB", "more than nothing"),
    ("recovery.group_timeout", "0s", "more than no time"),
    ("recovery.group_timeout", "default", "write auto"),
    ("checkpoint.keep", "0", "at least 1"),
    ("checkpoint.keep", "all", "an integer"),
    ("checkpoint.keep", "3.5", "an integer"),
    ("checkpoint.dir", "/ckpt", "relative to the run directory"),
    ("checkpoint.dir", "~", "quote it"),
    ("checkpoint.dir", "'~'", "relative to the run directory"),
    ("checkpoint.dir", "../ckpt", "lead out of the run directory"),
    ("checkpoint.dir", ".", "the launcher's ."),
    ("checkpoint.dir", "logs", "the launcher's logs"),
    ("checkpoint.dir", "./attempts/x", "the launcher's attempts"),
    ("checkpoint.dir", "FENCE", "the launcher's FENCE"),
    ("recovery", "on", "expected a mapping of options"),
    ("recovery.killed", "many", "expected unlimited or an integer"),
    ("recovery.killed", "-1", "write unlimited"),
    ("recovery.killed", "off", "write 0 for none"),
    ("recovery.killed", "None", "write 0 for none"),
    ("recovery.killed", "infinite", "write unlimited"),
    ("recovery.killed", "[3]", "got a list"),
    ("recovery.user_error", "true", "expected unlimited or an integer"),
    ("recovery.preempted", "Unlimited", "write unlimited"),
    ("recovery.hang_after", "never", "write off"),
    ("recovery.hang_after", "no", "write off"),
    ("recovery.hang_after", "false", "write off"),
    ("recovery.hang_after", "900", "write the unit"),
    ("recovery.hang_after", "0s", "more than no time"),
    ("recovery.no_progress", "0", "at least 1"),
    ("recovery.no_progress", "none", "write off"),
    ("recovery.no_progress", "OFF", "write off"),
    ("recovery.spares", "-1", "an integer"),
    ("recovery.spares", "1", "a spare needs at least 2 nodes"),
    ("recovery.wait", "60", "write the unit"),
    ("recovery.lease", "0s", "more than no time"),
    ("recovery.lease", "15 s", "write 15s"),
    ("recovery.grace", "30sec", "write 30s"),
    ("slurm", "gpu", "expected a mapping of options"),
    ("slurm.partition", "a b", "a partition"),
    ("slurm.partition", "-p", "a partition"),
    ("slurm.partition", '"a\\n#SBATCH --uid=0"', "line break"),
    ("slurm.account", "", "got nothing"),
    ("slurm.qos", "[a]", "got a list"),
    ("slurm.nodelist", "'n1 n2'", "a host"),
    ("slurm.nodelist", "--uid=0", "a host"),
    ("slurm.exclude", "{a: b}", "got a mapping"),
    ("slurm.gres", "{gpu: 4}", "got a mapping"),
    ("slurm.mail_type", "end", "write END"),
    ("slurm.mail_type", "SOMETIMES", "one of ALL"),
    ("slurm.mail_user", "me you", "a mail address"),
    ("slurm.signal_before", "120", "write the unit"),
    ("slurm.interface", "ib0;x", "a network interface"),
    ("slurm.container", "--privileged", "a container"),
    ("slurm.extra", "--exclusive", "`NAME: value`"),
    ("ssh.hosts", "gpu01", "write [gpu01]"),
    ("ssh.shared", "yes", "write true"),
    ("ssh.shared", "off", "write false"),
    ("ssh.shared", "True", "write true"),
    ("ssh.shared", "'true'", "take the quotes away"),
    ("ssh.shared", "1", "write true"),
    ("ssh.shared", "maybe", "expected true or false"),
]  # fmt: skip

HEAD = "name: a\nrun: {script: t.py}\n"
# (text after a good name and run on lines 1 and 2, place, key, a part of the reason or the hint)
TEXTS = [
    ("resource:\n  nodes: 2\n", "3:1", "resource", "did you mean resources?"),
    ("resources:\n  node: 2\n", "4:3", "resources.node", "did you mean nodes?"),
    ("resources:\n  ranks-per-node: 2\n", "4:3", "resources.ranks-per-node", "did you mean ranks_per_node?"),
    ("Env: {}\n", "3:1", "Env", "did you mean env?"),
    ("nodes: 2\n", "3:1", "nodes", "did you mean resources.nodes?"),
    ("gpus: 2\n", "3:1", "gpus", "did you mean resources.gpus_per_node?"),
    ("nproc_per_node: 2\n", "3:1", "nproc_per_node", "did you mean resources.ranks_per_node?"),
    ("timeout: 2h\n", "3:1", "timeout", "did you mean resources.time?"),
    ("resources: {env: {}}\n", "3:13", "resources.env", "env belongs at the top level"),
    ("zzz: 1\n", "3:1", "zzz", "there is name, description"),
    ("? \n", "3:2", "''", "unknown option"),
    ("'': 1\n", "3:1", "''", "unknown option"),
    ("'a b': 1\n", "3:1", "'a b'", "unknown option"),
    ('"a\\nb": 1\n', "3:1", "'a\\nb'", "unknown option"),
    ('"\\e[2J": 1\n', "3:1", "'\\x1b[2J'", "unknown option"),
    ("name: b\n", "3:1", "name", "duplicate key, first at line 1"),
    ("resources:\n  nodes: 1\n  nodes: 2\n", "5:3", "resources.nodes", "duplicate key, first at line 4"),
    ("env: {A: 1, A: 2}\n", "3:13", "env.A", "duplicate key, first at line 3"),
    ("env: {A: 1, 'A': 2}\n", "3:13", "env.A", "duplicate key"),
    ("env: &x {A: b}\n", "3:6", "env", "an anchor"),
    ("env: {A: &x b}\n", "3:10", "env.A", "an anchor"),
    ("env: *x\n", "3:6", "env", "an alias"),
    ("env: {A: *x}\n", "3:10", "env.A", "an alias"),
    ("secrets: [*x]\n", "3:11", "secrets[0]", "an alias"),
    ("env:\n  <<: {A: b}\n", "4:3", "env", "a merge key"),
    ("<<: {A: b}\n", "3:1", "yaml", "a merge key"),
    ("env: {A: !!str 1}\n", "3:10", "env.A", "a tag"),
    ("env: {A: ! 1}\n", "3:10", "env.A", "a tag"),
    ("env: !!python/object:os.system {A: b}\n", "3:6", "env", "a tag"),
    ("resources: !!map\n  nodes: 1\n", "3:12", "resources", "a tag"),
    ("? [a]\n: b\n", "3:3", "yaml", "a list or mapping as a key"),
    ("{a: b}: c\n", "3:1", "yaml", "a list or mapping as a key"),
    ("description: {{ x }}\n", "3:15", "description", "quote text that begins with {"),
    ("*x : 1\n", "3:1", "yaml", "an alias"),
    ("env: {RANK: 0}\n", "3:7", "env.RANK", "is set by the launcher"),
    ("env: {MASTER_PORT: 29500}\n", "3:7", "env.MASTER_PORT", "is set by the launcher"),
    ("env: {LAUNCH_RUN_ID: x}\n", "3:7", "env.LAUNCH_RUN_ID", "is set by the launcher"),
    ("env: {TORCHELASTIC_RUN_ID: x}\n", "3:7", "env.TORCHELASTIC_RUN_ID", "is set by the launcher"),
    ("env: {SLURM_PROCID: 1}\n", "3:7", "env.SLURM_PROCID", "is set by the launcher"),
    ("env: {A-B: 1}\n", "3:7", "env.A-B", "a variable name"),
    ("env: {1A: 1}\n", "3:7", "env.1A", "a variable name"),
    ("env: {'A=B': 1}\n", "3:7", "env.'A=B'", "a variable name"),
    ("env: {'': 1}\n", "3:7", "env.''", "a variable name"),
    ("env:\n  A:\n", "4:5", "env.A", "quote it if you mean text: ''"),
    ("env: {A: null}\n", "3:10", "env.A", "quote it if you mean text: 'null'"),
    ("env: {A: ~}\n", "3:10", "env.A", "quote it if you mean text: '~'"),
    ("env: {A: [b]}\n", "3:10", "env.A", "got a list"),
    ("env: {A: {B: c}}\n", "3:10", "env.A", "got a mapping"),
    ('env: {A: "\\0"}\n', "3:10", "env.A", "control character \\x00"),
    ("env: {A: " + "x" * 130_000 + "}\n", "3:10", "env.A", "longer than"),
    ("secrets: [RANK]\n", "3:11", "secrets[0]", "is set by the launcher"),
    ("secrets: [hf_abc-def]\n", "3:11", "secrets[0]", "a variable name"),
    ("secrets: [A, A]\n", "3:14", "secrets[1]", "in the list already"),
    ("secrets: [A, {A: f}]\n", "3:14", "secrets[1]", "in the list already"),
    ("secrets: [{A: f, B: g}]\n", "3:11", "secrets[0]", "put a dash before each name"),
    ("secrets: [{}]\n", "3:11", "secrets[0]", "`NAME: path/to/file`"),
    ("secrets: [[A]]\n", "3:11", "secrets[0]", "expected a variable name"),
    ("secrets:\n- A:\n", "4:5", "secrets[0].file", "got nothing"),
    ("secrets:\n- A: '-x'\n", "4:6", "secrets[0].file", "the path of a file"),
    ("env: {A: b}\nsecrets: [A]\n", "4:11", "secrets[0]", "is set in env already"),
    ("env: {A: b}\nsecrets: [{A: f}]\n", "4:11", "secrets[0]", "is set in env already"),
    ("code: {include: [/etc/*]}\n", "3:18", "code.include[0]", "relative to the project"),
    ("code: {exclude: [a, ../b]}\n", "3:21", "code.exclude[1]", "lead out of the project"),
    ("recovery: {killed: {restart: 3}}\n", "3:21", "recovery.killed.restart", "did you mean restarts?"),
    ("recovery: {killed: {backoff: 5}}\n", "3:30", "recovery.killed.backoff", "write the unit"),
    ("recovery: {killed: {backoff: 9s..1s}}\n", "3:30", "recovery.killed.backoff", "write 1s..9s"),
    ("recovery: {killed: {backoff: 1s-9s}}\n", "3:30", "recovery.killed.backoff", "two durations such as"),
    ("recovery: {killed: {backoff: ..}}\n", "3:30", "recovery.killed.backoff", "two durations such as"),
    ("recovery: {killed: {backoff: 1..60}}\n", "3:30", "recovery.killed.backoff", "write the unit"),
    ("recovery: {cancelled: 3}\n", "3:12", "recovery.cancelled", "unknown option"),
    ("recovery: {spares: 1}\nresources: {nodes: 1}\n", "3:20", "recovery.spares", "at least 2 nodes"),
    ("resources: {time: 1m}\nslurm: {signal_before: 2m}\n", "4:24", "slurm.signal_before", "less than resources.time"),
    ("slurm: {extra: {Exclusive: true}}\n", "3:17", "slurm.extra.Exclusive", "an option of sbatch"),
    ("slurm: {extra: {--exclusive: true}}\n", "3:17", "slurm.extra.--exclusive", "write exclusive"),
    ("slurm: {extra: {wrap: id}}\n", "3:17", "slurm.extra.wrap", "use run.command"),
    ("slurm: {extra: {wra: id}}\n", "3:17", "slurm.extra.wra", "--wrap cannot be set here"),
    ("slurm: {extra: {output: /etc/x}}\n", "3:17", "slurm.extra.output", "cannot be set here"),
    ("slurm: {extra: {o: /etc/x}}\n", "3:17", "slurm.extra.o", "cannot be set here"),
    ("slurm: {extra: {partition: x}}\n", "3:17", "slurm.extra.partition", "use slurm.partition"),
    ("slurm: {extra: {comment: yes}}\n", "3:26", "slurm.extra.comment", "write true, or quote it"),
    ("slurm: {extra: {comment: }}\n", "3:26", "slurm.extra.comment", "write true for an option without a value"),
    ('slurm: {extra: {comment: "a\\nb"}}\n', "3:26", "slurm.extra.comment", "line break"),
    ("slurm: {mail_type: [END, fail]}\n", "3:26", "slurm.mail_type[1]", "write FAIL"),
    ("ssh: {hosts: [-oProxyCommand=x]}\n", "3:15", "ssh.hosts[0]", "a host name"),
    ("ssh: {hosts: ['a b']}\n", "3:15", "ssh.hosts[0]", "a host name"),
    ("ssh: {hosts: ['a;b']}\n", "3:15", "ssh.hosts[0]", "a host name"),
    ("ssh: {hosts: [me@gpu]}\n", "3:15", "ssh.hosts[0]", "a host name"),
    ("ssh: {hosts: [a, b, a]}\n", "3:21", "ssh.hosts[2]", "in the list already"),
    ("ssh: {hosts: [{address: a}]}\n", "3:15", "ssh.hosts[0].name", "missing"),
    ("ssh: {hosts: [{name: a, port: 0}]}\n", "3:31", "ssh.hosts[0].port", "at least 1"),
    ("ssh: {hosts: [{name: a, port: 99999}]}\n", "3:31", "ssh.hosts[0].port", "at most 65535"),
    ("ssh: {hosts: [{name: a, usr: b}]}\n", "3:25", "ssh.hosts[0].usr", "did you mean user?"),
    ("ssh: {hosts: [{name: a, user: -l}]}\n", "3:31", "ssh.hosts[0].user", "a user name"),
    ("ssh: {hosts: [{name: a, key: -x}]}\n", "3:30", "ssh.hosts[0].key", "the path of a key"),
    ("ssh: {hosts: [[a]]}\n", "3:15", "ssh.hosts[0]", "got a list"),
    ("ssh: {hosts: [null]}\n", "3:15", "ssh.hosts[0]", "got nothing"),
    ("a: b: c\n", "3:5", "yaml", "a ':' where none can be"),
    ("description: note: this\n", "3:18", "yaml", "quote text that holds ': '"),
    ("description: 'x\n", "3:14", "yaml", "quoted text that begins here has no end"),
    ('description: "x\nenv: {}\n', "3:14", "yaml", "quoted text that begins here has no end"),
    ("env: {A: b\n", "4:1", "yaml", "mapping that began at line 3"),
    ("secrets: [A\nenv: {}\n", "4:4", "yaml", "list that began at line 3"),
    ("\tenv: {}\n", "3:1", "yaml", "indent with spaces"),
    ("env:\n\tA: b\n", "4:1", "yaml", "indent with spaces"),
    ("env:\n  A: b\n\tC: d\n", "5:1", "yaml", "indent with spaces"),
    ("env:\n  A: b\n C: d\n", "5:2", "yaml", "a key of the mapping"),
    ("env:\n  A: b\n   C: d\n", "5:5", "yaml", "a ':' where none can be"),
    ("env\n", "3:1", "yaml", "a line without ': '"),
    ("env:{}\nenv: {}\n", "3:1", "yaml", ""),
    ("env: {A: @b}\n", "3:10", "yaml", "text cannot begin with '@'"),
    ("env: {A: `b`}\n", "3:10", "yaml", "text cannot begin with '`'"),
    ("env: {A: %b}\n", "3:10", "yaml", "text cannot begin with '%'"),
    ("env: ]\n", "3:6", "yaml", "expected a value"),
    ("env: }\n", "3:6", "yaml", "expected a value"),
    ("secrets: - A\n", "3:10", "yaml", "a '-' where none can be"),
    ("- A\n", "3:1", "yaml", "a key of the mapping"),
    ('env: {A: "\\q"}\n', "3:11", "yaml", "unknown escape"),
    ('env: {A: "C:\\Users"}\n', "3:15", "yaml", "broken escape"),
    ('env: {A: "\\xg"}\n', "3:13", "yaml", "broken escape"),
    ('env: {A: "\\ud800"}\n', "3:13", "yaml", "no character"),
    ("env: {A: 'b' c}\n", "3:14", "yaml", "',' or '}'"),
    ("description: 'b' c\n", "3:18", "yaml", "a key of the mapping"),
    ("description: | x\n", "3:16", "yaml", "not valid YAML"),
    ("env: {A: &}\n", "3:10", "yaml", "an anchor, alias or tag"),
    ("env: {A: !x!y z}\n", "3:10", "yaml", "an anchor, alias or tag"),
    ("---\nname: b\n", "3:1", "yaml", "a second document"),
    ("...\nname: b\n", "4:1", "yaml", "after the end of the document"),
    ("...\n---\nname: b\n", "4:1", "yaml", "a second document"),
    ("env: {A: a\x00b}\n", "3:11", "yaml", "control character \\x00"),
    ("env: {A: a\x1bb}\n", "3:11", "yaml", "control character \\x1b"),
    ("env: {A: a\x7fb}\n", "3:11", "yaml", "control character \\x7f"),
    ("env: {A: a\x85b}\n", "3:11", "yaml", "control character \\x85"),
    ("env: {A: a\u2028b}\n", "3:11", "yaml", "control character \\u2028"),
    ("env: {A: a\u202eb}\n", "3:11", "yaml", "control character \\u202e"),
    ("env: {A: a\ufeffb}\n", "3:11", "yaml", "control character \\ufeff"),
    ("env: {A: a\ud800b}\n", "3:11", "yaml", "control character \\ud800"),
    ("env: {A: a\rb}\n", "3:11", "yaml", "carriage return"),
    ("env: {A: 😀\x01}\n", "3:11", "yaml", "control character \\x01"),
    ("x: " + "[" * 5000, "3:23", "yaml", "nested more than 20 deep"),
    ("x: " + "{" * 5000, "3:23", "yaml", "nested more than 20 deep"),
    ("- " * 5000, "3:1", "yaml", "a key of the mapping"),
    ("x: [" + "a," * 20_000 + "]\n", "3:19987", "yaml", "more than 10000 values"),
    ("#" * 300_000, "1:1", "yaml", "longer than 256 KiB"),
]  # fmt: skip

# Whole files: (text, place, key, part)
FILES = [
    ("", "1:1", "yaml", "the file is empty"),
    ("# nothing\n", "1:1", "yaml", "the file is empty"),
    ("---\n", "2:1", "spec", "got nothing"),
    ("null\n", "1:1", "spec", "got nothing"),
    ("train.py\n", "1:1", "spec", "expected a mapping of options, got 'train.py'"),
    ("- name: a\n", "1:1", "spec", "got a list"),
    ("run: {script: a}\n", "1:1", "name", "missing"),
    ("name: a\n", "1:1", "run", "missing"),
    ("\ufeffname: a\nrun: {script: t.py}\n", "1:1", "yaml", "byte order mark"),
    ("%YAML 2.0\n---\nname: a\n", "1:1", "yaml", ""),
    ("%FOO\nname: a\n", "1:1", "yaml", "a directive"),
    ("[" * 5000, "1:21", "yaml", "nested more than 20 deep"),
    ("? " * 5000, "1:41", "yaml", "nested more than 20 deep"),
    ("*a", "1:1", "yaml", "an alias"),
    ("name: a\nrun: {script: a, module: b}\n", "2:18", "run.module", "only one of script, module and command"),
    ("name: a\nrun: {command: a, script: b}\n", "2:7", "run.command", "only one of script, module and command"),
    ("name: a\nrun: {command: a, preload: [torch]}\n", "2:19", "run.preload", "has no use for a command"),
    ("name: a\nrun: {command: a}\nrecovery: {reserve: 1}\n", "3:21", "recovery.reserve", "cannot wait to be a rank"),
    ("name: a\nrun: {script: a, preload: [os, a-b]}\n", "2:32", "run.preload[1]", "a module name"),
    ("name: a\nrun: {script: a, arg: [b]}\n", "2:18", "run.arg", "did you mean args?"),
    ("name: a\nrun: {script: a, args: {x: yes}}\n", "2:28", "run.args.x", "write true, or quote it"),
    ("name: a\nrun: {script: a, args: {x: No}}\n", "2:28", "run.args.x", "write false, or quote it"),
    ("name: a\nrun: {script: a, args: {x: on}}\n", "2:28", "run.args.x", "write true, or quote it"),
    ("name: a\nrun: {script: a, args: {x: True}}\n", "2:28", "run.args.x", "write true, or quote it"),
    ("name: a\nrun: {script: a, args: {x: }}\n", "2:28", "run.args.x", "'' for empty text"),
    ("name: a\nrun: {script: a, args: {x: null}}\n", "2:28", "run.args.x", "'' for empty text"),
    ("name: a\nrun: {script: a, args: {x: {y: 1}}}\n", "2:28", "run.args.x", "quote it if the program reads JSON"),
    ("name: a\nrun: {script: a, args: {mesh: {tp: two}}}\n", "2:36", "run.args.mesh.tp", "ranks, got 'two'"),
    ("name: a\nrun: {script: a, args: {mesh: {}}}\n", "2:31", "run.args.mesh", "numbers of ranks by name, as pp: 2"),
    ("name: a\nrun: {script: a, args: {x: [[1]]}}\n", "2:29", "run.args.x[0]", "got a list"),
    ("name: a\nrun: {script: a, args: {x: [1, ~]}}\n", "2:32", "run.args.x[1]", "got nothing"),
    ("name: a\nrun: {script: a, args: {'': 1}}\n", "2:25", "run.args.''", "the name of an option"),
    ("name: a\nrun: {script: a, args: {a b: 1}}\n", "2:25", "run.args.'a b'", "the name of an option"),
    ("name: a\nrun: {script: a, args: {a=b: 1}}\n", "2:25", "run.args.'a=b'", "the name of an option"),
    ("name: a\nrun: {script: a, args: {x: \"\\0\"}}\n", "2:28", "run.args.x", "control character"),
    ("name: a\nrun: {script: a, args: [a, ~]}\n", "2:28", "run.args[1]", "got nothing"),
    ("name: a\nrun: {script: a, args: [{a: b}]}\n", "2:25", "run.args[0]", "got a mapping"),
    ("name: a\nrun: {script: a, args: [a, \"\\x1b\"]}\n", "2:28", "run.args[1]", "control character \\x1b"),
    ("name: a\nrun: {command: [a, [b]]}\n", "2:20", "run.command[1]", "got a list"),
    ("name: a\nrun:\n  script: a\n  script: b\n", "4:3", "run.script", "duplicate key, first at line 3"),
]  # fmt: skip


def with_value(option: str, value: str) -> tuple[str, str]:
    """A good spec but for that value, and the value's place."""
    section, _, key = option.rpartition(".")
    good = {"name": "name: a", "run": "run: {script: t.py}"}
    good.pop(section or option, None)
    head = "".join(f"{line}\n" for line in good.values())
    at = len(good) + 1
    if not section:
        return f"{head}{key}: {value}\n", f"{at}:{len(key) + (3 if value else 2)}"
    entry = "" if section != "run" or key in ("script", "module", "command") else "  script: t.py\n"
    at += 2 if entry else 1
    return f"{head}{section}:\n{entry}  {key}: {value}\n", f"{at}:{len(key) + (5 if value else 4)}"


def problems_of(text: str) -> list[str]:
    started = time.thread_time()
    with pytest.raises(BadInput) as error:
        parse_spec(text, "job.yaml")
    assert time.thread_time() - started < BOUND_S
    return list(error.value.lines)


def check(text: str, place: str, key: str | None, part: str) -> None:
    lines = problems_of(text)
    assert [line for line in lines[1:] if not line.startswith("hint: ")] == []
    found = LINE.fullmatch(lines[0])
    assert found is not None, lines
    assert f"{found['line']}:{found['column']}" == place, lines
    assert key is None or found["key"] == key, lines
    assert part in "\n".join(lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(("option", "value", "part"), VALUES, ids=lambda text: text[:30])
def test_a_value_that_does_not_fit(option: str, value: str, part: str) -> None:
    text, place = with_value(option, value)
    check(text, place, None, part)


@pytest.mark.parametrize(("text", "place", "key", "part"), TEXTS, ids=lambda text: ascii(text[:30]))
def test_a_wrong_part_of_a_good_spec(text: str, place: str, key: str, part: str) -> None:
    check(HEAD + text, place, key, part)


@pytest.mark.parametrize(("text", "place", "key", "part"), FILES, ids=lambda text: ascii(text[:30]))
def test_a_wrong_file(text: str, place: str, key: str, part: str) -> None:
    check(text, place, key, part)


def test_there_are_enough_of_them() -> None:
    assert len({*VALUES, *TEXTS, *FILES}) >= 200


def test_all_problems_are_told_at_once_in_the_order_of_the_file() -> None:
    lines = problems_of(
        "nam: a\nrun: {script: t.py, args: {x: yes}}\nresources:\n  nodes: two\n  time: 90\nenv: {RANK: 1}\n"
    )
    assert [line.partition(" ")[0] for line in lines if not line.startswith("hint")] == [
        "job.yaml:1:1:", "job.yaml:1:1:", "job.yaml:2:31:", "job.yaml:4:10:", "job.yaml:5:9:", "job.yaml:6:7:",
    ]  # fmt: skip


def test_after_fifty_problems_the_rest_is_counted() -> None:
    lines = problems_of(HEAD + "".join(f"x{number}: 1\n" for number in range(70)))
    assert sum(": unknown option" in line for line in lines) == 50
    assert lines[-1] == "and 20 more"


def test_thousands_of_problems_take_no_time() -> None:
    lines = problems_of(HEAD + "".join(f"resource{number}: 1\n" for number in range(4_900)))
    assert lines[-1] == "and 4850 more"


def test_what_may_be_a_secret_is_never_repeated() -> None:
    lines = problems_of(HEAD + "secrets: ['hf_s3cret!', {'s3cret-too': file}]\n")
    assert "s3cret" not in "\n".join(lines)
