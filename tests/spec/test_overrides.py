"""`--set`: the same reading as in the file, problems that name the override."""

import pytest

from launcher.errors import BadInput
from launcher.spec.fields import JOB
from launcher.spec.model import Budget, JobSpec, NodeRange, Secret, SshHost
from launcher.spec.read import parse_spec

HEAD = "name: a\nrun: {script: t.py}\n"
THERE_IS = f"there is {', '.join(JOB.by_key)}"


def with_set(*overrides: str, text: str = HEAD) -> JobSpec:
    return parse_spec(text, "job.yaml", overrides)


def problems(*overrides: str, text: str = HEAD) -> list[str]:
    with pytest.raises(BadInput) as error:
        with_set(*overrides, text=text)
    return list(error.value.lines)


def test_a_value_means_what_it_means_in_the_file() -> None:
    spec = with_set("resources.nodes=2..4", "env.A=010", "env.B='yes'", "resources.time=2h", "name=b", "env.C=''")
    assert (spec.resources.nodes, spec.resources.time_s, spec.name) == (NodeRange(2, 4), 7200.0, "b")
    assert spec.env == {"A": "010", "B": "yes", "C": ""}


def test_lists_and_mappings_are_written_in_brackets() -> None:
    spec = with_set("secrets=[A, {B: f}]", "ssh.hosts=[x, {name: y, port: 1}]", "resources={nodes: 3}", "env={C: d}")
    assert spec.secrets == (Secret("A"), Secret("B", "f"))
    assert spec.ssh.hosts == (SshHost("x"), SshHost("y", port=1))
    assert (spec.resources.nodes, spec.env) == (NodeRange(3, 3), {"C": "d"})


def test_the_last_one_holds() -> None:
    assert with_set("resources.nodes=2", "resources.nodes=3").resources.nodes == NodeRange(3, 3)


def test_what_the_file_says_beside_it_stays() -> None:
    spec = with_set("resources.nodes=2", text=HEAD + "resources: {nodes: 1, time: 1h}\n")
    assert (spec.resources.nodes, spec.resources.time_s) == (NodeRange(2, 2), 3600.0)


def test_a_wrong_value_in_the_file_may_be_overridden() -> None:
    assert with_set("resources.nodes=2", text=HEAD + "resources: {nodes: x}\n").resources.nodes == NodeRange(2, 2)


@pytest.mark.parametrize(
    ("args", "override", "words"),
    [
        ("", "lr=0.1", "--lr 0.1"),
        ("args:", "lr=0.1", "--lr 0.1"),
        ("args: {lr: 1, b: 2}", "lr=0.1", "--lr 0.1 --b 2"),
        ("args: {lr: 1}", "amp=true", "--lr 1 --amp"),
        ("args: {amp: true}", "amp=false", ""),
        ("args: {amp: true}", "amp=null", ""),
        ("args: {a: 1}", "optim.lr=0.1", "--a 1 --optim.lr 0.1"),
        ("args: [--lr, 1]", "lr=0.1", "--lr 1 --lr 0.1"),
        ("args: [x]", "amp=true", "x --amp"),
        ("args: [x]", "-m=[1, 2]", "x -m 1 2"),
    ],
)
def test_args_are_added_to(args: str, override: str, words: str) -> None:
    text = f"name: a\nrun:\n  script: t.py\n  {args}\n"
    assert " ".join(with_set(f"run.args.{override}", text=text).run.args) == words


@pytest.mark.parametrize("value", ["false", "null"])
def test_nothing_is_taken_out_of_a_list_of_args(value: str) -> None:
    lines = problems(f"run.args.amp={value}", text="name: a\nrun: {script: t.py, args: [--amp]}\n")
    assert lines == [
        "--set run.args.amp: args is a list here, and nothing can be taken out of it",
        "hint: set run.args as a whole",
    ]


@pytest.mark.parametrize(
    ("args", "value", "words"),
    [
        ("", "x", "x"),
        ("args:", "x", "x"),
        ("args: [a]", "x", "a x"),
        ("args: [a]", "[--lr, 0.1]", "a --lr 0.1"),
        ("args: {lr: 1}", "{amp: true}", "--lr 1 --amp"),
        ("args: {lr: 1}", "{lr: 2}", "--lr 2"),
    ],
)
def test_args_get_longer(args: str, value: str, words: str) -> None:
    text = f"name: a\nrun:\n  script: t.py\n  {args}\n"
    assert " ".join(with_set(f"run.args+={value}", text=text).run.args) == words


def test_any_list_gets_longer_and_the_values_of_args_too() -> None:
    text = HEAD + "code: {include: [a]}\nslurm: {exclude: gpu1}\nsecrets: [A]\n"
    spec = with_set("code.include+=b", "code.include+=[c, d]", "slurm.exclude+=gpu2", "secrets+={B: f}", text=text)
    assert spec.code.include == ("a", "b", "c", "d")
    assert spec.slurm.exclude == ("gpu1", "gpu2")
    assert spec.secrets == (Secret("A"), Secret("B", "f"))
    layers = "name: a\nrun: {script: t.py, args: {layers: [1, 2]}}\n"
    assert with_set("run.args.layers+=3", text=layers).run.args == ("--layers", "1", "2", "3")


@pytest.mark.parametrize(
    ("override", "text", "told"),
    [
        ("resources.nodes+=1", HEAD, "resources.nodes: is no list, and += adds to one"),
        ("run.args+=x", "name: a\nrun: {script: t.py, args: {a: 1}}\n", "run.args: is a mapping here"),
        ("run.command+=x", "name: a\nrun: {command: ./t}\n", "run.command: is no list"),
        ("+=x", HEAD, "expected KEY=VALUE"),
    ],
)
def test_what_is_no_list_gets_no_longer(override: str, text: str, told: str) -> None:
    lines = problems(override, text=text)
    assert told in lines[0]
    assert lines[1].startswith("hint: ")


def test_false_leaves_an_option_out_and_is_a_word_where_it_is_quoted() -> None:
    spec = with_set("run.args={a: false, b: 'false', c: true, d: 'true', e: [false]}")
    assert spec.run.args == ("--b", "false", "--c", "--d", "true", "--e", "false")
    assert with_set("run.args.amp='false'").run.args == ("--amp", "false")


def test_a_budget_in_short_is_opened() -> None:
    spec = with_set("recovery.killed.backoff=1s..9s", text=HEAD + "recovery: {killed: 7}\n")
    assert spec.recovery.killed == Budget(7, 1.0, 9.0, explicit=True)


def test_null_takes_an_option_out() -> None:
    spec = with_set("run.script=null", "run.module=a.b", "resources.time=null", "env.none=null")
    assert (spec.run.script, spec.run.module, spec.resources.time_s, spec.env) == (None, "a.b", None, {})


@pytest.mark.parametrize(
    ("override", "lines"),
    [
        ("resources.nodes=x", ["--set resources.nodes: expected an integer or a range like 2..4, got 'x'"]),
        ("resources.node=2", ["--set resources.node: unknown option", "hint: did you mean nodes?"]),
        ("resource.nodes=2", ["--set resource.nodes: unknown option", "hint: did you mean resources?"]),
        ("nodes=2", ["--set nodes: unknown option", "hint: did you mean resources.nodes?"]),
        ("lr=2", ["--set lr: unknown option", f"hint: an argument of the script is run.args.lr; {THERE_IS}"]),
        ("a b=2", ["--set 'a b': unknown option", f"hint: {THERE_IS}"]),
        ("resources.nodes.min=2", ["--set resources.nodes.min: nodes has no options of its own"]),
        ("secrets.A=b", ["--set secrets.A: secrets has no options of its own"]),
        ("name", ["--set name: expected KEY=VALUE, got 'name'", "hint: for example resources.nodes=2"]),
        ("=x", ["--set spec: expected KEY=VALUE, got '=x'", "hint: for example resources.nodes=2"]),
        ("", ["--set spec: expected KEY=VALUE, got ''", "hint: for example resources.nodes=2"]),
        ("env.A=", ["--set env.A: expected text, got nothing", "hint: quote it if you mean text: ''"]),
        ("env.RANK=1", ["--set env.RANK: RANK is set by the launcher or the cluster, for each rank"]),
        ("env.A=[", None),
        ("env.A=*x", None),
        ("env.A=\x1b", ["--set env.A: control character \\x1b"]),
        (
            "recovery.killed.restart=1",
            ["--set recovery.killed.restart: unknown option", "hint: did you mean restarts?"],
        ),
        ("resources={nodes: x}", ["--set resources.nodes: expected an integer or a range like 2..4, got 'x'"]),
        ("..=1", None),
        ("\n=\n", None),
    ],
)
def test_problems_name_the_override(override: str, lines: list[str] | None) -> None:
    told = problems(override)
    assert told[0].startswith("--set ")
    assert all(line.isprintable() for line in told)
    assert lines is None or told == lines


def test_problems_of_file_and_command_line_are_told_together() -> None:
    lines = problems("resources.nodes=x", "zzz=1", text=HEAD + "env: {RANK: 1}\nresources: {nodes: y, time: 1}\n")
    assert [line.split(": ")[0] for line in lines if not line.startswith("hint")] == [
        "job.yaml:3:7", "job.yaml:4:29", "--set zzz", "--set resources.nodes",
    ]  # fmt: skip


def test_a_broken_file_does_not_hide_them() -> None:
    lines = problems("zzz=1", text="name: [\n")
    assert [line.split(": ")[1] for line in lines if not line.startswith("hint")] == ["yaml", "unknown option"]
